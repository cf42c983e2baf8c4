package api_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/clock"
	"dayfly.dev/dayfly/internal/control"
)

// deskNode is a control.Node that isolates nothing: a machine is a directory, its commands are processes of this host.
type deskNode struct {
	dir     string
	host    clock.Host
	stepped atomic.Int64 // what the wall clock was set forward by, in nanoseconds
	endings chan control.Ending

	mu       sync.Mutex
	machines map[string]*deskMachine
	frozen   map[string]bool
	creating func(ctx context.Context, sb dayfly.Sandbox) error // or nil
	problems []control.Problem
	swept    control.Swept // what every pass finds
	sweepErr error
}

func newDeskNode(t *testing.T) *deskNode {
	host, err := clock.NewHost()
	if err != nil {
		t.Fatal(err)
	}
	n := &deskNode{dir: t.TempDir(), host: host, endings: make(chan control.Ending), machines: map[string]*deskMachine{}, frozen: map[string]bool{}}
	t.Cleanup(n.stop)
	return n
}

// stop ends every process.
func (n *deskNode) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.machines {
		m.stop()
	}
}

func (n *deskNode) ID() string { return "no00000000000000000000" }

func (n *deskNode) Now() dayfly.Instant {
	now := n.host.Now()
	now.Wall = now.Wall.Add(time.Duration(n.stepped.Load()))
	return now
}

func (n *deskNode) Isolation(asked dayfly.Isolation) (dayfly.Isolation, error) {
	if asked != dayfly.IsolationAuto && asked != dayfly.IsolationFake {
		return "", dayfly.Errorf(dayfly.CodeInvalid, "there is no isolation %q here", asked)
	}
	return dayfly.IsolationFake, nil
}

func (n *deskNode) Admit(_ context.Context, limits dayfly.Limits, _ dayfly.Isolation) error {
	if limits.VCPU > 64 {
		return dayfly.Errorf(dayfly.CodeSizeUnavailable, "no node has %d vCPUs", limits.VCPU)
	}
	if limits.VCPU > 32 {
		return dayfly.Errorf(dayfly.CodeNoCapacity, "not now").WithRetryAfter(1500 * time.Millisecond)
	}
	return nil
}

func (n *deskNode) Create(ctx context.Context, sb dayfly.Sandbox, _ dayfly.Image) error {
	n.mu.Lock()
	creating := n.creating
	n.mu.Unlock()
	if creating != nil {
		if err := creating(ctx, sb); err != nil {
			return err
		}
	}
	dir := filepath.Join(n.dir, sb.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.machines[sb.ID] = newDeskMachine(root)
	return nil
}

func (n *deskNode) Renew(context.Context, string, dayfly.Lease) error { return nil }

func (n *deskNode) Expire(context.Context, string) (dayfly.Lease, bool, error) {
	return dayfly.Lease{}, false, errors.New("not due")
}

func (n *deskNode) Pause(_ context.Context, id string) error  { return n.freeze(id, true) }
func (n *deskNode) Resume(_ context.Context, id string) error { return n.freeze(id, false) }

func (n *deskNode) freeze(id string, frozen bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frozen[id] = frozen
	return nil
}

func (n *deskNode) Paused(_ context.Context, id string) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.frozen[id], nil
}

func (n *deskNode) Destroy(_ context.Context, id string) (control.Ending, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m := n.machines[id]; m != nil {
		m.stop()
		_ = m.root.Close()
		delete(n.machines, id)
	}
	return control.Ending{ID: id, At: n.Now().Wall, Boot: n.Now().Boot, Reason: dayfly.EndRequested}, os.RemoveAll(filepath.Join(n.dir, id))
}

func (n *deskNode) Machine(_ context.Context, id string) (control.Machine, error) {
	if m := n.machine(id); m != nil {
		return m, nil
	}
	return nil, dayfly.Errorf(dayfly.CodeGone, "the machine has ended").WithDetail("sandbox", id)
}

func (n *deskNode) machine(id string) *deskMachine {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.machines[id]
}

func (n *deskNode) Endings() <-chan control.Ending { return n.endings }

func (n *deskNode) Recover(context.Context, []dayfly.Sandbox, func(control.Ending) error) (control.Recovery, error) {
	return control.Recovery{}, nil
}

func (n *deskNode) Problems(context.Context) []control.Problem {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.problems
}

func (n *deskNode) Sweep(context.Context, []dayfly.Sandbox, bool, func(control.Ending) error) (control.Swept, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.swept, n.sweepErr
}

// deskImages takes any body for an image, and then takes its time.
type deskImages struct{ unpacking time.Duration }

