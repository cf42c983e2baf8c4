package agentwire

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"dayfly.dev/dayfly"
)

// CaptureMax is the most that a process may keep of each stream, in bytes.
const CaptureMax = 16 << 20

// processesMax is the most records that a listing from an agent is believed to have.
const processesMax = 16 << 10

func tooLarge(size int) error {
	return dayfly.Errorf(dayfly.CodeTooLarge, "the request has %d bytes of command, arguments and environment; the limit is %d", size, ParamsMax).
		WithHint("send large input as stdin or as a file")
}

// Run implements Machine.
func (c *Client) Run(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.Result, error) {
	req, params := specRequest(opRun, spec, stdin != nil)
	return c.result(ctx, req, params, stdin)
}

// Result implements Machine.
func (c *Client) Result(ctx context.Context, id string) (dayfly.Result, error) {
	return c.result(ctx, request{Op: opResult, ID: id}, nil, nil)
}

// result sends a request whose answer is a result and its captured output.
func (c *Client) result(ctx context.Context, req request, params []string, stdin io.Reader) (dayfly.Result, error) {
	k, err := c.open(ctx, req, params, stdin)
	if err != nil {
		return dayfly.Result{}, err
	}
	defer k.close()
	m, err := k.message()
	if err != nil {
		return dayfly.Result{}, fmt.Errorf("%s: %w", req.Op, err)
	}
	r := m.Result
	if r == nil {
		return dayfly.Result{}, k.broken(fmt.Errorf("%w: no result", errFrame))
	}
	res := dayfly.Result{ID: text(r.ID, commandMax), Exit: r.Exit.toExit()}
	if res.Stdout, err = k.captured(r.Stdout); err == nil {
		res.Stderr, err = k.captured(r.Stderr)
	}
	if err != nil {
		return dayfly.Result{}, fmt.Errorf("%s: read output: %w", req.Op, err)
	}
	k.whole = true
	return res, nil
}

// captured reads the head and tail of one stream.
func (k *call) captured(f captureFields) (dayfly.Captured, error) {
	kept := int64(f.Head) + int64(f.Tail)
	if f.Head < 0 || f.Tail < 0 || f.Head > CaptureMax || f.Tail > CaptureMax || kept > CaptureMax || f.Bytes < kept || f.Bytes > offsetMax {
		return dayfly.Captured{}, k.broken(fmt.Errorf("%w: captured output of %d and %d bytes", errFrame, f.Head, f.Tail))
	}
	out := dayfly.Captured{Bytes: f.Bytes}
	var err error
	if out.Head, err = k.bytes(f.Head); err == nil {
		out.Tail, err = k.bytes(f.Tail)
	}
	return out, err
}

// bytes reads exactly n bytes of data frames. Memory grows with what arrives, not with what was announced.
func (k *call) bytes(n int) ([]byte, error) {
	out := make([]byte, 0, min(n, dataMax))
	for len(out) < n {
		kind, payload, _, err := k.next()
		if err != nil {
			return nil, err
		}
		if kind != frameData || len(payload) == 0 || len(payload) > n-len(out) {
			return nil, k.broken(fmt.Errorf("%w: kind %q in captured output", errFrame, kind))
		}
		out = append(out, payload...)
	}
	return out, nil
}

// Start implements Machine.
func (c *Client) Start(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.OutputStream, dayfly.Process, error) {
	req, params := specRequest(opStart, spec, stdin != nil)
	return c.follow(ctx, req, params, stdin)
}

// Output implements Machine.
func (c *Client) Output(ctx context.Context, id string, from dayfly.Offsets, follow bool) (dayfly.OutputStream, error) {
	out, _, err := c.follow(ctx, request{Op: opOutput, ID: id, Stdout: from.Stdout, Stderr: from.Stderr, Follow: follow}, nil, nil)
	return out, err
}

// follow sends a request whose answer is a process record and then its output.
func (c *Client) follow(ctx context.Context, req request, params []string, stdin io.Reader) (dayfly.OutputStream, dayfly.Process, error) {
	k, err := c.open(ctx, req, params, stdin)
	if err != nil {
		return nil, dayfly.Process{}, err
	}
	m, err := k.message()
	if err == nil && m.Process == nil {
		err = k.broken(fmt.Errorf("%w: no process", errFrame))
	}
	if err != nil {
		k.close()
		return nil, dayfly.Process{}, fmt.Errorf("%s: %w", req.Op, err)
	}
	return &outputStream{call: k}, m.Process.toProcess(), nil
}

