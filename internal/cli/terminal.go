package cli

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// terminal is the user's own terminal. In raw mode every key goes to the command; restore brings it back as it was, and may be
// called any number of times, from any goroutine.
type terminal struct {
	in, out *os.File

	mu    sync.Mutex
	saved *term.State // as it was, or nil while it is not raw
	modes screenModes // what the command has switched on
}

// terminal gives the user's terminal, whose input must be one.
func (a *app) terminal() (*terminal, error) {
	in, ok := a.Stdin.(*os.File)
	if !ok || !isTerminal(in) {
		return nil, usagef("-t wants a terminal, and standard input is none").withHint("leave -t out; -i alone passes input of any kind on")
	}
	out, ok := a.Stdout.(*os.File)
	if !ok {
		return nil, usagef("-t wants a terminal, and standard output is none").withHint("leave -t out")
	}
	return &terminal{in: in, out: out}, nil
}

// The size of a terminal that does not know its own, and the largest that the server takes.
const (
	terminalCols    = 80
	terminalRows    = 24
	terminalSideMax = 1000
)

// size is the terminal's size now.
func (t *terminal) size() sdk.TerminalSize {
	for _, f := range []*os.File{t.out, t.in} {
		if cols, rows, err := term.GetSize(int(f.Fd())); err == nil && cols > 0 && rows > 0 {
			return sdk.TerminalSize{Cols: min(cols, terminalSideMax), Rows: min(rows, terminalSideMax)}
		}
	}
	return sdk.TerminalSize{Cols: terminalCols, Rows: terminalRows}
}

// raw puts the terminal into raw mode, also again after somebody else changed it.
func (t *terminal) raw() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	state, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return failf("cannot set up the terminal: %v", err)
	}
	if t.saved == nil {
		t.saved = state
	}
	return nil
}

// restore brings the terminal back as it was, and switches off what the command left on.
func (t *terminal) restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.saved == nil {
		return
	}
	if undo := t.modes.undo(); undo != "" && isTerminal(t.out) {
		_, _ = t.out.WriteString(undo) // best effort: a terminal that is gone needs nothing
	}
	_ = term.Restore(int(t.in.Fd()), t.saved)
	t.saved = nil
}

// Write implements io.Writer with the command's output, whose modes are remembered.
func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.modes.see(p)
	t.mu.Unlock()
	return t.out.Write(p)
}

// guard is deferred in every goroutine of a session: a panic must not leave a raw terminal behind.
func (t *terminal) guard() {
	if p := recover(); p != nil {
		t.restore()
		panic(p)
	}
}

// errKeysEnded is that the keyboard was closed by its reader's own side.
var errKeysEnded = errors.New("the keyboard is no longer read")

// keyBuffer is how much is read of a keyboard at once, in bytes.
const keyBuffer = 4096

// keys reads what is typed until ctx ends, so that no key is swallowed that belongs to the shell again.
func (t *terminal) keys(ctx context.Context, got func([]byte) error) error {
	wakeOut, wakeIn, err := os.Pipe()
	if err != nil {
		return err
	}
	defer wakeOut.Close()
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { _ = wakeIn.Close(); close(woken) })
	defer func() {
		if stop() {
			_ = wakeIn.Close()
			return
		}
		<-woken
	}()
	buf := make([]byte, keyBuffer)
	fds := []unix.PollFd{{Fd: int32(t.in.Fd()), Events: unix.POLLIN}, {Fd: int32(wakeOut.Fd()), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if ctx.Err() != nil {
			return errKeysEnded
		}
		if fds[0].Revents == 0 {
			continue
		}
		n, err := t.in.Read(buf)
		if err != nil {
			return err
		}
		if err := got(slices.Clone(buf[:n])); err != nil {
			return err
		}
	}
}

// knownTerminals are the kinds of terminal that a sandbox of the base image knows. Others are close to the first.
var knownTerminals = []string{"xterm-256color", "xterm", "xterm-color", "screen", "screen-256color", "tmux", "tmux-256color", "linux",
	"vt100", "vt102", "vt220", "rxvt", "rxvt-unicode", "rxvt-unicode-256color", "ansi", "dumb"}

// terminalEnv is the environment of a command on the user's terminal. What is set already is kept.
func (a *app) terminalEnv(env map[string]string) map[string]string {
	if env == nil {
		env = map[string]string{}
	}
	kind := a.Env("TERM")
	if !slices.Contains(knownTerminals, kind) {
		kind = knownTerminals[0]
	}
	for name, value := range map[string]string{"TERM": kind, "COLORTERM": a.Env("COLORTERM")} {
		if _, set := env[name]; !set && value != "" && strings.ToValidUTF8(value, "") == value {
			env[name] = value
		}
	}
	return env
}