func (d *deskImages) Import(_ context.Context, r control.ImportImage) (dayfly.Image, error) {
	size, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		return dayfly.Image{}, err
	}
	busy := time.NewTimer(d.unpacking)
	defer busy.Stop()
	<-busy.C
	return dayfly.Image{ID: dayfly.NewID(dayfly.PrefixImage), Name: r.Name, Digest: "sha256:00", SizeBytes: size,
		User: dayfly.User{Name: r.User, Home: "/home/user"}, Workdir: r.Workdir, Env: r.Env, CreatedAt: time.Now()}, nil
}

func (*deskImages) Remove(context.Context, string) error { return nil }

// deskMachine is one machine. running and following replace what its commands do, or are nil.
type deskMachine struct {
	root *os.Root
	ends chan struct{} // closed when it ends

	mu        sync.Mutex
	procs     map[string]*deskProcess
	live      map[string]*liveProcess // those in the background
	ports     map[int]chan struct{}   // closed once something listens
	watchers  map[*deskWatch]bool
	attached  int // followers of output that have not left
	waits     int
	running   func(ctx context.Context, spec dayfly.ProcessSpec) (dayfly.Result, error)
	following func(ctx context.Context) dayfly.OutputStream
	shrink    int64 // files read end here all at once; 0: they do not

	inputMu sync.Mutex
	input   map[string]int64 // bytes of standard input by process
}

func newDeskMachine(root *os.Root) *deskMachine {
	return &deskMachine{root: root, ends: make(chan struct{}), procs: map[string]*deskProcess{}, live: map[string]*liveProcess{},
		ports: map[int]chan struct{}{}, watchers: map[*deskWatch]bool{}}
}

var errDeskGone = dayfly.Errorf(dayfly.CodeGone, "the machine has ended").WithDetail("sandbox", "")

// deskProcess is a finished command, or one that waits for its standard input.
type deskProcess struct {
	result dayfly.Result
	stdin  bytes.Buffer
	closed chan struct{}
	open   bool
}

func (m *deskMachine) hooks() (func(context.Context, dayfly.ProcessSpec) (dayfly.Result, error), func(context.Context) dayfly.OutputStream) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running, m.following
}

func (m *deskMachine) Run(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.Result, error) {
	if running, _ := m.hooks(); running != nil {
		return running(ctx, spec)
	}
	r, err := m.run(ctx, spec, stdin)
	if err == nil {
		m.keep(&deskProcess{result: r})
	}
	return r, err
}

func (m *deskMachine) keep(p *deskProcess) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.procs[p.result.ID] = p
}

func (m *deskMachine) run(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.Result, error) {
	argv := spec.Argv
	if spec.Command != "" {
		argv = []string{"bash", "-c", spec.Command}
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdin = m.root.Name(), stdin
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	for k, v := range spec.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return dayfly.Result{}, err
	}
	return dayfly.Result{ID: spec.ID,
		Exit:   dayfly.Exit{Code: cmd.ProcessState.ExitCode(), Duration: time.Millisecond, StdoutBytes: int64(out.Len()), StderrBytes: int64(errs.Len())},
		Stdout: captured(out.Bytes()), Stderr: captured(errs.Bytes()),
	}, nil
}

func captured(b []byte) dayfly.Captured { return dayfly.Captured{Head: b, Bytes: int64(len(b))} }

func (m *deskMachine) Start(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.OutputStream, dayfly.Process, error) {
	_, following := m.hooks()
	p := &deskProcess{result: dayfly.Result{ID: spec.ID}, closed: make(chan struct{}), open: spec.OpenStdin}
	m.keep(p)
	proc := dayfly.Process{ID: spec.ID, PID: 7, Status: dayfly.ProcessRunning}
	if following != nil {
		return following(ctx), proc, nil
	}
	if spec.OpenStdin {
		return &scripted{ctx: ctx, wait: p.closed, after: func() []dayfly.Output {
			r, err := m.run(ctx, spec, &p.stdin)
			if err != nil {
				return nil
			}
			return outputs(r, dayfly.Offsets{})
		}}, proc, nil
	}
	r, err := m.run(ctx, spec, stdin)
	if err != nil {
		return nil, proc, err
	}
	m.keep(&deskProcess{result: r})
	return &scripted{ctx: ctx, events: outputs(r, dayfly.Offsets{})}, proc, nil
}

