package control

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"dayfly.dev/dayfly"
)

// launch is one creation under way. It outlives the request that began it.
type launch struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the record says running or ended
	err    error         // why it failed, or nil; read it after done
}

// CreateSandbox makes a sandbox and returns it once it accepts commands, or at once with r.Async. When ctx ends earlier
// the creation goes on and its record tells the outcome. A replayed request gives its first sandbox as it is now.
//
// Errors: CodeInvalid, CodeSizeUnavailable, CodeNoCapacity, CodeQuotaExceeded, CodeConflict (name), CodeKeyReused,
// CodeUnavailable, CodeInternal for a failed start. After any of them the idempotency key is free again.
func (p *Plane) CreateSandbox(ctx context.Context, who Principal, r CreateSandbox) (Outcome[dayfly.Sandbox], error) {
	if p.in(phaseDraining) {
		return Outcome[dayfly.Sandbox]{}, errDraining
	}
	sb, im, err := p.plan(ctx, who, r)
	if err != nil {
		return Outcome[dayfly.Sandbox]{}, err
	}
	env := sb.Spec.Env
	stored, replayed, err := p.store.CreateSandbox(ctx, sb, p.claim(who, r.Request, sb.Times.CreatedAt), who.Account.MaxLive)
	if err != nil {
		return Outcome[dayfly.Sandbox]{}, err
	}
	if replayed {
		return p.replayCreate(ctx, who, stored, r.Async)
	}
	if err := p.node.Admit(ctx, sb.Spec.Limits, sb.Driver); err != nil {
		p.abandon(stored)
		return Outcome[dayfly.Sandbox]{}, err
	}
	stored.Spec.Env, stored.Driver = env, sb.Driver
	l := p.launch(stored, im)
	if r.Async {
		return Outcome[dayfly.Sandbox]{Value: stored}, nil
	}
	sb, err = p.awaitLaunch(ctx, who, stored.ID, l)
	return Outcome[dayfly.Sandbox]{Value: sb}, err
}

// plan checks a request against what this installation offers and makes the record of the intent.
func (p *Plane) plan(ctx context.Context, who Principal, r CreateSandbox) (dayfly.Sandbox, dayfly.Image, error) {
	size, limits, err := p.limits(r)
	if err != nil {
		return dayfly.Sandbox{}, dayfly.Image{}, err
	}
	timeout := r.Timeout
	if timeout == 0 {
		timeout = min(dayfly.LeaseDefault, p.cfg.LeaseMax)
	}
	if timeout > p.cfg.LeaseMax {
		return dayfly.Sandbox{}, dayfly.Image{}, dayfly.Errorf(dayfly.CodeInvalid,
			"a lease of %s is longer than this server allows (%s)", timeout, p.cfg.LeaseMax).
			WithDetail("max_timeout_seconds", int(p.cfg.LeaseMax/time.Second))
	}
	driver, err := p.node.Isolation(cmp.Or(r.Isolation, dayfly.IsolationAuto))
	if err != nil {
		return dayfly.Sandbox{}, dayfly.Image{}, err
	}
	im, err := p.imageForCreate(ctx, cmp.Or(r.Image, dayfly.ImageBase))
	if err != nil {
		return dayfly.Sandbox{}, dayfly.Image{}, err
	}
	now := p.node.Now()
	names := make([]string, 0, len(r.Env))
	for name := range r.Env {
		names = append(names, name)
	}
	slices.Sort(names)
	return dayfly.Sandbox{
		ID: dayfly.NewID(dayfly.PrefixSandbox), Account: who.Account.ID, Name: r.Name, Labels: r.Labels,
		Spec: dayfly.SandboxSpec{
			Size: size, Limits: limits, Image: im.Name, ImageID: im.ID, Isolation: cmp.Or(r.Isolation, dayfly.IsolationAuto),
			Timeout: timeout, Network: dayfly.Network{Internet: !r.NoNetwork}, Env: r.Env,
		},
		Node: p.node.ID(), Driver: driver,
		Wanted: dayfly.StatusRunning, Status: dayfly.StatusProvisioning,
		Lease:    dayfly.NewLease(now, timeout, p.cfg.LeaseMax),
		Times:    dayfly.SandboxTimes{CreatedAt: now.Wall.UTC()},
		EnvNames: names,
	}, im, nil
}

// imageForCreate finds an image; an unknown one is the request's fault.
func (p *Plane) imageForCreate(ctx context.Context, ref string) (dayfly.Image, error) {
	im, err := p.store.Image(ctx, ref)
	if dayfly.ErrorCode(err) == dayfly.CodeNotFound {
		return im, dayfly.Errorf(dayfly.CodeInvalid, "there is no image %q", ref).
			WithHint("list images with `dayfly images ls`; import one with `dayfly images import NAME FILE`").
			WithDetail("fields", []map[string]string{{"field": "image", "message": "unknown image"}})
	}
	return im, err
}

