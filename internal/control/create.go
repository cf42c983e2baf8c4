package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
)

// launch is one creation under way. It outlives the request that began it. It is announced before its record is stored, so
// whoever finds the record of a sandbox that is being made finds its launch too.
type launch struct {
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when the record says running or ended
	err    error         // why it failed, or nil; read it after done
}

// CreateSandbox makes a sandbox and returns it once it accepts commands, or at once with r.Async. When ctx ends earlier
// the creation goes on and its record tells the outcome. A replayed request gives its first sandbox as it is now.
//
// Errors: CodeInvalid, CodeSizeUnavailable, CodeNoCapacity, CodeQuotaExceeded, CodeConflict (name), CodeKeyReused,
// CodeDiskFull, CodeUnavailable, CodeInternal for a failed start; after any of them the idempotency key is free again, as soon
// as nothing of the failed start is left. CodeGone: the sandbox was ended before it was ready.
func (p *Plane) CreateSandbox(ctx context.Context, who Principal, r CreateSandbox) (Outcome[dayfly.Sandbox], error) {
	if err := p.refuses(); err != nil {
		return Outcome[dayfly.Sandbox]{}, err
	}
	sb, im, err := p.plan(ctx, who, r)
	if err != nil {
		return Outcome[dayfly.Sandbox]{}, err
	}
	claim := p.claim(who, r.Request, sb.Times.CreatedAt)
	if err := p.node.Admit(ctx, sb.Spec.Limits, sb.Driver); err != nil {
		return p.notAdmitted(ctx, who, claim, r.Async, err)
	}
	l := p.announce(sb)
	failpoint.Hit("control.create.begin")
	stored, replayed, err := p.store.CreateSandbox(dayfly.WithActor(ctx, who.actor()), sb, claim, who.Account.MaxLive)
	if err != nil || replayed {
		p.withdraw(sb.ID, l)
	}
	if err != nil {
		return Outcome[dayfly.Sandbox]{}, err
	}
	if replayed {
		return p.replayCreate(ctx, who, stored, r.Async)
	}
	failpoint.Hit("control.create.recorded")
	stored.Spec.Env, stored.Driver = sb.Spec.Env, sb.Driver
	if !p.background(func() { p.launch(l, stored, im) }) {
		p.withdraw(sb.ID, l)
		return Outcome[dayfly.Sandbox]{}, errDraining // the next start finds the record and closes it
	}
	if r.Async {
		return Outcome[dayfly.Sandbox]{Value: stored}, nil
	}
	sb, err = p.awaitLaunch(ctx, who, sb.ID, l)
	if err == nil && !sb.Status.Up() {
		err = goneError(sb)
	}
	return Outcome[dayfly.Sandbox]{Value: sb}, err
}

// notAdmitted answers a request that does not fit: nothing is stored of it. What an earlier request with the same
// idempotency key made is shown all the same.
func (p *Plane) notAdmitted(ctx context.Context, who Principal, claim *dayfly.Request, async bool, cause error) (Outcome[dayfly.Sandbox], error) {
	if claim == nil {
		return Outcome[dayfly.Sandbox]{}, cause
	}
	prior, found, err := p.store.ClaimedSandbox(ctx, *claim)
	switch {
	case err != nil:
		return Outcome[dayfly.Sandbox]{}, err
	case !found:
		return Outcome[dayfly.Sandbox]{}, cause
	}
	return p.replayCreate(ctx, who, prior, async)
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
			WithHint("ask for %d seconds or less", int(p.cfg.LeaseMax/time.Second)).
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
			WithHint("the sizes are %s", strings.Join(known, ", ")).
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
	if async || sb.Status != dayfly.StatusProvisioning {
		return Outcome[dayfly.Sandbox]{Value: sb, Replayed: true}, nil
	}
	var err error
	if l := p.launching(sb.ID); l != nil {
		sb, err = p.awaitLaunch(ctx, who, sb.ID, l)
	} else { // it was made, or given up, since it was read
		sb, err = p.store.Sandbox(ctx, who.Account.ID, sb.ID)
	}
	if err == nil && sb.Status == dayfly.StatusProvisioning {
		err = dayfly.Errorf(dayfly.CodeUnavailable, "the start of sandbox %s was cut off", sb.ID).
			WithHint("try again in a moment").WithRetryAfter(reaperRetry)
	}
	return Outcome[dayfly.Sandbox]{Value: sb, Replayed: true}, err
}

// launching gives the creation of a sandbox that is under way, or nil.
func (p *Plane) launching(id string) *launch {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.launches[id]
}

