package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
)

// ending is one teardown under way. All who want the same sandbox gone wait for the same one.
type ending struct {
	done chan struct{} // closed once the machine is gone and the record says so

	steps []string       // that failed in the last attempt; guarded, as what follows, by Plane.mu
	since dayfly.Instant // of the first attempt that failed
	tries int            // that failed
}

// retryTeardown is how long a failed teardown waits before it is tried again; it doubles up to retryTeardownMax.
const (
	retryTeardown    = 200 * time.Millisecond
	retryTeardownMax = 30 * time.Second
)

// DeleteSandbox ends a sandbox. It is legal in every state and repeatable, and returns once the machine is gone; after
// DeleteWait it returns the record as deleting and the teardown goes on.
func (p *Plane) DeleteSandbox(ctx context.Context, who Principal, id string) (dayfly.Sandbox, error) {
	sb, err := p.Sandbox(ctx, who, id)
	if err != nil || sb.Status.Ended() {
		return sb, err
	}
	e, err := p.end(who.actor(), id, dayfly.EndRequested)
	if err != nil {
		return sb, err
	}
	wait := time.NewTimer(DeleteWait)
	defer wait.Stop()
	select {
	case <-e.done:
	case <-wait.C:
	case <-ctx.Done():
	case <-p.life.Done():
	}
	return p.store.Sandbox(context.WithoutCancel(ctx), who.Account.ID, id)
}

// end records that a sandbox shall be gone and begins its teardown, unless one is under way.
func (p *Plane) end(by dayfly.Actor, id string, reason dayfly.EndReason) (*ending, error) {
	return p.endAs(by, Ending{ID: id, Reason: reason})
}

// endAs is end for what the host found: seen tells when, if it knows.
func (p *Plane) endAs(by dayfly.Actor, seen Ending) (*ending, error) {
	if err := p.recordEnding(by, seen); err != nil {
		return nil, err
	}
	failpoint.Hit("control.end.recorded")
	return p.tearDown(seen.ID), nil
}

// noteEnding is recordEnding for the node, which is about to remove what tells how a sandbox ended.
func (p *Plane) noteEnding(seen Ending) error {
	err := p.recordEnding(dayfly.ActorReconciler, seen)
	if dayfly.ErrorCode(err) == dayfly.CodeNotFound {
		return nil
	}
	return err
}

// recordEnding records that a sandbox shall be gone, unless that is on record, and why and when it ended as far as is known.
func (p *Plane) recordEnding(by dayfly.Actor, seen Ending) error {
	id, reason := seen.ID, seen.Reason
	_, err := p.move(by, id, func(now dayfly.Instant, sb *dayfly.Sandbox) bool {
		if sb.Status.Ended() || sb.Status == dayfly.StatusDeleting {
			return false
		}
		sb.Wanted, sb.Status, sb.End = dayfly.StatusDeleted, dayfly.StatusDeleting, reason
		if at, known := seen.seen(now, *sb); known {
			now = at
		} else if reason == dayfly.EndLeaseExpired && sb.Lease.BootID == now.BootID && sb.Lease.Due(now) {
			now = dayfly.Instant{Wall: now.WallAt(sb.Lease.Deadline), Boot: sb.Lease.Deadline, BootID: now.BootID}
		}
		sb.StampEnded(now) // until the host tells; what crashes in between is not billed beyond this
		return true
	})
	return err
}

// tearDown destroys a machine in the background, trying again until it is gone, and then closes its record.
func (p *Plane) tearDown(id string) *ending {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.endings[id]; e != nil {
		return e
	}
	e := &ending{done: make(chan struct{})}
	l := p.launches[id]
	if p.backgroundLocked(func() { p.carryOut(id, e, l) }) {
		p.endings[id] = e
	} // else the next start of the server goes on
	return e
}

// carryOut destroys a machine and closes its record. l is its creation, if that is still under way, or nil.
func (p *Plane) carryOut(id string, e *ending, l *launch) {
	defer func() {
		p.mu.Lock()
		delete(p.endings, id)
		p.mu.Unlock()
		close(e.done)
	}()
	begun := p.node.Now()
	if l != nil { // still starting: cut it off; it undoes itself
		l.cancel()
		<-l.done
	}
	if p.destroy(id, e) {
		p.meter.Deleted(p.since(begun))
	}
}

