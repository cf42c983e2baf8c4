package agent

import (
	"context"
	"io"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Run implements agentwire.Machine.
func (a *Agent) Run(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.Result, error) {
	p, err := a.launch(ctx, spec, stdin)
	if err != nil {
		return dayfly.Result{}, err
	}
	return p.wait(ctx)
}

// Start implements agentwire.Machine.
func (a *Agent) Start(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.OutputStream, dayfly.Process, error) {
	p, err := a.launch(ctx, spec, stdin)
	if err != nil {
		return nil, dayfly.Process{}, err
	}
	return p.attach(ctx, dayfly.Offsets{}, true /* follow */), p.record(), nil
}

// Output implements agentwire.Machine.
func (a *Agent) Output(ctx context.Context, id string, from dayfly.Offsets, follow bool) (dayfly.OutputStream, error) {
	p, err := a.table.find(id)
	if err != nil {
		return nil, err
	}
	r := p.record()
	if from.Stdout < 0 || from.Stderr < 0 || from.Stdout > r.StdoutBytes || from.Stderr > r.StderrBytes {
		return nil, dayfly.Errorf(dayfly.CodeInvalid, "the offsets are beyond the output, which has %d bytes of stdout and %d of stderr", r.StdoutBytes, r.StderrBytes)
	}
	return p.attach(ctx, from, follow), nil
}

// Result implements agentwire.Machine.
func (a *Agent) Result(ctx context.Context, id string) (dayfly.Result, error) {
	p, err := a.table.find(id)
	if err != nil {
		return dayfly.Result{}, err
	}
	return p.wait(ctx)
}

// wait blocks until p has finished.
func (p *process) wait(ctx context.Context) (dayfly.Result, error) {
	select {
	case <-p.done:
		return p.result(), nil
	case <-ctx.Done():
		return dayfly.Result{}, ctx.Err()
	}
}

// Process implements agentwire.Machine.
func (a *Agent) Process(_ context.Context, id string) (dayfly.Process, error) {
	p, err := a.table.find(id)
	if err != nil {
		return dayfly.Process{}, err
	}
	r := p.record()
	p.usage(&r, byMark)
	return r, nil
}

// Processes implements agentwire.Machine.
func (a *Agent) Processes(context.Context) ([]dayfly.Process, error) {
	all := a.table.all()
	out := make([]dayfly.Process, 0, len(all))
	once := sync.OnceValue(byMark)
	for _, p := range all {
		r := p.record()
		p.usage(&r, once)
		out = append(out, r)
	}
	return out, nil
}

// settled finds a process that is not in the middle of being started, so that a signal to it is never lost. Until release is
// called no try of it begins.
func (a *Agent) settled(ctx context.Context, id string) (p *process, release func(), err error) {
	if p, err = a.table.find(id); err != nil {
		return nil, nil, err
	}
	select {
	case p.gate <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	if _, err = a.table.find(id); err != nil {
		<-p.gate
		return nil, nil, err
	}
	return p, func() { <-p.gate }, nil
}

// Signal implements agentwire.Machine.
func (a *Agent) Signal(ctx context.Context, id, signal string, wholeTree bool) error {
	p, release, err := a.settled(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	sig, err := parseSignal(signal)
	if err != nil {
		return err
	}
	p.sent(sig)
	switch {
	case !wholeTree:
		return a.children.signal(p, sig)
	case sig == unix.SIGKILL:
		return p.killTree()
	}
	return p.signalTree(sig)
}

// parseSignal reads a signal's name, with or without SIG, or its number.
func parseSignal(s string) (unix.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n < 65 {
		return unix.Signal(n), nil
	}
	for _, name := range [...]string{s, "SIG" + s} {
		if sig := unix.SignalNum(name); sig != 0 {
			return sig, nil
		}
	}
	return 0, dayfly.Errorf(dayfly.CodeInvalid, "there is no signal %q", s).WithHint("use a name like TERM, KILL or INT")
}

// signalName is a signal's name without SIG.
func signalName(sig unix.Signal) string {
	if name := unix.SignalName(sig); len(name) > len("SIG") {
		return name[len("SIG"):]
	}
	return strconv.Itoa(int(sig))
}
