package control

import (
	"context"
	"fmt"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
)

// pauseTimeout bounds what the host may take to pause or resume a machine, and to undo it: twice the node's own bound.
const pauseTimeout = 2*dayfly.PauseMax + 5*time.Second

// PauseSandbox freezes a sandbox: nothing in it runs until it is resumed or ends. Its lease and its bill run on. Pausing one that
// is paused changes nothing. Pauses and resumes of one sandbox happen one after the other; its end waits for none. Once begun, it
// is carried out even if ctx ends. CodeGone: the sandbox has ended; CodeNotRunning: it is still being made; CodeUnavailable: it
// could not be frozen, and goes on.
func (p *Plane) PauseSandbox(ctx context.Context, who Principal, id string) (dayfly.Sandbox, error) {
	return p.pauseOrResume(ctx, who, id, dayfly.StatusPaused)
}

// ResumeSandbox lets a paused sandbox go on. Resuming one that runs changes nothing. Otherwise it is as PauseSandbox.
func (p *Plane) ResumeSandbox(ctx context.Context, who Principal, id string) (dayfly.Sandbox, error) {
	return p.pauseOrResume(ctx, who, id, dayfly.StatusRunning)
}

func (p *Plane) pauseOrResume(ctx context.Context, who Principal, id string, want dayfly.Status) (dayfly.Sandbox, error) {
	leave, err := p.pauses.take(ctx, id)
	if err != nil {
		return dayfly.Sandbox{}, dayfly.Errorf(dayfly.CodeUnavailable, "the request ended before it was its turn; nothing was changed").
			WithCause(err)
	}
	defer leave()
	sb, err := p.Sandbox(ctx, who, id)
	if err != nil {
		return sb, err
	}
	if err := settled(sb); err != nil {
		return sb, err
	}
	failpoint.Hit("control.pause.begin")
	if err := p.haveHost(ctx, id, want); err != nil {
		if dayfly.ErrorCode(err) != dayfly.CodeGone {
			p.sweepSoon() // the host may have done half of it
		}
		return sb, p.gone(ctx, id, err)
	}
	failpoint.Hit("control.pause.done")
	sb, err = p.recordPaused(who.actor(), id, want)
	if err != nil {
		p.sweepSoon()
		return sb, err
	}
	failpoint.Hit("control.pause.recorded")
	return sb, settled(sb) // its end may have been asked for meanwhile
}

// haveHost has the host freeze a machine or let it go on.
func (p *Plane) haveHost(ctx context.Context, id string, want dayfly.Status) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseTimeout)
	defer cancel()
	if want == dayfly.StatusPaused {
		return p.node.Pause(ctx, id)
	}
	return p.node.Resume(ctx, id)
}

// recordPaused records what the host has done: that a sandbox is paused, or running. One that is neither stays as it is.
func (p *Plane) recordPaused(by dayfly.Actor, id string, want dayfly.Status) (dayfly.Sandbox, error) {
	return p.move(by, id, func(_ dayfly.Instant, sb *dayfly.Sandbox) bool {
		if !sb.Status.Up() || sb.Status == want {
			return false
		}
		sb.Status = want
		return true
	})
}

// seePaused makes a record agree with the host on whether the sandbox is paused: a crash may have come between the two, or
// somebody else froze it. One that is being paused or resumed just now is left to that. known is its record as of some time ago.
func (p *Plane) seePaused(ctx context.Context, known dayfly.Sandbox) error {
	if !known.Status.Up() {
		return nil
	}
	leave, ok := p.pauses.tryTake(known.ID)
	if !ok {
		return nil
	}
	defer leave()
	frozen, err := p.node.Paused(ctx, known.ID)
	if dayfly.ErrorCode(err) == dayfly.CodeGone {
		return nil // whoever looks for dead machines tells that
	}
	if err != nil {
		return fmt.Errorf("look whether %s is paused: %w", known.ID, err)
	}
	is := dayfly.StatusRunning
	if frozen {
		is = dayfly.StatusPaused
	}
	if is == known.Status {
		return nil
	}
	sb, err := p.recordPaused(dayfly.ActorReconciler, known.ID, is)
	if err != nil && dayfly.ErrorCode(err) != dayfly.CodeNotFound {
		return fmt.Errorf("record that %s is %s: %w", known.ID, is, err)
	}
	if sb.Status == is {
		p.log.Warn("the host tells whether a sandbox is paused; its record said otherwise", "sandbox", known.ID, "status", is)
	}
	return nil
}

// settled tells why a sandbox cannot be worked on, paused or not, or nil: it is still being made, or it has ended.
func settled(sb dayfly.Sandbox) error {
	switch {
	case sb.Status.Ended() || sb.Status == dayfly.StatusDeleting:
		return goneError(sb)
	case sb.Status == dayfly.StatusProvisioning:
		return dayfly.Errorf(dayfly.CodeNotRunning, "sandbox %s is %s", sb.ID, sb.Status).
			WithHint("wait until it is running").WithDetail("status", string(sb.Status))
	}
	return nil
}
