package api_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// liveProcess is a command in the background, on pipes or on a terminal.
type liveProcess struct {
	m     *deskMachine
	spec  dayfly.ProcessSpec
	cmd   *exec.Cmd
	in    io.WriteCloser
	tty   *os.File // or nil
	begun time.Time
	typed sync.Mutex // held by who writes its input

	mu      sync.Mutex
	changed chan struct{} // closed at every change, and made anew
	out     [2][]byte
	size    *dayfly.TerminalSize
	exit    *dayfly.Exit
}

func (m *deskMachine) liveOne(id string) *liveProcess {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live[id]
}

// stop ends the machine.
func (m *deskMachine) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.ends:
		return
	default:
	}
	close(m.ends)
	for _, p := range m.live {
		_ = p.signal("KILL")
	}
}

func (m *deskMachine) Launch(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.Process, error) {
	argv := spec.Argv
	if spec.Command != "" {
		argv = []string{"bash", "-c", spec.Command}
	}
	p := &liveProcess{m: m, spec: spec, cmd: exec.Command(argv[0], argv[1:]...), begun: time.Now(), changed: make(chan struct{}), size: spec.Terminal}
	p.cmd.Dir = m.root.Name()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, other := range m.live {
		if spec.Name != "" && other.spec.Name == spec.Name && other.record().Exit == nil {
			return dayfly.Process{}, dayfly.Errorf(dayfly.CodeConflict, "a running process has the name %s", spec.Name)
		}
	}
	if err := p.start(stdin); err != nil {
		return dayfly.Process{}, dayfly.Errorf(dayfly.CodeInvalid, "the command cannot be started").WithCause(err)
	}
	m.live[spec.ID] = p
	return p.record(), nil
}

func (p *liveProcess) start(stdin io.Reader) error {
	var copies sync.WaitGroup
	if p.spec.Terminal != nil {
		tty, err := pty.StartWithSize(p.cmd, &pty.Winsize{Cols: uint16(p.size.Cols), Rows: uint16(p.size.Rows)})
		if err != nil {
			return err
		}
		p.tty, p.in = tty, tty
		copies.Go(func() { _, _ = io.Copy(liveOutput{p, 0}, tty) }) // ends in EIO
	} else {
		in, err := p.cmd.StdinPipe()
		if err != nil {
			return err
		}
		p.in = in
		p.cmd.Stdout, p.cmd.Stderr = liveOutput{p, 0}, liveOutput{p, 1}
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := p.cmd.Start(); err != nil {
			return err
		}
	}
	if stdin != nil {
		go func() { _ = p.write(context.Background(), stdin, !p.spec.OpenStdin) }()
	} else if !p.spec.OpenStdin {
		_ = p.in.Close()
	}
	go func() {
		_ = p.cmd.Wait()
		copies.Wait()
		p.ended()
	}()
	return nil
}

func (p *liveProcess) ended() {
	exit := dayfly.Exit{Code: p.cmd.ProcessState.ExitCode(), Duration: time.Since(p.begun)}
	if s := p.cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signaled() {
		exit.Code, exit.Signal = 128+int(s.Signal()), strings.TrimPrefix(unix.SignalName(s.Signal()), "SIG")
	}
	if p.tty != nil {
		_ = p.tty.Close()
	}
	p.change(func() {
		exit.StdoutBytes, exit.StderrBytes = int64(len(p.out[0])), int64(len(p.out[1]))
		p.exit = &exit
	})
}

func (p *liveProcess) change(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
	close(p.changed)
	p.changed = make(chan struct{})
}

// liveOutput keeps what a process writes.
type liveOutput struct {
	p *liveProcess
	n int
}

func (o liveOutput) Write(b []byte) (int, error) {
	o.p.change(func() { o.p.out[o.n] = append(o.p.out[o.n], b...) })
	return len(b), nil
}

func (p *liveProcess) record() dayfly.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := dayfly.Process{ID: p.spec.ID, PID: p.cmd.Process.Pid, Status: dayfly.ProcessRunning, Name: p.spec.Name, Command: p.spec.Command, Terminal: p.size,
		Restart: p.spec.Restart, StartedAgo: time.Since(p.begun), OnDisconnect: p.spec.OnDisconnect, CPU: time.Millisecond, MemoryBytes: 4096, Processes: 1,
		StdoutBytes: int64(len(p.out[0])), StderrBytes: int64(len(p.out[1])), Exit: p.exit}
	if p.exit != nil {
		out.Status, out.Processes, out.MemoryBytes = dayfly.ProcessExited, 0, 0
	}
	return out
}

