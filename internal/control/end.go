package control

import (
	"context"
	"time"

	"dayfly.dev/dayfly"
)

// ending is one teardown under way. All who want the same sandbox gone wait for the same one.
type ending struct {
	done chan struct{} // closed once the machine is gone and the record says so
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
	e, err := p.end(id, dayfly.EndRequested)
	if err != nil {
		return sb, err
	}
	wait := time.NewTimer(DeleteWait)
	defer wait.Stop()
	select {
	case <-e.done:
	case <-wait.C:
	case <-ctx.Done():
	}
	return p.store.Sandbox(context.WithoutCancel(ctx), who.Account.ID, id)
}

// end records that a sandbox shall be gone and begins its teardown, unless one is under way.
func (p *Plane) end(id string, reason dayfly.EndReason) (*ending, error) {
	_, err := p.move(id, func(_ dayfly.Instant, sb *dayfly.Sandbox) bool {
		if sb.Status.Ended() || sb.Status == dayfly.StatusDeleting {
			return false
		}
		sb.Wanted, sb.Status, sb.End = dayfly.StatusDeleted, dayfly.StatusDeleting, reason
		return true
	})
	if err != nil {
		return nil, err
	}
	return p.teardown(id), nil
}

// teardown destroys a machine in the background, trying again until it is gone, and then closes its record.
func (p *Plane) teardown(id string) *ending {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.endings[id]; e != nil {
		return e
	}
	e := &ending{done: make(chan struct{})}
	p.endings[id] = e
	l := p.launches[id]
	p.work.Go(func() {
		defer func() {
			p.mu.Lock()
			delete(p.endings, id)
			p.mu.Unlock()
			close(e.done)
		}()
		if l != nil { // still starting: cut it off; it undoes itself
			l.cancel()
			<-l.done
		}
		p.destroy(id)
	})
	return e
}

// destroy tries until the machine is gone or the server closes; a later start of the server then goes on.
func (p *Plane) destroy(id string) {
	pause := retryTeardown
	for {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.life), teardownTimeout)
		ended, err := p.node.Destroy(ctx, id)
		cancel()
		if err == nil {
			p.closeRecord(ended)
			return
		}
		p.log.Error("teardown of a sandbox; trying again", "sandbox", id, "after", pause, "error", err)
		select {
		case <-time.After(pause):
			pause = min(2*pause, retryTeardownMax)
		case <-p.life.Done():
			return
		}
	}
}

// closeRecord writes how a sandbox ended. A reason that was recorded before (requested) stays; the host's reason fills in
// otherwise.
func (p *Plane) closeRecord(ended Ending) {
	_, err := p.move(ended.ID, func(now dayfly.Instant, sb *dayfly.Sandbox) bool {
		if sb.Status.Ended() {
			return false
		}
		if sb.End == "" {
			sb.End = ended.Reason
		}
		if sb.End == "" {
			sb.End = dayfly.EndCrashed
		}
		sb.Wanted, sb.Status, sb.Times.EndedAt = dayfly.StatusDeleted, sb.End.Status(), ended.At.UTC()
		if sb.Times.EndedAt.IsZero() || sb.Times.EndedAt.Before(sb.Times.CreatedAt) {
			sb.Times.EndedAt = now.Wall.UTC()
		}
		return true
	})
	if err != nil && dayfly.ErrorCode(err) != dayfly.CodeNotFound {
		p.log.Error("record the end of a sandbox", "sandbox", ended.ID, "error", err)
	}
}

// watchEndings closes the records of machines that ended by themselves and has the node remove what is left of them.
func (p *Plane) watchEndings(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case ended := <-p.node.Endings():
			p.closeRecord(ended)
			p.teardown(ended.ID)
		}
	}
}
