package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// session is the user's terminal attached to a command's.
type session struct {
	app      *app
	sandbox  *sdk.Sandbox
	process  string
	terminal *terminal
	keys     *detachKeys
	from     *sdk.Offsets
	ended    syscall.Signal // what ended the session from outside, or 0
}

// Waits and limits of a session.
const (
	// attachPatience is how long a lost connection is taken up again: a server's restart fits in, and a person does not wait longer.
	attachPatience = 20 * time.Second
	detachPause    = time.Second     // a key of the sequence must follow within
	hangUpPatience = 2 * time.Second // for a command's end after the session's own was asked for
	hangUpAgain    = 500 * time.Millisecond
	leaveMax       = time.Second // for output that a stopped terminal does not take
	typedMax       = 256 << 10   // bytes typed that the command has not read
)

// ends of a session beside the command's own.
var (
	errDetached = errors.New("detached")
	errHungUp   = errors.New("hung up")
)

// run attaches until the command ends, the user detaches, or the session is ended from outside. The error is Dayfly's own failure,
// or carries the command's exit code.
func (s *session) run(ctx context.Context) error {
	changes := make(chan os.Signal, 1) // one is enough: the size is read when it is taken
	signal.Notify(changes, syscall.SIGWINCH, syscall.SIGCONT)
	defer signal.Stop(changes)
	size := s.terminal.size() // what changes from here on is told
	a, err := s.sandbox.Attach(ctx, s.process, sdk.AttachOptions{From: s.from, Size: &size, Patience: attachPatience})
	if err != nil {
		return err
	}
	defer a.Close()
	if err := s.terminal.raw(); err != nil {
		return err
	}
	defer s.terminal.restore()
	defer beforeExit(ctx, s.terminal.restore)()

	exit, err := s.follow(ctx, a, changes)
	s.terminal.restore()
	return s.outcome(exit, err)
}

// outcome tells how it ended, on a terminal that is the user's again.
func (s *session) outcome(exit *sdk.Exit, err error) error {
	switch {
	case exit != nil:
		s.app.noteExit(exit)
		return quiet(exit.ExitCode)
	case errors.Is(err, errDetached):
		s.app.note("detached; the command goes on. Come back with: %s", s.comeBack())
		return nil
	case errors.Is(err, errHungUp):
		s.app.note("the command may still run: see `dayfly ps %s`, come back with `%s`", s.sandbox.ID, s.comeBack())
		return quiet(exitSignal + int(s.ended))
	case sdk.ErrorCode(err) == sdk.CodeUnreachable:
		return &failure{code: exitFailed, text: err.Error(), hint: "the command may still run: come back with " + s.comeBack()}
	}
	return err
}

func (s *session) comeBack() string { return "dayfly attach " + s.sandbox.ID + " " + s.process }

// follow moves bytes both ways until it is over. All that it starts has ended when it returns, but for output that the user's
// stopped terminal does not take. changes tells when the user's terminal may have another size or other modes.
func (s *session) follow(ctx context.Context, a *sdk.Attachment, changes <-chan os.Signal) (*sdk.Exit, error) {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	over := make(chan error, 2) // of the output and of the keyboard; the first says how it ended
	start := func(work func()) {
		wg.Go(func() {
			defer s.terminal.guard()
			work()
		})
	}
	shown := make(chan *sdk.Exit, 1)
	go func() { // not waited for beyond leaveMax: it may write to a terminal that takes nothing
		defer s.terminal.guard()
		exit, err := s.show(a)
		shown <- exit
		over <- err
	}()
	start(func() { s.followSize(running, a, changes) })
	start(func() { s.typing(running, a, over) })
	quits := make(chan os.Signal, 1)
	signal.Notify(quits, syscall.SIGQUIT) // which would end this program with the terminal as it is
	defer signal.Stop(quits)
	err := errHungUp
	select {
	case err = <-over:
		s.ended = syscall.SIGHUP // should it be the terminal that went away
	case <-quits:
		s.ended = syscall.SIGQUIT
	case <-ctx.Done():
		s.ended = signalOf(ctx)
	}
	if errors.Is(err, errHungUp) {
		s.hangUp(running, over)
	}
	_ = a.Close()
	return s.last(shown), err
}

