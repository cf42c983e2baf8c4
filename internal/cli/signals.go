package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// interrupted is why a context ended: a signal.
type interrupted struct{ signal syscall.Signal }

// Error implements error.
func (i interrupted) Error() string { return fmt.Sprintf("interrupted (%v)", i.signal) }

// lastActs are what is done before a second signal ends the process at once. Each is quick, or bounds itself.
type lastActs struct {
	mu   sync.Mutex
	next int
	acts map[int]func()
}

type lastActsKey struct{}

// beforeExit has act done should a second signal end the process, until remove is called. Without such a context it does nothing.
func beforeExit(ctx context.Context, act func()) (remove func()) {
	l, ok := ctx.Value(lastActsKey{}).(*lastActs)
	if !ok {
		return func() {}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	id := l.next
	l.next++
	l.acts[id] = act
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.acts, id)
	}
}

func (l *lastActs) run() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, act := range l.acts {
		act()
	}
}

// interrupts ends the context at the first signal and the process at the second. A write to a pipe that nobody reads fails
// instead of ending the process, so that what was begun is cleaned up. stop waits for its goroutine.
func interrupts(parent context.Context) (ctx context.Context, stop func()) {
	last := &lastActs{acts: map[int]func(){}}
	ctx, cancel := context.WithCancelCause(context.WithValue(parent, lastActsKey{}, last))
	signals := make(chan os.Signal, 2)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) { // as nohup and a shell's background jobs want it
			signal.Notify(signals, s)
		}
	}
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 1; ; n++ {
			select {
			case s := <-signals:
				number := s.(syscall.Signal)
				if n > 1 {
					last.run()
					os.Exit(exitSignal + int(number))
				}
				cancel(interrupted{number})
			case <-quit:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		signal.Stop(pipes)
		close(quit)
		<-done
		cancel(nil)
	}
}

// signalOf is the signal that ended ctx, or 0.
func signalOf(ctx context.Context) syscall.Signal {
	var i interrupted
	if errors.As(context.Cause(ctx), &i) {
		return i.signal
	}
	return 0
}
