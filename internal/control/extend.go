package control

import (
	"context"
	"sync"
	"time"

	"dayfly.dev/dayfly"
)

// extendLock makes extends of one sandbox add up instead of overwriting each other.
type extendLock struct {
	sync.Mutex
	users int
}

// ExtendSandbox adds d to the lease, cut to the ceiling. The host's enforcers know the new deadline before it returns.
// CodeGone: the sandbox has ended, or the extend lost the race against its deadline. CodeLeaseCeiling: nothing to add.
func (p *Plane) ExtendSandbox(ctx context.Context, who Principal, id string, d time.Duration) (Extended, error) {
	unlock := p.lockExtend(id)
	defer unlock()
	sb, err := p.Sandbox(ctx, who, id)
	if err != nil {
		return Extended{}, err
	}
	if sb.Status.Ended() || sb.Status == dayfly.StatusDeleting {
		return Extended{}, goneError(sb)
	}
	lease, clamped, err := sb.Lease.Extend(p.node.Now(), d)
	if dayfly.ErrorCode(err) == dayfly.CodeGone { // due, and about to be ended
		return Extended{}, p.gone(ctx, id, dayfly.AsError(err).WithDetail("sandbox", id))
	}
	if err != nil {
		return Extended{}, err
	}
	if err := p.node.Renew(ctx, id, lease); err != nil {
		return Extended{}, p.gone(ctx, id, err)
	}
	sb, err = p.recordLease(id, lease)
	if err != nil {
		return Extended{}, err
	}
	return Extended{Sandbox: sb, Clamped: clamped}, nil
}

// recordLease stores a lease that the host already obeys.
func (p *Plane) recordLease(id string, lease dayfly.Lease) (dayfly.Sandbox, error) {
	ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
	defer cancel()
	for range casAttempts {
		sb, err := p.store.Sandbox(ctx, "", id)
		if err != nil {
			return sb, err
		}
		if sb.Status.Ended() {
			return sb, goneError(sb)
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
		if sb.End != "" {
			return goneError(sb)
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

func (p *Plane) lockExtend(id string) (unlock func()) {
	p.mu.Lock()
	l := p.extends[id]
	if l == nil {
		l = &extendLock{}
		p.extends[id] = l
	}
	l.users++
	p.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		p.mu.Lock()
		defer p.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(p.extends, id)
		}
	}
}