func (p *liveProcess) await(ctx context.Context) error {
	defer p.m.wait()()
	for {
		p.mu.Lock()
		done, changed := p.exit != nil, p.changed
		p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-p.m.ends:
			return errDeskGone
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *deskMachine) Await(ctx context.Context, id string) (dayfly.Process, error) {
	if p := m.liveOne(id); p != nil {
		if err := p.await(ctx); err != nil {
			return dayfly.Process{}, err
		}
	}
	return m.Process(ctx, id)
}

func (p *liveProcess) signal(name string) error {
	if p.record().Exit != nil {
		return nil
	}
	err := unix.Kill(-p.cmd.Process.Pid, unix.SignalNum("SIG"+name))
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

func (p *liveProcess) write(ctx context.Context, r io.Reader, closeAfter bool) error {
	if p.record().Exit != nil {
		return dayfly.Errorf(dayfly.CodeConflict, "its standard input is closed")
	}
	p.typed.Lock()
	defer p.typed.Unlock()
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(p.in, r)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return dayfly.Errorf(dayfly.CodeConflict, "its standard input is closed").WithCause(err)
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	if closeAfter {
		return p.in.Close()
	}
	return nil
}

func (m *deskMachine) Resize(_ context.Context, id string, size dayfly.TerminalSize) error {
	p := m.liveOne(id)
	if p == nil || p.tty == nil {
		if _, err := m.Process(context.Background(), id); err != nil {
			return err
		}
		return dayfly.Errorf(dayfly.CodeConflict, "the process has no terminal")
	}
	if p.record().Exit != nil {
		return nil
	}
	p.change(func() { p.size = &size })
	return pty.Setsize(p.tty, &pty.Winsize{Cols: uint16(size.Cols), Rows: uint16(size.Rows)})
}

// follow reads from offsets on.
func (p *liveProcess) follow(ctx context.Context, from dayfly.Offsets, toEnd bool) dayfly.OutputStream {
	p.m.mu.Lock()
	p.m.attached++
	p.m.mu.Unlock()
	return &liveStream{p: p, ctx: ctx, at: [2]int64{from.Stdout, from.Stderr}, follow: toEnd, left: sync.OnceFunc(func() {
		p.m.mu.Lock()
		defer p.m.mu.Unlock()
		p.m.attached--
	})}
}

type liveStream struct {
	p      *liveProcess
	ctx    context.Context
	at     [2]int64
	follow bool
	told   bool
	left   func()
}

const liveChunk = 64 << 10

func (s *liveStream) Next() (dayfly.Output, error) {
	for {
		if s.ctx.Err() != nil {
			return dayfly.Output{}, s.ctx.Err()
		}
		s.p.mu.Lock()
		out, exit, changed := s.p.out, s.p.exit, s.p.changed
		s.p.mu.Unlock()
		for i, kind := range []dayfly.OutputKind{dayfly.OutputStdout, dayfly.OutputStderr} {
			if at := s.at[i]; at < int64(len(out[i])) {
				data := out[i][at:min(int64(len(out[i])), at+liveChunk)]
				s.at[i] += int64(len(data))
				return dayfly.Output{Kind: kind, Offset: at, Data: data}, nil
			}
		}
		switch {
		case exit != nil && !s.told:
			s.told = true
			return dayfly.Output{Kind: dayfly.OutputExit, Exit: exit}, nil
		case exit != nil || !s.follow:
			return dayfly.Output{}, io.EOF
		}
		select {
		case <-changed:
		case <-s.p.m.ends:
			return dayfly.Output{}, errDeskGone
		case <-s.ctx.Done():
		}
	}
}

func (s *liveStream) Close() error {
	s.left()
	return nil
}

// opened has something listen on a port.
func (m *deskMachine) opened(port int) { close(m.portEvent(port)) }

func (m *deskMachine) portEvent(port int) chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ports[port] == nil {
		m.ports[port] = make(chan struct{})
	}
	return m.ports[port]
}

func (m *deskMachine) AwaitPort(ctx context.Context, port int) error {
	defer m.wait()()
	select {
	case <-m.portEvent(port):
		return nil
	case <-m.ends:
		return errDeskGone
	case <-ctx.Done():
		return ctx.Err()
	}
}

// waiting counts who waits for something of the machine: followers of output, watches, and waits.
func (m *deskMachine) waiting() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.attached + len(m.watchers) + m.waits
}

// wait counts a wait; the function it returns ends it.
func (m *deskMachine) wait() (over func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waits++
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.waits--
	}
}
