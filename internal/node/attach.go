package node

import (
	"context"
	"errors"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agentwire"
)

// attachment counts the clients of one running process, so that it can be ended when the last one has left.
type attachment struct {
	clients int
	policy  dayfly.OnDisconnect
	timer   *time.Timer // armed while nobody is attached under the policy grace, else nil
	left    int         // how often the last client left; a timer counts for one of them
}

func (a *attachment) stop() {
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
}

// attach notes a client of a process.
func (b *Box) attach(id string, policy dayfly.OnDisconnect) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.processes[id]
	if a == nil {
		a = &attachment{policy: policy}
		b.processes[id] = a
	}
	a.stop()
	a.clients++
}

// detach notes that a client is done with a process. finished: it saw the end, or that there never was a process, so nothing
// is left to decide. Otherwise the last client's leaving has the process's policy decide.
func (b *Box) detach(id string, finished bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.processes[id]
	if a == nil {
		return
	}
	a.clients--
	if finished || b.released {
		a.stop()
		delete(b.processes, id)
		return
	}
	if a.clients > 0 {
		return
	}
	switch a.policy {
	case dayfly.DisconnectContinue:
		delete(b.processes, id)
	case dayfly.DisconnectKill:
		delete(b.processes, id)
		b.m.background(func() { b.killLeft(id) })
	default:
		a.left++
		left := a.left
		a.timer = time.AfterFunc(b.m.opt.DisconnectGrace, func() {
			b.m.background(func() { b.killIfLeft(id, left) })
		})
	}
}

// killIfLeft ends a process that nobody came back to since its last client left for the left-th time.
func (b *Box) killIfLeft(id string, left int) {
	b.mu.Lock()
	a := b.processes[id]
	nobody := a != nil && a.clients == 0 && a.left == left
	if nobody {
		delete(b.processes, id)
	}
	b.mu.Unlock()
	if nobody {
		b.killLeft(id)
	}
}

// Bounds of ending a process that its clients left.
const (
	killTimeout = 10 * time.Second // one attempt
	killTries   = 3                // a lost session is made anew
	killAgain   = time.Second      // before a process that nobody knows is looked for again
)

func (b *Box) killLeft(id string) {
	var err error
	for tries := 0; tries < killTries; {
		if b.awaitResumed(b.m.life) != nil {
			return
		}
		ctx, cancel := context.WithTimeout(b.m.life, killTimeout)
		err = b.Signal(ctx, id, "KILL", true /* tree */)
		cancel()
		if dayfly.ErrorCode(err) == dayfly.CodeNotFound { // its start may be on its way, on another connection
			if tries++; tries == killTries {
				return
			}
			select {
			case <-time.After(killAgain):
				continue
			case <-b.m.life.Done():
				return
			}
		}
		if err == nil || b.m.life.Err() != nil || unstarted(err) && !refusedAsPaused(err) {
			return
		}
		if !refusedAsPaused(err) {
			tries++
		}
	}
	b.m.opt.Log.Error("end a process whose client left", "sandbox", b.id, "process", id, "error", err)
}

// unstarted tells that an error is an answer: the agent refused, there is no such process, or the machine has ended. After any
// other error a process may run.
func unstarted(err error) bool {
	var said *dayfly.Error
	return errors.As(err, &said) && !errors.Is(err, agentwire.ErrLost) &&
		said.Code != dayfly.CodeInternal && said.Code != dayfly.CodeUnavailable
}

// readoptSoon is readopt in the background: an agent that hangs must not hold up the start.
func (b *Box) readoptSoon() {
	b.m.background(func() {
		err := b.readopt(b.m.life)
		switch {
		case err == nil || b.m.life.Err() != nil || dayfly.ErrorCode(err) == dayfly.CodeGone:
		case refusedAsPaused(err):
			b.readAtResume()
		default:
			b.m.opt.Log.Error("list commands of a recovered sandbox", "sandbox", b.id, "error", err)
		}
	})
}

// readAtResume has readopt wait until the machine is resumed, which it may have been meanwhile.
func (b *Box) readAtResume() {
	b.mu.Lock()
	late := b.pausing.resumed == nil
	b.pausing.unread = !late
	b.mu.Unlock()
	if late {
		b.readoptSoon()
	}
}

// readopt counts a restart of the server as the leaving of every client, from now on.
func (b *Box) readopt(ctx context.Context) error {
	procs, err := b.Processes(ctx)
	if err != nil {
		return err
	}
	for _, p := range procs {
		if p.Status == dayfly.ProcessRunning && p.OnDisconnect != dayfly.DisconnectContinue {
			b.attach(p.ID, p.OnDisconnect)
			b.detach(p.ID, false /* finished */)
		}
	}
	return nil
}