// destroy tries until the machine is gone and the record says so, which it tells, or the server closes; a later start then
// goes on. A record whose machine is gone waits for nothing else longer than DeleteWait. What fails meanwhile is noted in e.
func (p *Plane) destroy(id string, e *ending) bool {
	begun := p.node.Now()
	var t teardown
	for pause := retryTeardown; ; pause = min(2*pause, retryTeardownMax) {
		patience := DeleteWait - p.since(begun)
		err := p.destroyOnce(id, &t, patience <= 0)
		if err == nil {
			return true
		}
		p.failing(e, err)
		if patience > 0 && errors.Is(err, ErrLeftover) {
			pause = min(pause, patience)
		}
		p.log.Error("teardown of a sandbox; trying again", "sandbox", id, "after", pause, "error", err)
		p.sweepSoon()
		retry := time.NewTimer(pause)
		select {
		case <-retry.C:
		case <-p.life.Done():
			retry.Stop()
			return false
		}
	}
}

// teardown is how far the attempts to destroy a machine have come.
type teardown struct {
	ended   *Ending // how it ended, as seen when it was gone first
	cleared bool    // nothing of it is left
}

// destroyOnce is one attempt. late closes the record though something of the dead machine is left.
func (p *Plane) destroyOnce(id string, t *teardown, late bool) error {
	var err error
	if !t.cleared {
		ctx, cancel := p.attempt()
		defer cancel()
		var e Ending
		e, err = p.node.Destroy(ctx, id)
		if err != nil && !errors.Is(err, ErrLeftover) {
			return err
		}
		if t.ended == nil {
			t.ended = &e
		}
		if t.cleared = err == nil; t.cleared {
			failpoint.Hit("control.end.gone")
		} else if !late {
			return err
		}
	}
	if closeErr := p.closeRecord(*t.ended); closeErr != nil {
		err = errors.Join(err, &StepError{"record the end", closeErr})
	}
	return err
}

// attempt bounds one try to destroy a machine. It runs on while the plane closes, for closeGrace.
func (p *Plane) attempt() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
	stop := context.AfterFunc(p.life, func() {
		late := time.NewTimer(closeGrace)
		defer late.Stop()
		select {
		case <-late.C:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, func() { stop(); cancel() }
}

// closeRecord writes how a sandbox ended. A reason that was recorded before (requested) stays; the host's reason fills in
// otherwise. A record that is not there, or closed already, is no error.
func (p *Plane) closeRecord(ended Ending) error {
	closed := false
	sb, err := p.move(dayfly.ActorHost, ended.ID, func(now dayfly.Instant, sb *dayfly.Sandbox) bool {
		if closed = !sb.Status.Ended(); !closed {
			return false
		}
		sb.End = cmp.Or(sb.End, ended.Reason, dayfly.EndCrashed)
		sb.Wanted, sb.Status = dayfly.StatusDeleted, sb.End.Status()
		if at, known := ended.seen(now, *sb); known {
			sb.StampEnded(at)
		} else if sb.Times.EndedAt.IsZero() { // else it is when the end was asked for
			sb.StampEnded(now)
		}
		return true
	})
	failpoint.Hit("control.end.closed")
	if err != nil && dayfly.ErrorCode(err) != dayfly.CodeNotFound {
		return fmt.Errorf("record the end of %s: %w", ended.ID, err)
	}
	if err == nil && closed {
		p.metered(sb, p.node.Now())
	}
	return nil
}

// seen is when the host saw a sandbox end; known is false when it did not, or tells a time before the sandbox was made.
func (e Ending) seen(now dayfly.Instant, sb dayfly.Sandbox) (at dayfly.Instant, known bool) {
	if e.At.IsZero() {
		return at, false
	}
	at = dayfly.Instant{Wall: e.At, Boot: e.Boot, BootID: now.BootID}
	if sb.Lease.BootID != now.BootID { // it ended with its boot, so the wall clock is all there is
		return at, !e.At.Before(sb.Times.CreatedAt)
	}
	if e.Boot == 0 {
		at.Boot = now.Boot + e.At.Sub(now.Wall)
	}
	return at, at.Boot >= sb.Lease.Born
}

// watchEndings closes the records of machines that ended by themselves and has the node remove what is left of them.
func (p *Plane) watchEndings(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case ended := <-p.node.Endings():
			if err := p.closeRecord(ended); err != nil {
				p.log.Error("machine ended by itself; its teardown records it", "error", err)
			}
			p.tearDown(ended.ID)
		}
	}
}