func outputs(r dayfly.Result, from dayfly.Offsets) []dayfly.Output {
	return []dayfly.Output{
		{Kind: dayfly.OutputStdout, Offset: from.Stdout, Data: r.Stdout.Head[from.Stdout:]},
		{Kind: dayfly.OutputStderr, Offset: from.Stderr, Data: r.Stderr.Head[from.Stderr:]},
		{Kind: dayfly.OutputExit, Exit: &r.Exit},
	}
}

func (m *deskMachine) Output(ctx context.Context, id string, from dayfly.Offsets, follow bool) (dayfly.OutputStream, error) {
	if p := m.liveOne(id); p != nil {
		return p.follow(ctx, from, follow), nil
	}
	p, err := m.proc(id)
	if err != nil {
		return nil, err
	}
	return &scripted{ctx: ctx, events: outputs(p.result, from)}, nil
}

func (m *deskMachine) Result(ctx context.Context, id string) (dayfly.Result, error) {
	if p := m.liveOne(id); p != nil {
		return dayfly.Result{}, p.await(ctx) // what it wrote is asked for by no test
	}
	p, err := m.proc(id)
	if err != nil {
		return dayfly.Result{}, err
	}
	return p.result, nil
}

func (m *deskMachine) proc(id string) (*deskProcess, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.procs[id]; p != nil {
		return p, nil
	}
	return nil, dayfly.Errorf(dayfly.CodeNotFound, "there is no such process")
}

func (m *deskMachine) Process(_ context.Context, id string) (dayfly.Process, error) {
	if p := m.liveOne(id); p != nil {
		return p.record(), nil
	}
	p, err := m.proc(id)
	if err != nil {
		return dayfly.Process{}, err
	}
	return dayfly.Process{ID: id, PID: 7, Status: dayfly.ProcessExited, Command: "x", StartedAgo: time.Second, Exit: &p.result.Exit}, nil
}

func (m *deskMachine) Processes(ctx context.Context) ([]dayfly.Process, error) {
	m.mu.Lock()
	ids := make([]string, 0, len(m.procs))
	for id := range m.procs {
		ids = append(ids, id)
	}
	for id := range m.live {
		ids = append(ids, id)
	}
	m.mu.Unlock()
	var out []dayfly.Process
	for _, id := range ids {
		p, err := m.Process(ctx, id)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func (m *deskMachine) Signal(_ context.Context, id, signal string, _ bool) error {
	if p := m.liveOne(id); p != nil {
		return p.signal(signal)
	}
	_, err := m.proc(id)
	return err
}

func (m *deskMachine) WriteStdin(ctx context.Context, id string, r io.Reader, closeAfter bool) error {
	if p := m.liveOne(id); p != nil {
		return p.write(ctx, r, closeAfter)
	}
	p, err := m.proc(id)
	if err != nil {
		return err
	}
	if _, err := io.Copy(&p.stdin, r); err != nil {
		return err
	}
	if closeAfter && p.open {
		close(p.closed)
	}
	return nil
}

// WriteStdinAt counts only what came this way.
func (m *deskMachine) WriteStdinAt(ctx context.Context, id string, offset int64, r io.Reader, closeAfter bool) (int64, error) {
	m.inputMu.Lock()
	defer m.inputMu.Unlock()
	has := m.input[id]
	switch {
	case offset == dayfly.StdinNext:
	case offset > has:
		return has, dayfly.Errorf(dayfly.CodeConflict, "it has %d bytes", has)
	default:
		if _, err := io.CopyN(io.Discard, r, has-offset); err != nil && !errors.Is(err, io.EOF) {
			return has, err
		}
	}
	n := countingReader{r: r}
	err := m.WriteStdin(ctx, id, &n, closeAfter)
	if m.input == nil {
		m.input = map[string]int64{}
	}
	m.input[id] += n.n
	return m.input[id], err
}

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// scripted is an output stream that tells given events, then ends, or fails.
type scripted struct {
	ctx    context.Context
	wait   <-chan struct{} // before the first event, or nil
	after  func() []dayfly.Output
	events []dayfly.Output
	fail   error // at the end, or nil for io.EOF
}

func (s *scripted) Next() (dayfly.Output, error) {
	if s.wait != nil {
		select {
		case <-s.wait:
		case <-s.ctx.Done():
			return dayfly.Output{}, s.ctx.Err()
		}
		s.wait = nil
		if s.after != nil {
			s.events = s.after()
		}
	}
	if len(s.events) == 0 {
		if s.fail != nil {
			return dayfly.Output{}, s.fail
		}
		return dayfly.Output{}, io.EOF
	}
	next := s.events[0]
	s.events = s.events[1:]
	return next, nil
}

func (s *scripted) Close() error { return nil }
