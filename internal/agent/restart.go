package agent

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// How long a process that failed rests before it is started again: the first rest, doubled for each further one up to the last.
const (
	restFirst = 100 * time.Millisecond
	restMost  = 10 * time.Second
)

// restarts is how a process is started again after it failed. It needs the process's lock.
type restarts struct {
	spec     *dayfly.ProcessSpec // what is started again; nil: nothing
	onFail   bool
	most     int
	done     int
	resting  bool          // between two tries
	asked    bool          // its end was asked for, so no try follows
	last     unix.Signal   // that was sent to it, or 0
	deadline time.Time     // of all tries; zero means none
	wake     chan struct{} // closed when the rest is over because no try follows
}

func newRestarts(spec dayfly.ProcessSpec) restarts {
	if spec.Restart != dayfly.RestartOnFailure {
		return restarts{}
	}
	again := spec // not spec itself, which would then be allocated for every process
	r := restarts{spec: &again, onFail: true, most: spec.Restarts, wake: make(chan struct{})}
	if r.most == 0 {
		r.most = dayfly.RestartsDefault
	}
	return r
}

func (r *restarts) policy() dayfly.Restart {
	if r.onFail {
		return dayfly.RestartOnFailure
	}
	return dayfly.RestartNever
}

// wakeLocked ends a rest.
func (r *restarts) wakeLocked() {
	if r.wake != nil {
		close(r.wake)
		r.wake = nil
	}
}

// rest is how long the process rests now.
func (r *restarts) rest() time.Duration {
	d := restFirst
	for i := 0; i < r.done && d < restMost; i++ {
		d *= 2
	}
	return min(d, restMost)
}

// againLocked tells whether another try follows the one that has just ended. An end that was asked for is none that calls for
// one: a signal that ends processes was sent, it died of the very signal that was sent, or its time was over.
func (p *process) againLocked() bool {
	r := &p.again
	code := p.exitCode()
	switch {
	case r.spec == nil || code == 0 || r.done >= r.most || r.asked || p.timedOut:
		return false
	case r.last != 0 && code == signalBase+int(r.last):
		return false
	case !r.deadline.IsZero() && !time.Now().Before(r.deadline):
		p.timedOut = true
		return false
	}
	return true
}

// sent notes a signal that somebody asked for.
func (p *process) sent(sig unix.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.again.last = sig
	switch sig {
	case unix.SIGTERM, unix.SIGKILL, unix.SIGINT, unix.SIGQUIT, unix.SIGABRT:
		p.again.asked = true
		p.again.wakeLocked()
	}
}

// tryAgain ends what the failed try left, rests and begins the next try.
func (p *process) tryAgain() {
	_ = p.killTree()
	p.dropLeaf()
	p.mu.Lock()
	rest, wake := time.NewTimer(p.again.rest()), p.again.wake
	p.mu.Unlock()
	defer rest.Stop()
	if wake != nil {
		select {
		case <-rest.C:
		case <-wake:
		}
	}
	p.gate <- struct{}{}
	defer func() { <-p.gate }()
	p.mu.Lock()
	if p.again.asked || p.timedOut {
		p.again.resting = false
		p.finishLocked()
		p.mu.Unlock()
		return
	}
	p.again.done++
	spec := *p.again.spec
	spec.Terminal = p.size
	p.mu.Unlock()
	if err := p.begin(context.Background(), spec, nil /* its input is used up */); err != nil {
		p.failed(failure{codeNoExec, dayfly.AsError(err).Message})
	}
}
