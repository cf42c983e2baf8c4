package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
)

// sweepPasses bounds the passes that one call of Reconcile or Repair makes.
const sweepPasses = 100

// Finding is one object on the host that nothing owned.
type Finding struct {
	Kind    string // of few words, like "disk"
	Name    string // where it is on the host
	Sandbox string // whose it was
	Why     string // it was a finding, a phrase
	Done    string // about it, a phrase
	Failed  bool   // it could not be removed, and will be tried again
}

// Swept is what one pass over the host found and did.
type Swept struct {
	Findings []Finding
	Running  []dayfly.Sandbox // alive under a valid lease, and without a record or not held before: as of Recovery
	Ended    []Ending         // of the known ones: running by their records, but not on the host
	Left     int              // sandboxes whose leftovers wait for the next pass
	Stopped  string           // why the pass removed nothing, or empty
}

// sweep has the node remove leftovers and the store forget what is old, until ctx ends: every sweepEvery, and when something
// happened that leaves leftovers. It looks at all live records too, for what the reaper was not told of.
func (p *Plane) sweep(ctx context.Context) {
	next := time.NewTimer(sweepEvery)
	defer next.Stop()
	for {
		if err := p.Sweep(ctx, p.Now()); err != nil && ctx.Err() == nil {
			p.log.Error("sweep", "error", err)
		}
		p.reaper.reconcile(ctx)
		next.Reset(p.sweepPause())
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		case <-p.wake:
		case <-p.cfg.Wake:
		}
	}
}

// sweepPause is how long the next pass may wait: not long where one left some for it.
func (p *Plane) sweepPause() time.Duration {
	p.sweeping.Lock()
	defer p.sweeping.Unlock()
	if p.left > 0 {
		return sweepNext
	}
	return sweepEvery
}

// sweepSoon has a pass made before the next one is due.
func (p *Plane) sweepSoon() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Sweep is one bounded pass: leftovers of dead machines, images that lost their name, ended records past EndedKept, idempotency
// keys past their time. It does every step and joins the errors.
func (p *Plane) Sweep(ctx context.Context, now dayfly.Instant) error {
	var errs []error
	step := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	_, err := p.sweepNode(ctx, false)
	step("sweep the node", err)
	failpoint.Hit("control.sweep.node")
	step("sweep images", p.sweepImages(ctx))
	_, err = p.store.PurgeSandboxes(ctx, now.Wall.Add(-EndedKept), purgeBatch)
	step("purge sandboxes", err)
	_, err = p.store.PurgeRequests(ctx, now.Wall.Add(-dayfly.RequestKept), purgeBatch)
	step("purge requests", err)
	step("purge events", p.purgeEvents(ctx, now))
	return errors.Join(errs...)
}

// Reconcile has the node swept now, pass after pass until nothing is left to do, whatever part of the living would go: an
// operator has looked. Admins only.
func (p *Plane) Reconcile(ctx context.Context, who Principal) (Swept, error) {
	if err := mustAdmin(who, true); err != nil {
		return Swept{}, err
	}
	return p.sweepAll(ctx)
}

// Repair does what a start does, and then what Reconcile does, for when no server runs. It takes no requests and returns once
// what it began is done. Close must be called after.
func (p *Plane) Repair(ctx context.Context) (Swept, error) {
	found, err := p.recover(ctx)
	if err != nil {
		return Swept{}, err
	}
	all, err := p.sweepAll(ctx)
	all.Findings = append(found, all.Findings...)
	return all, errors.Join(err, p.settle(ctx))
}

func (p *Plane) sweepAll(ctx context.Context) (Swept, error) {
	var all Swept
	for range sweepPasses {
		one, err := p.sweepNode(ctx, true /* an operator asks */)
		all.Findings = append(all.Findings, one.Findings...)
		all.Ended = append(all.Ended, one.Ended...)
		all.Left, all.Stopped = one.Left, one.Stopped
		if err != nil || one.Left == 0 {
			return all, err
		}
	}
	return all, nil
}

