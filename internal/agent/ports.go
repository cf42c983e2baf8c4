package agent

import (
	"context"
	"sync"
	"time"

	"dayfly.dev/dayfly"
)

// How the agent waits for a port. The kernel tells nobody when a program begins to listen (docs/adr/0013-await-port.md), so
// one watcher looks for all who wait, and rests longer and longer, but not so long that anybody would notice.
const (
	portRestFirst = 2 * time.Millisecond
	portRestMost  = 25 * time.Millisecond
	portRestShare = 10                     // a rest is at least so many times as long as a look took,
	portRestSlow  = 250 * time.Millisecond // up to this
	portMax       = 65535
)

// portSet has a bit for each TCP port that something listens on.
type portSet [portMax/64 + 1]uint64

func (s *portSet) add(port uint16)      { s[port/64] |= 1 << (port % 64) }
func (s *portSet) has(port uint16) bool { return s[port/64]&(1<<(port%64)) != 0 }

// portWatch looks for listeners while somebody waits for one.
type portWatch struct {
	mu      sync.Mutex
	waiting map[*portWaiter]struct{}
	running bool          // somebody looks
	fresh   chan struct{} // has a token when a waiter has come
}

type portWaiter struct {
	port uint16
	told chan error // gets the answer, once
}

func newPortWatch() *portWatch {
	return &portWatch{waiting: make(map[*portWaiter]struct{}), fresh: make(chan struct{}, 1)}
}

// AwaitPort implements agentwire.Machine.
func (a *Agent) AwaitPort(ctx context.Context, port int) error {
	if port < 1 || port > portMax {
		return dayfly.Errorf(dayfly.CodeInvalid, "a port is a number from 1 to %d", portMax)
	}
	w := &portWaiter{port: uint16(port), told: make(chan error, 1)}
	a.ports.join(w)
	select {
	case err := <-w.told:
		return err
	case <-ctx.Done():
		a.ports.leave(w)
		return ctx.Err()
	}
}

// join adds a waiter; the first one sets the watcher going.
func (p *portWatch) join(w *portWaiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting[w] = struct{}{}
	if !p.running {
		p.running = true
		go p.run()
		return
	}
	select {
	case p.fresh <- struct{}{}:
	default:
	}
}

func (p *portWatch) leave(w *portWaiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, w)
}

// run looks until nobody waits.
func (p *portWatch) run() {
	var eyes portEyes
	defer eyes.close()
	rest := portRestFirst
	timer := time.NewTimer(rest)
	defer timer.Stop()
	for {
		start := time.Now()
		open, err := eyes.look()
		if !p.tell(open, err) {
			return
		}
		timer.Reset(max(rest, min(portRestSlow, portRestShare*time.Since(start))))
		select {
		case <-timer.C:
			rest = min(2*rest, portRestMost)
		case <-p.fresh:
			rest = portRestFirst // at most one look per waiter more
		}
	}
}

// tell answers those whose port is open, or all of them when it cannot be known. false: nobody waits any more, and the watcher
// must end.
func (p *portWatch) tell(open *portSet, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.waiting {
		if err != nil || open.has(w.port) {
			delete(p.waiting, w)
			w.told <- err
		}
	}
	p.running = len(p.waiting) > 0
	return p.running
}
