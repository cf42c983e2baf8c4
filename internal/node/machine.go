package node

import (
	"context"
	"io"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// Machine implements control.Node.
func (m *Manager) Machine(ctx context.Context, id string) (control.Machine, error) {
	b := m.box(id)
	if b == nil {
		return nil, gone(id)
	}
	return b, nil
}

// Run implements control.Machine.
func (b *Box) Run(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.Result, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return dayfly.Result{}, err
	}
	kills := b.oomKills(ctx)
	b.attach(spec.ID, spec.OnDisconnect)
	res, err := agent.Run(ctx, spec, stdin)
	b.detach(spec.ID, err == nil || unstarted(err))
	if err != nil {
		return res, b.explain(err)
	}
	b.outlived(kills)
	b.markOOM(spec.ID, &res.Exit, kills)
	return res, nil
}

// Start implements control.Machine.
func (b *Box) Start(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.OutputStream, dayfly.Process, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return nil, dayfly.Process{}, err
	}
	kills := b.oomKills(ctx)
	b.attach(spec.ID, spec.OnDisconnect)
	s, proc, err := agent.Start(ctx, spec, stdin)
	if err != nil {
		b.detach(spec.ID, unstarted(err)) // a client that left in the middle may have left a process
		return nil, proc, b.explain(err)
	}
	b.outlived(kills)
	return &following{OutputStream: s, box: b, id: spec.ID, kills: kills}, proc, nil
}

// Output implements control.Machine.
func (b *Box) Output(ctx context.Context, id string, from dayfly.Offsets, follow bool) (dayfly.OutputStream, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return nil, err
	}
	proc, err := agent.Process(ctx, id)
	if err != nil {
		return nil, b.explain(err)
	}
	kills := b.oomKills(ctx)
	s, err := agent.Output(ctx, id, from, follow)
	if err != nil {
		return nil, b.explain(err)
	}
	if follow && proc.Status == dayfly.ProcessRunning {
		b.attach(id, proc.OnDisconnect)
		return &following{OutputStream: s, box: b, id: id, kills: kills}, nil
	}
	return &following{OutputStream: s, box: b, id: id, kills: -1, closed: true /* counts as nobody's client */}, nil
}

// Result implements control.Machine.
func (b *Box) Result(ctx context.Context, id string) (dayfly.Result, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return dayfly.Result{}, err
	}
	proc, err := agent.Process(ctx, id)
	if err != nil {
		return dayfly.Result{}, b.explain(err)
	}
	running := proc.Status == dayfly.ProcessRunning
	kills := b.oomKills(ctx)
	if running {
		b.attach(id, proc.OnDisconnect)
	}
	res, err := agent.Result(ctx, id)
	if running {
		b.detach(id, err == nil || unstarted(err))
	}
	if err != nil {
		return res, b.explain(err)
	}
	if !running {
		kills = -1 // what was killed since does not tell
	}
	b.markOOM(id, &res.Exit, kills)
	return res, nil
}

// following is a followed process: closing it before the end was seen means that the client left.
type following struct {
	dayfly.OutputStream
	box    *Box
	id     string
	kills  int64
	ended  bool
	closed bool
}

func (f *following) Next() (dayfly.Output, error) {
	out, err := f.OutputStream.Next()
	if err != nil {
		if err != io.EOF {
			err = f.box.explain(err)
		}
		return out, err
	}
	if out.Kind == dayfly.OutputExit {
		f.ended = true
		f.box.markOOM(f.id, out.Exit, f.kills)
	}
	return out, nil
}

func (f *following) Close() error {
	if !f.closed {
		f.closed = true
		f.box.detach(f.id, f.ended)
	}
	return f.OutputStream.Close()
}

// Process implements control.Machine.
func (b *Box) Process(ctx context.Context, id string) (dayfly.Process, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return dayfly.Process{}, err
	}
	proc, err := agent.Process(ctx, id)
	b.recallOOM(id, proc.Exit)
	return proc, b.explain(err)
}

// Processes implements control.Machine.
func (b *Box) Processes(ctx context.Context) ([]dayfly.Process, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return nil, err
	}
	procs, err := agent.Processes(ctx)
	for _, proc := range procs {
		b.recallOOM(proc.ID, proc.Exit)
	}
	return procs, b.explain(err)
}

// Signal implements control.Machine.
func (b *Box) Signal(ctx context.Context, id, signal string, tree bool) error {
	agent, err := b.session(ctx)
	if err != nil {
		return err
	}
	b.askedToDie(id, signal)
	return b.explain(agent.Signal(ctx, id, signal, tree))
}

// WriteStdin implements control.Machine.
func (b *Box) WriteStdin(ctx context.Context, id string, r io.Reader, closeAfter bool) error {
	agent, err := b.session(ctx)
	if err != nil {
		return err
	}
	return b.explain(agent.WriteStdin(ctx, id, r, closeAfter))
}

// WriteStdinAt implements control.Machine.
func (b *Box) WriteStdinAt(ctx context.Context, id string, offset int64, r io.Reader, closeAfter bool) (int64, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return dayfly.StdinNext, err
	}
	accepted, err := agent.WriteStdinAt(ctx, id, offset, r, closeAfter)
	return accepted, b.explain(err)
}

// Launch implements control.Machine.
func (b *Box) Launch(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.Process, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return dayfly.Process{}, err
	}
	feed, closeAfter := stdin != nil, !spec.OpenStdin && spec.Terminal == nil // a terminal stays open
	spec.OpenStdin = spec.OpenStdin || feed
	s, proc, err := agent.Start(ctx, spec, nil /* fed below, for as long as it takes */)
	if err != nil {
		return proc, b.explain(err)
	}
	_ = s.Close() // nobody follows it yet
	if feed {
		b.m.background(func() {
			for b.awaitResumed(b.m.life) == nil && refusedAsPaused(b.WriteStdin(b.m.life, spec.ID, stdin, closeAfter)) {
			} // a command that does not read its input is no error of the start
		})
	}
	return proc, nil
}

// Await implements control.Machine.
func (b *Box) Await(ctx context.Context, id string) (dayfly.Process, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return dayfly.Process{}, err
	}
	if _, err := agent.Result(ctx, id); err != nil {
		return dayfly.Process{}, b.explain(err)
	}
	return b.Process(ctx, id)
}

// Resize implements control.Machine.
func (b *Box) Resize(ctx context.Context, id string, size dayfly.TerminalSize) error {
	agent, err := b.session(ctx)
	if err != nil {
		return err
	}
	return b.explain(agent.Resize(ctx, id, size))
}

// AwaitPort implements control.Machine.
func (b *Box) AwaitPort(ctx context.Context, port int) error {
	agent, err := b.session(ctx)
	if err != nil {
		return err
	}
	return b.explain(agent.AwaitPort(ctx, port))
}