// outputStream is the client's end of a followed output.
type outputStream struct {
	call *call
	end  error // io.EOF or why it broke; sticky
	once sync.Once
}

// Next implements dayfly.OutputStream.
func (o *outputStream) Next() (dayfly.Output, error) {
	if o.end != nil {
		return dayfly.Output{}, o.end
	}
	kind, payload, m, err := o.call.next()
	if err != nil {
		o.end = fmt.Errorf("follow output: %w", err)
		return dayfly.Output{}, o.end
	}
	switch {
	case kind == frameStdout || kind == frameStderr:
		offset, data, err := splitOutput(payload)
		if err != nil {
			break
		}
		stream := dayfly.OutputStdout
		if kind == frameStderr {
			stream = dayfly.OutputStderr
		}
		return dayfly.Output{Kind: stream, Offset: offset, Data: data}, nil
	case kind == frameEnd:
		o.end = io.EOF
		return dayfly.Output{}, io.EOF
	case m.Exit != nil:
		o.end = io.EOF
		exit := m.Exit.toExit()
		return dayfly.Output{Kind: dayfly.OutputExit, Exit: &exit}, nil
	case m.Dropped != nil && m.Dropped.valid():
		d := m.Dropped
		return dayfly.Output{Kind: dayfly.OutputDropped, Stream: dayfly.OutputKind(d.Stream), Offset: d.Offset, Bytes: d.Bytes}, nil
	}
	o.end = o.call.broken(fmt.Errorf("%w: kind %q in an output stream", errFrame, kind))
	return dayfly.Output{}, o.end
}

func (d *droppedFields) valid() bool {
	known := d.Stream == string(dayfly.OutputStdout) || d.Stream == string(dayfly.OutputStderr)
	return known && d.Offset >= 0 && d.Offset <= offsetMax && d.Bytes > 0 && d.Bytes <= offsetMax
}

// Close implements dayfly.OutputStream. It may be called while Next blocks, which then ends with an error.
func (o *outputStream) Close() error {
	o.once.Do(o.call.close)
	return nil
}

// Process implements Machine.
func (c *Client) Process(ctx context.Context, id string) (dayfly.Process, error) {
	m, err := c.ask(ctx, request{Op: opProcess, ID: id}, nil /* no body */)
	if err != nil {
		return dayfly.Process{}, err
	}
	if m.Process == nil {
		return dayfly.Process{}, fmt.Errorf("process: %w: %w: no process", ErrLost, errFrame)
	}
	return m.Process.toProcess(), nil
}

// Processes implements Machine.
func (c *Client) Processes(ctx context.Context) ([]dayfly.Process, error) {
	k, err := c.open(ctx, request{Op: opProcesses}, nil, nil)
	if err != nil {
		return nil, err
	}
	defer k.close()
	var all []dayfly.Process
	for {
		kind, m, err := k.collect()
		if err != nil {
			return nil, fmt.Errorf("processes: %w", err)
		}
		if kind == frameEnd {
			return all, nil
		}
		if m.Process == nil || len(all) == processesMax {
			return nil, k.broken(fmt.Errorf("processes: %w: kind %q", errFrame, kind))
		}
		all = append(all, m.Process.toProcess())
	}
}

// Signal implements Machine.
func (c *Client) Signal(ctx context.Context, id, signal string, wholeTree bool) error {
	return c.command(ctx, request{Op: opSignal, ID: id, Signal: signal, Tree: wholeTree})
}

// WriteStdin implements Machine.
func (c *Client) WriteStdin(ctx context.Context, id string, r io.Reader, closeAfter bool) error {
	_, err := c.ask(ctx, request{Op: opStdin, ID: id, CloseAfter: closeAfter}, r)
	return err
}

// WriteStdinAt implements Machine. An older agent takes input without an offset, and counts nothing.
func (c *Client) WriteStdinAt(ctx context.Context, id string, offset int64, r io.Reader, closeAfter bool) (int64, error) {
	if offset == dayfly.StdinNext && !slices.Contains(c.features, featureStdin) {
		return dayfly.StdinNext, c.WriteStdin(ctx, id, r, closeAfter)
	}
	m, err := c.ask(ctx, request{Op: opStdinAt, ID: id, Offset: offset, CloseAfter: closeAfter}, r)
	if err != nil {
		return dayfly.StdinNext, err
	}
	if m.Stdin == nil || m.Stdin.Bytes < 0 || m.Stdin.Bytes > offsetMax {
		return dayfly.StdinNext, fmt.Errorf("stdin: %w: %w: no count", ErrLost, errFrame)
	}
	return m.Stdin.Bytes, nil
}