// settle waits until no teardown is under way.
func (p *Plane) settle(ctx context.Context) error {
	for {
		var one *ending
		p.mu.Lock()
		for _, one = range p.endings {
			break
		}
		p.mu.Unlock()
		if one == nil {
			return nil
		}
		select {
		case <-one.done:
		case <-ctx.Done():
			return fmt.Errorf("wait until ended sandboxes are gone: %w", ctx.Err())
		}
	}
}

// sweepNode has the node make one pass and tells what came of it. Passes never meet.
func (p *Plane) sweepNode(ctx context.Context, force bool) (Swept, error) {
	p.sweeping.Lock()
	defer p.sweeping.Unlock()
	known, err := p.store.LiveSandboxes(ctx) // before the host is listed: what is made in between is nobody's leftover
	if err != nil {
		if ctx.Err() == nil {
			p.tellStopped(ctx, "the records cannot be read")
		}
		return Swept{Stopped: "the records cannot be read"}, fmt.Errorf("read live sandboxes: %w", err)
	}
	swept, err := p.node.Sweep(ctx, known, force, p.noteEnding)
	p.left = swept.Left
	p.tellFound(ctx, swept.Findings)
	if ctx.Err() == nil {
		p.tellStopped(ctx, swept.Stopped)
	}
	errs := []error{err}
	for _, sb := range swept.Running {
		errs = append(errs, p.adoptUnseen(ctx, sb))
	}
	for _, ended := range swept.Ended {
		errs = append(errs, p.endUnseen(ctx, ended))
	}
	for _, sb := range known {
		errs = append(errs, p.seePaused(ctx, sb))
	}
	return swept, errors.Join(errs...)
}

// adoptUnseen gives a machine that a pass found alive its record, unless it has one that says so, or is on its way to it. One that
// was ended on record is ended.
func (p *Plane) adoptUnseen(ctx context.Context, sb dayfly.Sandbox) error {
	rec, err := p.store.Sandbox(ctx, "", sb.ID)
	switch {
	case dayfly.ErrorCode(err) == dayfly.CodeNotFound:
		p.meter.Found(foundUnrecorded)
		p.log.Warn("adopting a machine without a record", "sandbox", sb.ID)
	case err != nil:
		return fmt.Errorf("look for the record of %s: %w", sb.ID, err)
	case !rec.Status.Ended():
		return nil
	}
	return p.adopt(ctx, sb)
}

// endUnseen closes the record of a machine that is not there any more, unless its end is known and under way.
func (p *Plane) endUnseen(ctx context.Context, ended Ending) error {
	sb, err := p.store.Sandbox(ctx, "", ended.ID)
	noted := sb.Status == dayfly.StatusDeleting && sb.End == ended.Reason
	if err != nil || !sb.Status.Up() && !noted {
		return err
	}
	p.meter.Found(foundEnded)
	if err := p.closeRecord(ended); err != nil {
		return err
	}
	p.tearDown(ended.ID)
	return nil
}

// tellFound makes each finding an event of its sandbox's account, or of the installation where nobody knows the sandbox.
func (p *Plane) tellFound(ctx context.Context, found []Finding) {
	accounts := map[string]string{}
	for _, f := range found {
		account, known := accounts[f.Sandbox]
		if !known {
			if sb, err := p.store.Sandbox(ctx, "", f.Sandbox); err == nil {
				account = sb.Account
			}
			accounts[f.Sandbox] = account
		}
		e := dayfly.Event{Account: account, Sandbox: f.Sandbox, Type: dayfly.EventReclaimed, Actor: dayfly.ActorReconciler, Cause: f.Kind,
			Message: f.Why + "; " + f.Done} // where it was on the host is no account's business
		if f.Failed {
			e.Type, e.Account = dayfly.EventNotSwept, "" // an operator's concern
		}
		p.tell(ctx, e)
	}
}

// tellStopped tells once that passes stop, and why, until one does not. Whoever calls it holds sweeping.
func (p *Plane) tellStopped(ctx context.Context, why string) {
	if why != "" && why != p.stopped {
		p.tell(ctx, dayfly.Event{Type: dayfly.EventNotSwept, Actor: dayfly.ActorReconciler, Message: why})
	}
	p.stopped = why
}