// limits fills what was not asked for from the named size.
func (p *Plane) limits(r CreateSandbox) (string, dayfly.Limits, error) {
	name := cmp.Or(r.Size, "small")
	size, ok := p.cfg.Sizes[name]
	if !ok {
		known := make([]string, 0, len(p.cfg.Sizes))
		for k := range p.cfg.Sizes {
			known = append(known, k)
		}
		slices.Sort(known)
		return "", dayfly.Limits{}, dayfly.Errorf(dayfly.CodeInvalid, "there is no size %q", name).
			WithHint("the sizes are %v", known).
			WithDetail("fields", []map[string]string{{"field": "size", "message": "unknown size"}})
	}
	limits := dayfly.Limits{
		VCPU:        cmp.Or(r.VCPU, size.VCPU),
		MemoryBytes: int64(cmp.Or(r.MemoryMB, size.MemoryMB)) << 20,
		DiskBytes:   int64(cmp.Or(r.DiskMB, size.DiskMB)) << 20,
		PIDs:        p.cfg.PIDs,
	}
	if r.VCPU != 0 || r.MemoryMB != 0 || r.DiskMB != 0 {
		if r.Size == "" {
			name = "custom"
		}
	}
	return name, limits, nil
}

// replayCreate answers a repeated request: with the first one's sandbox, once that is no longer being made.
func (p *Plane) replayCreate(ctx context.Context, who Principal, sb dayfly.Sandbox, async bool) (Outcome[dayfly.Sandbox], error) {
	p.mu.Lock()
	l := p.launches[sb.ID]
	p.mu.Unlock()
	if async || l == nil {
		return Outcome[dayfly.Sandbox]{Value: sb, Replayed: true}, nil
	}
	sb, err := p.awaitLaunch(ctx, who, sb.ID, l)
	return Outcome[dayfly.Sandbox]{Value: sb, Replayed: true}, err
}

// launch makes the machine in the background, on a context of its own.
func (p *Plane) launch(sb dayfly.Sandbox, im dayfly.Image) *launch {
	ctx, cancel := context.WithTimeout(p.life, p.cfg.Provision)
	l := &launch{cancel: cancel, done: make(chan struct{})}
	p.mu.Lock()
	p.launches[sb.ID] = l
	p.mu.Unlock()
	p.work.Go(func() {
		defer cancel()
		err := p.node.Create(ctx, sb, im)
		if err == nil {
			err = p.markRunning(sb)
		}
		if err != nil {
			l.err = err
			p.launchFailed(sb, err)
		}
		p.mu.Lock()
		delete(p.launches, sb.ID)
		p.mu.Unlock()
		close(l.done)
	})
	return l
}

// markRunning records a started machine, unless its end was asked for meanwhile.
func (p *Plane) markRunning(sb dayfly.Sandbox) error {
	_, err := p.move(sb.ID, func(now dayfly.Instant, sb *dayfly.Sandbox) bool {
		if sb.Status != dayfly.StatusProvisioning {
			return false
		}
		sb.Status, sb.Times.ReadyAt = dayfly.StatusRunning, now.Wall.UTC()
		return true
	})
	if err != nil {
		return err
	}
	p.reaper.due(sb.Lease)
	return nil
}

// launchFailed records a failed start. A start that was cut off because the server
// closes stays as it is: the next start of the server finds out what became of it.
func (p *Plane) launchFailed(sb dayfly.Sandbox, cause error) {
	if errors.Is(context.Cause(p.life), errClosed) {
		return
	}
	p.log.Error("sandbox did not start", "sandbox", sb.ID, "error", cause)
	ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
	defer cancel()
	if _, err := p.node.Destroy(ctx, sb.ID); err != nil {
		p.log.Error("undo of a failed start", "sandbox", sb.ID, "error", err)
	}
	p.abandon(sb)
}

// abandon marks a sandbox as failed to start, if nothing else ended it before. That frees its idempotency key too: the
// store takes the claim of a sandbox that failed to start for none.
func (p *Plane) abandon(sb dayfly.Sandbox) {
	_, err := p.move(sb.ID, func(now dayfly.Instant, sb *dayfly.Sandbox) bool {
		if sb.Status != dayfly.StatusProvisioning {
			return false
		}
		sb.Status, sb.End, sb.Times.EndedAt = dayfly.StatusFailed, dayfly.EndStartupFailed, now.Wall.UTC()
		return true
	})
	if err != nil {
		p.log.Error("record a failed start", "sandbox", sb.ID, "error", err)
	}
}

// awaitLaunch waits for a creation and reads its outcome. The creator's own failure carries the reason.
func (p *Plane) awaitLaunch(ctx context.Context, who Principal, id string, l *launch) (dayfly.Sandbox, error) {
	select {
	case <-l.done:
	case <-ctx.Done():
		return dayfly.Sandbox{}, dayfly.Errorf(dayfly.CodeUnavailable, "the request ended before the sandbox was ready").
			WithHint("its record tells what became of it: GET /v1/sandboxes/%s", id).WithCause(ctx.Err())
	}
	sb, err := p.store.Sandbox(ctx, who.Account.ID, id)
	if err != nil {
		return dayfly.Sandbox{}, err
	}
	var told *dayfly.Error
	if errors.As(l.err, &told) && told.Code != dayfly.CodeInternal {
		return sb, told.WithDetail("sandbox", id)
	}
	if sb.End == dayfly.EndStartupFailed {
		return sb, dayfly.Errorf(dayfly.CodeInternal, "the sandbox did not start").
			WithHint("try again; the server's log has the reason under %s", id).WithDetail("sandbox", id)
	}
	return sb, nil
}
