package control

import (
	"context"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
)

// renewTimeout bounds how long the host may take to obey a new lease.
const renewTimeout = 15 * time.Second

// ExtendSandbox adds d to the lease, cut to the ceiling. The host's enforcers know the new deadline before it returns.
// CodeGone: the sandbox has ended, or the extend lost the race against its end. CodeLeaseCeiling: nothing to add.
// CodeNotRunning: it is still being made. Once begun, an extend is carried out even if ctx ends.
func (p *Plane) ExtendSandbox(ctx context.Context, who Principal, id string, d time.Duration) (Extended, error) {
	leave, err := p.extends.take(ctx, id) // so that extends add up instead of overwriting each other
	if err != nil {
		return Extended{}, dayfly.Errorf(dayfly.CodeUnavailable, "the request ended before it was its turn; nothing was extended").
			WithCause(err)
	}
	defer leave()
	sb, err := p.Sandbox(ctx, who, id)
	if err != nil {
		return Extended{}, err
	}
	if err := settled(sb); err != nil {
		return Extended{}, err
	}
	failpoint.Hit("control.extend.begin")
	lease, clamped, err := sb.Lease.Extend(p.node.Now(), d)
	if dayfly.ErrorCode(err) == dayfly.CodeGone { // due, and about to be ended
		return Extended{}, p.gone(ctx, id, dayfly.AsError(err).WithDetail("sandbox", id))
	}
	if err != nil {
		return Extended{}, err
	}
	if err := p.renew(ctx, id, lease); err != nil {
		return Extended{}, p.gone(ctx, id, err)
	}
	sb, err = p.recordLease(who.actor(), id, lease)
	if err != nil {
		return Extended{}, err
	}
	failpoint.Hit("control.extend.recorded")
	if err := settled(sb); err != nil { // its end was asked for meanwhile
		return Extended{}, err
	}
	return Extended{Sandbox: sb, Clamped: clamped}, nil
}

func (p *Plane) renew(ctx context.Context, id string, lease dayfly.Lease) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewTimeout)
	defer cancel()
	return p.node.Renew(ctx, id, lease)
}

// recordLease stores a lease that the host already obeys, unless a later one is stored already.
func (p *Plane) recordLease(by dayfly.Actor, id string, lease dayfly.Lease) (dayfly.Sandbox, error) {
	ctx, cancel := context.WithTimeout(dayfly.WithActor(context.Background(), by), teardownTimeout)
	defer cancel()
	for range casAttempts {
		sb, err := p.store.Sandbox(ctx, "", id)
		if err != nil {
			return sb, err
		}
		if sb.Status.Ended() {
			return sb, goneError(sb)
		}
		if sb.Lease.BootID == lease.BootID && sb.Lease.Deadline >= lease.Deadline {
			p.reaper.due(sb.Lease)
			return sb, nil
		}
		renewed, err := p.store.RenewLease(ctx, id, sb.Rev, lease)
		if !lostRace(err) {
			p.reaper.due(lease)
			return renewed, err
		}
	}
	return dayfly.Sandbox{}, errBusy
}

// gone completes a CodeGone that is due to the end of the sandbox (the node marks it with the detail "sandbox") with what
// the record knows of that end, once it knows it. Any other error passes through.
func (p *Plane) gone(ctx context.Context, id string, err error) error {
	e := dayfly.AsError(err)
	if e == nil || e.Code != dayfly.CodeGone || e.Details["sandbox"] == nil {
		return err
	}
	late := time.NewTimer(goneWait)
	defer late.Stop()
	tick := time.NewTicker(goneLook)
	defer tick.Stop()
	for {
		sb, readErr := p.store.Sandbox(context.WithoutCancel(ctx), "", id)
		if readErr != nil {
			return err
		}
		if sb.Status.Ended() {
			return goneError(sb)
		}
		if sb.End != "" {
			err = goneError(sb) // the time of the end is not known yet
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		case <-late.C:
			return err
		}
	}
}

// How long, and how often, a call that found its machine dead looks for the record of the end, which is being written.
const (
	goneWait = time.Second
	goneLook = 10 * time.Millisecond
)
