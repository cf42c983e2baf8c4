package node

import (
	"context"
	"errors"
	"fmt"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
)

// pausing is what a box knows of its machine being frozen. The host's word is final; this is what keeps the node from talking
// into the machine meanwhile.
type pausing struct {
	turn    chan struct{} // capacity 1: holding the element is being the only one to freeze, thaw or look
	resumed chan struct{} // closed when the machine goes on; nil while it is not paused; guarded by Box.mu
	unread  bool          // its commands have not been listed since a restart of the node; guarded by Box.mu
}

// Pause implements control.Node.
func (m *Manager) Pause(ctx context.Context, id string) error {
	b, p, leave, err := m.toPause(ctx, id)
	if err != nil {
		return err
	}
	defer leave()
	failpoint.Hit("node.pause.begin")
	b.setPaused() // first, so that nobody asks a machine that cannot answer
	ctx, cancel := context.WithTimeout(ctx, dayfly.PauseMax)
	defer cancel()
	if err := p.Pause(ctx); err != nil {
		return b.unpause(p, err)
	}
	failpoint.Hit("node.pause.frozen")
	if !b.lives() {
		return gone(id)
	}
	return nil
}

// unpause undoes a pause that failed, and says why it did.
func (b *Box) unpause(p dayfly.Pauser, cause error) error {
	ctx, cancel := context.WithTimeout(context.Background(), dayfly.PauseMax)
	defer cancel()
	if err := p.Resume(ctx); err != nil && b.lives() {
		b.m.opt.Log.Error("thaw a sandbox that could not be frozen", "sandbox", b.id, "error", err)
	}
	if err := b.seePaused(p); err != nil && b.lives() {
		return errors.Join(cause, err)
	}
	if !b.lives() {
		return gone(b.id).WithCause(cause)
	}
	return dayfly.Errorf(dayfly.CodeUnavailable, "something in the sandbox did not stop within %s; it was not paused", dayfly.PauseMax).
		WithHint("try again when it writes less to its disk").WithRetryAfter(endedWait).WithCause(cause)
}

// Resume implements control.Node.
func (m *Manager) Resume(ctx context.Context, id string) error {
	b, p, leave, err := m.toPause(ctx, id)
	if err != nil {
		return err
	}
	defer leave()
	failpoint.Hit("node.resume.begin")
	ctx, cancel := context.WithTimeout(ctx, dayfly.PauseMax)
	defer cancel()
	if err := p.Resume(ctx); err != nil {
		if !b.lives() {
			return gone(id).WithCause(err)
		}
		return errors.Join(fmt.Errorf("resume %s: %w", id, err), b.seePaused(p))
	}
	failpoint.Hit("node.resume.thawed")
	b.setResumed()
	if !b.lives() {
		return gone(id)
	}
	return nil
}

// Paused implements control.Node.
func (m *Manager) Paused(ctx context.Context, id string) (bool, error) {
	b := m.box(id)
	if b == nil {
		return false, gone(id)
	}
	if _, can := b.inst.(dayfly.Pauser); !can {
		return false, nil
	}
	_, p, leave, err := m.toPause(ctx, id)
	if err != nil {
		return false, err
	}
	defer leave()
	if err := b.seePaused(p); err != nil {
		return false, err
	}
	return b.paused(), nil
}

// toPause gives a machine that lives and can be paused, to the caller alone until leave is called. It does not keep the machine from
// being destroyed: that waits for nobody here.
func (m *Manager) toPause(ctx context.Context, id string) (b *Box, p dayfly.Pauser, leave func(), err error) {
	if b = m.box(id); b == nil {
		return nil, nil, nil, gone(id)
	}
	p, can := b.inst.(dayfly.Pauser)
	if !can {
		return nil, nil, nil, dayfly.Errorf(dayfly.CodeInvalid, "a sandbox of this isolation cannot be paused")
	}
	select {
	case b.pausing.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, nil, fmt.Errorf("wait until nobody else pauses or resumes %s: %w", id, ctx.Err())
	}
	if !b.lives() {
		<-b.pausing.turn
		return nil, nil, nil, gone(id)
	}
	return b, p, func() { <-b.pausing.turn }, nil
}

// seePaused takes over whether the host has the machine frozen.
func (b *Box) seePaused(p dayfly.Pauser) error {
	frozen, err := p.Paused()
	if err != nil {
		return fmt.Errorf("look whether %s is paused: %w", b.id, err)
	}
	if frozen {
		b.setPaused()
	} else {
		b.setResumed()
	}
	return nil
}

func (b *Box) paused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pausing.resumed != nil
}

func (b *Box) setPaused() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pausing.resumed == nil {
		b.pausing.resumed = make(chan struct{})
	}
}

// setResumed has everything go on that waited for the machine.
func (b *Box) setResumed() {
	b.mu.Lock()
	resumed, unread := b.pausing.resumed, b.pausing.unread
	b.pausing.resumed, b.pausing.unread = nil, false
	b.mu.Unlock()
	if resumed != nil {
		close(resumed)
	}
	if unread {
		b.readoptSoon()
	}
}

// awaitResumed waits while the machine is paused. CodeGone: it ended.
func (b *Box) awaitResumed(ctx context.Context) error {
	for {
		b.mu.Lock()
		resumed := b.pausing.resumed
		b.mu.Unlock()
		if resumed == nil {
			return nil
		}
		select {
		case <-resumed:
		case <-b.inst.Done():
			return gone(b.id)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// refusedAsPaused tells that a call was not made because the machine was paused.
func refusedAsPaused(err error) bool { return dayfly.ErrorCode(err) == dayfly.CodeNotRunning }

func errPaused(id string) *dayfly.Error {
	return dayfly.Errorf(dayfly.CodeNotRunning, "sandbox %s is paused", id).
		WithHint("resume it first").WithDetail("status", string(dayfly.StatusPaused))
}