// hangUp passes on what ended the session, and waits a little for the command's end. A hang-up is told again: a shell that draws its
// prompt at that moment, because it was told a size, notes the first and then waits for a key (bash does); a terminal that is closed
// would end that wait, but this one stays for those who come back.
func (s *session) hangUp(ctx context.Context, over <-chan error) {
	call, stop := context.WithTimeout(ctx, hangUpPatience)
	defer stop()
	var again <-chan time.Time // never, but for a hang-up
	if signalName(s.ended) == "HUP" {
		ticker := time.NewTicker(hangUpAgain)
		defer ticker.Stop()
		again = ticker.C
	}
	for s.sandbox.Signal(call, s.process, signalName(s.ended), true) == nil {
		select {
		case <-over:
			return
		case <-call.Done():
			return
		case <-again:
		}
	}
}

// last gives the exit that was shown, if any.
func (s *session) last(shown <-chan *sdk.Exit) *sdk.Exit {
	late := time.NewTimer(leaveMax)
	defer late.Stop()
	select {
	case exit := <-shown:
		return exit
	case <-late.C:
		return nil
	}
}

// show writes the output until the command ends.
func (s *session) show(a *sdk.Attachment) (*sdk.Exit, error) {
	for {
		ev, err := a.Next()
		if err != nil {
			return nil, err
		}
		switch ev.Type {
		case sdk.EventStdout, sdk.EventStderr:
			if _, err := s.terminal.Write(ev.Data); err != nil {
				return nil, &failure{code: exitDayfly, text: "cannot write to the terminal: " + err.Error(), cause: err}
			}
		case sdk.EventDropped:
			s.say("%d bytes of output are no longer kept", ev.Bytes)
		case sdk.EventLost:
			s.say("the connection is lost and being taken up again: %s", ev.Err.Message)
		case sdk.EventAgain:
			s.say("connected again")
		case sdk.EventExit:
			return ev.Exit, nil
		}
	}
}

// say tells something while the terminal is raw.
func (s *session) say(format string, args ...any) {
	_, _ = io.WriteString(s.app.Stderr, "\r\n")
	s.app.note(format, args...)
	_, _ = io.WriteString(s.app.Stderr, "\r")
}

// followSize gives the command's terminal the size of the user's, also after the session was stopped and goes on.
func (s *session) followSize(ctx context.Context, a *sdk.Attachment, changes <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-changes:
			if sig == syscall.SIGCONT {
				_ = s.terminal.raw() // a shell sets its own modes while it has the terminal
			}
			_ = a.Resize(s.terminal.size()) // a broken connection remembers it
		}
	}
}

// typing passes on what is typed until ctx ends. It tells over when the user detaches or the terminal goes away.
func (s *session) typing(ctx context.Context, a *sdk.Attachment, over chan<- error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	typed, pass := make(chan []byte), make(chan []byte)
	gone := make(chan error, 2)
	wg.Go(func() {
		defer s.terminal.guard()
		gone <- s.terminal.keys(ctx, func(p []byte) error {
			select {
			case typed <- p:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	wg.Go(func() {
		defer s.terminal.guard()
		for {
			select {
			case p := <-pass:
				if _, err := a.Write(p); err != nil && sdk.ErrorCode(err) == sdk.CodeCancelled {
					return // any other loses these keys, and the user is told that the connection broke
				}
			case <-ctx.Done():
				return
			}
		}
	})
	if err := s.sortKeys(ctx, typed, pass, gone); err != nil {
		over <- err // before waiting: a write may only end with the attachment
	}
}

// sortKeys looks for the keys that detach and passes on the rest, of which it holds typedMax bytes at most.
func (s *session) sortKeys(ctx context.Context, typed <-chan []byte, pass chan<- []byte, gone <-chan error) error {
	var waiting []byte
	late := time.NewTimer(detachPause)
	defer late.Stop()
	for {
		in, out := typed, pass
		if len(waiting) >= typedMax {
			in = nil
		}
		if len(waiting) == 0 {
			out = nil
		}
		select {
		case p := <-in:
			ready, detach := s.keys.typed(p)
			waiting = append(waiting, ready...)
			if detach {
				return errDetached
			}
			late.Reset(detachPause)
		case out <- waiting:
			waiting = nil
		case <-late.C:
			waiting = append(waiting, s.keys.flush()...)
		case err := <-gone:
			if ctx.Err() == nil && (errors.Is(err, io.EOF) || errors.Is(err, syscall.EIO)) {
				return errHungUp
			}
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

func signalName(sig syscall.Signal) string {
	switch sig {
	case syscall.SIGINT:
		return "INT"
	case syscall.SIGTERM:
		return "TERM"
	case syscall.SIGQUIT:
		return "QUIT"
	}
	return "HUP"
}
