package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// interrupted is why a context ended: a signal.
type interrupted struct{ signal syscall.Signal }

// Error implements error.
func (i interrupted) Error() string { return fmt.Sprintf("interrupted (%v)", i.signal) }

// interrupts ends the context at the first signal and the process at the second. A write to a pipe that nobody reads fails
// instead of ending the process, so that what was begun is cleaned up. stop waits for its goroutine.
func interrupts(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
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
