package control

import (
	"context"
	"io"
	"io/fs"

	"dayfly.dev/dayfly"
)

// Machine gives access to a running sandbox of the account. CodeGone: it ended or is ending; CodeNotRunning: it is still
// starting or paused. Every error of the machine's methods that is due to its end tells how it ended.
func (p *Plane) Machine(ctx context.Context, who Principal, id string) (Machine, error) {
	if err := p.mustRun(ctx, who, id); err != nil {
		return nil, err
	}
	m, err := p.node.Machine(ctx, id)
	if err != nil {
		return nil, p.gone(ctx, id, err)
	}
	return &explained{Machine: m, plane: p, id: id}, nil
}

// mustRun tells why a sandbox of the account cannot be worked in, or nil. What is known to run is not read again.
func (p *Plane) mustRun(ctx context.Context, who Principal, id string) error {
	account, ok, since := p.running.recall(id)
	if ok && account == who.Account.ID {
		return nil
	}
	sb, err := p.Sandbox(ctx, who, id)
	if err != nil {
		return err
	}
	switch sb.Status {
	case dayfly.StatusDeleting, dayfly.StatusDeleted, dayfly.StatusFailed:
		return goneError(sb)
	case dayfly.StatusProvisioning:
		return dayfly.Errorf(dayfly.CodeNotRunning, "sandbox %s is %s", id, sb.Status).
			WithHint("wait until it is running").WithDetail("status", string(sb.Status))
	case dayfly.StatusPaused:
		return dayfly.Errorf(dayfly.CodeNotRunning, "sandbox %s is %s", id, sb.Status).
			WithHint("resume it first").WithDetail("status", string(sb.Status))
	}
	p.running.note(id, sb.Account, since)
	return nil
}

// explained is a machine whose calls tell how the sandbox ended when they fail for it.
type explained struct {
	Machine
	plane *Plane
	id    string
}

func (m *explained) Run(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.Result, error) {
	res, err := m.Machine.Run(ctx, spec, stdin)
	return res, m.plane.gone(ctx, m.id, err)
}

func (m *explained) Start(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.OutputStream, dayfly.Process, error) {
	s, proc, err := m.Machine.Start(ctx, spec, stdin)
	if err != nil {
		return nil, proc, m.plane.gone(ctx, m.id, err)
	}
	return &explainedStream{s, ctx, m}, proc, nil
}

func (m *explained) Output(ctx context.Context, id string, from dayfly.Offsets, follow bool) (dayfly.OutputStream, error) {
	s, err := m.Machine.Output(ctx, id, from, follow)
	if err != nil {
		return nil, m.plane.gone(ctx, m.id, err)
	}
	return &explainedStream{s, ctx, m}, nil
}

func (m *explained) Result(ctx context.Context, id string) (dayfly.Result, error) {
	res, err := m.Machine.Result(ctx, id)
	return res, m.plane.gone(ctx, m.id, err)
}

// explainedStream explains the error that ends a stream.
type explainedStream struct {
	dayfly.OutputStream
	ctx context.Context
	m   *explained
}

func (s *explainedStream) Next() (dayfly.Output, error) {
	out, err := s.OutputStream.Next()
	if err != nil && err != io.EOF {
		err = s.m.plane.gone(s.ctx, s.m.id, err)
	}
	return out, err
}

func (m *explained) Await(ctx context.Context, id string) (dayfly.Process, error) {
	proc, err := m.Machine.Await(ctx, id)
	return proc, m.plane.gone(ctx, m.id, err)
}

func (m *explained) Process(ctx context.Context, id string) (dayfly.Process, error) {
	proc, err := m.Machine.Process(ctx, id)
	return proc, m.plane.gone(ctx, m.id, err)
}

func (m *explained) Processes(ctx context.Context) ([]dayfly.Process, error) {
	procs, err := m.Machine.Processes(ctx)
	return procs, m.plane.gone(ctx, m.id, err)
}

func (m *explained) Signal(ctx context.Context, id, signal string, tree bool) error {
	return m.plane.gone(ctx, m.id, m.Machine.Signal(ctx, id, signal, tree))
}

func (m *explained) WriteStdin(ctx context.Context, id string, r io.Reader, closeAfter bool) error {
	return m.plane.gone(ctx, m.id, m.Machine.WriteStdin(ctx, id, r, closeAfter))
}

