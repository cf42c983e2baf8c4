package node

import (
	"context"
	"time"

	"dayfly.dev/dayfly"
)

// attachment counts the clients of one running process, so that it can be ended when the last one has left.
type attachment struct {
	clients int
	policy  dayfly.OnDisconnect
	timer   *time.Timer // armed while nobody is attached under the policy grace, else nil
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

// detach notes that a client is done with a process. finished: it saw the end, nothing is left to decide. Otherwise the
// last client's leaving has the process's policy decide.
func (b *Box) detach(id string, finished bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.processes[id]
	if a == nil {
		return
	}
	a.clients--
	if finished {
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
		b.m.work.Go(func() { b.killLeft(id) })
	default:
		a.timer = time.AfterFunc(dayfly.DisconnectGracePeriod, func() { b.killIfLeft(id) })
	}
}

// killIfLeft ends a process that nobody came back to.
func (b *Box) killIfLeft(id string) {
	b.mu.Lock()
	a := b.processes[id]
	left := a != nil && a.clients == 0
	if left {
		delete(b.processes, id)
	}
	b.mu.Unlock()
	if left {
		b.killLeft(id)
	}
}

// killTimeout is how long the end of one process tree may take.
const killTimeout = 10 * time.Second

func (b *Box) killLeft(id string) {
	ctx, cancel := context.WithTimeout(b.m.life, killTimeout)
	defer cancel()
	if err := b.Signal(ctx, id, "KILL", true /* tree */); err != nil && dayfly.ErrorCode(err) == dayfly.CodeInternal {
		b.m.opt.Log.Error("end a process whose client left", "sandbox", b.id, "process", id, "error", err)
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