// announce makes the launch of a sandbox known. It has a context of its own, and no more time than its lease.
func (p *Plane) announce(sb dayfly.Sandbox) *launch {
	ctx, cancel := context.WithTimeout(p.life, min(p.cfg.Provision, sb.Lease.Granted()))
	l := &launch{ctx: ctx, cancel: cancel, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.launches[sb.ID] = l
	return l
}

// withdraw ends a launch, whatever became of it.
func (p *Plane) withdraw(id string, l *launch) {
	l.cancel()
	p.mu.Lock()
	delete(p.launches, id)
	p.mu.Unlock()
	close(l.done)
}

// launch makes the machine and records the outcome.
func (p *Plane) launch(l *launch, sb dayfly.Sandbox, im dayfly.Image) {
	defer p.withdraw(sb.ID, l)
	if l.err = p.start(l.ctx, sb, im); l.err != nil {
		p.launchFailed(sb, l.err)
	}
}

// start makes the machine and records it as running, unless its end was asked for meanwhile.
func (p *Plane) start(ctx context.Context, sb dayfly.Sandbox, im dayfly.Image) error {
	// The record keeps the image from now on; it may have been removed between its choice and the record.
	if _, err := p.store.Image(ctx, im.ID); dayfly.ErrorCode(err) == dayfly.CodeNotFound {
		return dayfly.Errorf(dayfly.CodeUnavailable, "the image %q was replaced at this moment", im.Name).
			WithHint("try again").WithRetryAfter(time.Second).WithCause(err)
	} else if err != nil {
		return fmt.Errorf("look at the image again: %w", err)
	}
	if err := p.node.Create(ctx, sb, im); err != nil {
		return err
	}
	failpoint.Hit("control.create.made")
	moved, err := p.move(dayfly.ActorServer, sb.ID, func(now dayfly.Instant, sb *dayfly.Sandbox) bool {
		if sb.Status != dayfly.StatusProvisioning {
			return false
		}
		sb.Status = dayfly.StatusRunning
		sb.StampReady(now)
		return true
	})
	if err != nil {
		return fmt.Errorf("record %s as running: %w", sb.ID, err)
	}
	if moved.Status.Ended() {
		return goneError(moved) // nobody else looks after the machine
	}
	failpoint.Hit("control.create.running")
	if moved.Status == dayfly.StatusRunning {
		p.meter.Created(p.node.Now().Boot - sb.Lease.Born)
	}
	p.reaper.due(sb.Lease)
	return nil
}

// launchFailed records a failed start once nothing is left of it. A start that was cut off because the server closes stays as
// it is: the next start of the server finds out what became of it.
func (p *Plane) launchFailed(sb dayfly.Sandbox, cause error) {
	if errors.Is(context.Cause(p.life), errClosed) {
		return
	}
	p.log.Error("sandbox did not start", "sandbox", sb.ID, "error", cause)
	ctx, cancel := p.attempt()
	defer cancel()
	if _, err := p.node.Destroy(ctx, sb.ID); err != nil {
		p.log.Error("undo of a failed start; trying again", "sandbox", sb.ID, "error", err)
		if _, err := p.end(dayfly.ActorServer, sb.ID, dayfly.EndStartupFailed); err != nil {
			p.log.Error("record a failed start", "sandbox", sb.ID, "error", err)
		}
		return
	}
	p.abandon(sb.ID)
}

// abandon marks a sandbox of which nothing is left as failed to start, if nothing else ended it before. That frees its
// idempotency key too: the store takes the claim of a sandbox that failed to start for none.
func (p *Plane) abandon(id string) {
	closed := false
	_, err := p.move(dayfly.ActorServer, id, func(now dayfly.Instant, sb *dayfly.Sandbox) bool {
		if closed = sb.Status == dayfly.StatusProvisioning; !closed {
			return false
		}
		sb.Wanted, sb.Status, sb.End = dayfly.StatusDeleted, dayfly.StatusFailed, dayfly.EndStartupFailed
		sb.StampEnded(now)
		return true
	})
	if err != nil {
		p.log.Error("record a failed start", "sandbox", id, "error", err)
	} else if closed {
		p.meter.Ended(dayfly.EndStartupFailed)
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
	switch {
	case l.err == nil || sb.End != "" && sb.End != dayfly.EndStartupFailed:
		return sb, nil // the record tells how it is, or how it was ended
	case errors.Is(context.Cause(p.life), errClosed):
		return sb, errDraining
	}
	if e := dayfly.AsError(l.err); slices.Contains(startCodes, e.Code) {
		return sb, e.WithDetail("sandbox", id)
	}
	return sb, dayfly.Errorf(dayfly.CodeInternal, "the sandbox did not start").
		WithHint("try again; the server's log has the reason under %s", id).WithDetail("sandbox", id).WithCause(l.err)
}

// startCodes are the failures of a start that its creator can do something about.
var startCodes = []dayfly.Code{
	dayfly.CodeInvalid, dayfly.CodeSizeUnavailable, dayfly.CodeNoCapacity, dayfly.CodeUnavailable, dayfly.CodeDiskFull,
}