func (m *explained) WriteStdinAt(ctx context.Context, id string, offset int64, r io.Reader, closeAfter bool) (int64, error) {
	accepted, err := m.Machine.WriteStdinAt(ctx, id, offset, r, closeAfter)
	return accepted, m.plane.gone(ctx, m.id, err)
}

func (m *explained) Stat(ctx context.Context, path string) (dayfly.FileInfo, error) {
	info, err := m.Machine.Stat(ctx, path)
	return info, m.plane.gone(ctx, m.id, err)
}

func (m *explained) List(ctx context.Context, q dayfly.ListQuery) ([]dayfly.FileInfo, string, error) {
	entries, next, err := m.Machine.List(ctx, q)
	return entries, next, m.plane.gone(ctx, m.id, err)
}

func (m *explained) Read(ctx context.Context, path string, r dayfly.FileRange) (dayfly.FileInfo, io.ReadCloser, error) {
	info, body, err := m.Machine.Read(ctx, path, r)
	return info, body, m.plane.gone(ctx, m.id, err)
}

func (m *explained) Write(ctx context.Context, path string, mode *fs.FileMode, r io.Reader) (dayfly.FileInfo, error) {
	info, err := m.Machine.Write(ctx, path, mode, r)
	return info, m.plane.gone(ctx, m.id, err)
}

func (m *explained) Remove(ctx context.Context, path string, recursive bool) error {
	return m.plane.gone(ctx, m.id, m.Machine.Remove(ctx, path, recursive))
}

func (m *explained) ReadArchive(ctx context.Context, path string) (io.ReadCloser, error) {
	body, err := m.Machine.ReadArchive(ctx, path)
	return body, m.plane.gone(ctx, m.id, err)
}

func (m *explained) WriteArchive(ctx context.Context, path string, r io.Reader) error {
	return m.plane.gone(ctx, m.id, m.Machine.WriteArchive(ctx, path, r))
}

func (m *explained) Launch(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.Process, error) {
	proc, err := m.Machine.Launch(ctx, spec, stdin)
	return proc, m.plane.gone(ctx, m.id, err)
}

func (m *explained) Resize(ctx context.Context, id string, size dayfly.TerminalSize) error {
	return m.plane.gone(ctx, m.id, m.Machine.Resize(ctx, id, size))
}

func (m *explained) AwaitPort(ctx context.Context, port int) error {
	return m.plane.gone(ctx, m.id, m.Machine.AwaitPort(ctx, port))
}

func (m *explained) Mkdir(ctx context.Context, path string, mode *fs.FileMode, parents bool) (dayfly.FileInfo, error) {
	info, err := m.Machine.Mkdir(ctx, path, mode, parents)
	return info, m.plane.gone(ctx, m.id, err)
}

func (m *explained) Move(ctx context.Context, from, to string, overwrite bool) (dayfly.FileInfo, error) {
	info, err := m.Machine.Move(ctx, from, to, overwrite)
	return info, m.plane.gone(ctx, m.id, err)
}

func (m *explained) Chmod(ctx context.Context, path string, mode fs.FileMode, recursive bool) (dayfly.FileInfo, error) {
	info, err := m.Machine.Chmod(ctx, path, mode, recursive)
	return info, m.plane.gone(ctx, m.id, err)
}

func (m *explained) Search(ctx context.Context, q dayfly.SearchQuery) (dayfly.SearchResult, error) {
	res, err := m.Machine.Search(ctx, q)
	return res, m.plane.gone(ctx, m.id, err)
}

func (m *explained) Find(ctx context.Context, q dayfly.FindQuery) ([]dayfly.FileInfo, bool, error) {
	entries, truncated, err := m.Machine.Find(ctx, q)
	return entries, truncated, m.plane.gone(ctx, m.id, err)
}

func (m *explained) Watch(ctx context.Context, path string, recursive bool) (dayfly.ChangeStream, error) {
	s, err := m.Machine.Watch(ctx, path, recursive)
	if err != nil {
		return nil, m.plane.gone(ctx, m.id, err)
	}
	return &explainedChanges{s, ctx, m}, nil
}

// explainedChanges explains the error that ends a stream of changes.
type explainedChanges struct {
	dayfly.ChangeStream
	ctx context.Context
	m   *explained
}

func (s *explainedChanges) Next() (dayfly.FileChange, error) {
	change, err := s.ChangeStream.Next()
	if err != nil && err != io.EOF {
		err = s.m.plane.gone(s.ctx, s.m.id, err)
	}
	return change, err
}
