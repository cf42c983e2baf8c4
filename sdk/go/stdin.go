package dayfly

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
)

const (
	// stdinChunk is how much input travels in one request at most, in bytes.
	stdinChunk = 1 << 20
	stdinRead  = 64 << 10 // bytes read of the caller's reader at once
)

// PipeStdin passes r to a command until r ends, whose end closes the command's input, or the command reads no more, which is no
// failure: its exit says the rest. Every byte is delivered once, also when the connection breaks and the server restarts meanwhile, as by
// WriteStdinAt; nobody else may write to the command (CodeLocal tells when somebody did). It may leave a Read of r's behind that blocks
// beyond the end of the command.
func (s *Sandbox) PipeStdin(ctx context.Context, process string, r io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := newInlet(ctx)
	go in.fill(r) // ends with ctx, or with a Read of the caller's that nobody can end
	has, err := s.writeStdin(ctx, process, stdinNext, nil /* asks how much it has */, false /* not the end */)
	for err == nil {
		var p []byte
		p, err = in.take()
		end := errors.Is(err, io.EOF)
		if err != nil && !end {
			return err
		}
		if has, err = s.pass(ctx, process, has, p, end); err == nil && end {
			return nil
		}
	}
	if stopsReading(err) && ctx.Err() == nil {
		return nil
	}
	return err
}

// pass sends a piece behind what the command has, and gives what it has then. nil: its sandbox is too old to count; then a break under a
// piece fails the call.
func (s *Sandbox) pass(ctx context.Context, process string, has *int64, p []byte, end bool) (*int64, error) {
	if has == nil {
		return nil, s.WriteStdin(ctx, process, p, end)
	}
	accepted, err := s.WriteStdinAt(ctx, process, *has, p, end)
	if err == nil && accepted != *has+int64(len(p)) {
		return nil, &Error{Code: CodeLocal, Message: "somebody else writes to the command too, so that some of this input may be lost",
			Hint: "let only one write to a command, or have all of them use WriteStdin"}
	}
	return &accepted, err
}

// inlet holds what was read and not sent yet: while one request is on its way, the next one grows.
type inlet struct {
	ctx  context.Context
	mu   sync.Mutex
	cond *sync.Cond
	held []byte
	err  error // why there is no more: io.EOF, or a failure of the reader
}

func newInlet(ctx context.Context) *inlet {
	in := &inlet{ctx: ctx}
	in.cond = sync.NewCond(&in.mu)
	context.AfterFunc(ctx, func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.cond.Broadcast()
	})
	return in
}

// fill reads r to its end, stdinChunk ahead of who takes.
func (in *inlet) fill(r io.Reader) {
	buf := make([]byte, stdinRead)
	for in.ctx.Err() == nil {
		n, err := r.Read(buf)
		if !in.put(buf[:n], err) {
			return
		}
	}
}

// put adds what was read. It blocks while too much is held, and tells whether more is wanted.
func (in *inlet) put(p []byte, err error) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.held)+len(p) > stdinChunk && in.ctx.Err() == nil {
		in.cond.Wait()
	}
	in.held, in.err = append(in.held, p...), err
	in.cond.Broadcast()
	return err == nil && in.ctx.Err() == nil
}

// take gives what is held as soon as there is anything, with io.EOF when that is all. A failure of the reader comes after what it gave.
func (in *inlet) take() ([]byte, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.held) == 0 && in.err == nil && in.ctx.Err() == nil {
		in.cond.Wait()
	}
	p := slices.Clip(in.held)
	in.held = nil
	in.cond.Broadcast()
	switch {
	case in.ctx.Err() != nil:
		return nil, &Error{Code: CodeCancelled, Message: "the call was given up: " + in.ctx.Err().Error(), cause: in.ctx.Err()}
	case errors.Is(in.err, io.EOF):
		return p, io.EOF
	case in.err != nil && len(p) == 0:
		return nil, localError("read the input of the command", in.err)
	}
	return p, nil
}

// feed passes the caller's reader to the command until it ends, the command stops reading, or the stream is closed.
func (st *Stream) feed() {
	if err := st.sandbox.PipeStdin(st.ctx, st.id, st.stdin); err != nil {
		st.cancel(err)
	}
}

// stopsReading tells that the command has ended or closed its input, which is no failure: its exit says the rest.
func stopsReading(err error) bool {
	switch ErrorCode(err) {
	case CodeGone, CodeNotFound, CodeConflict, CodeNotRunning, CodeCancelled:
		return true
	}
	return false
}
