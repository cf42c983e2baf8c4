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
// failure: its exit says the rest. Input is never delivered twice; see WriteStdin. It may leave a Read of r's behind that blocks beyond the end of the command.
func (s *Sandbox) PipeStdin(ctx context.Context, process string, r io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := newInlet(ctx)
	go in.fill(r) // ends with ctx, or with a Read of the caller's that nobody can end
	for {
		p, err := in.take()
		end := errors.Is(err, io.EOF)
		if err != nil && !end {
			return err
		}
		if err := s.WriteStdin(ctx, process, p, end); err != nil {
			if stopsReading(err) && ctx.Err() == nil {
				return nil
			}
			return err
		}
		if end {
			return nil
		}
	}
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
	if err := st.sandbox.PipeStdin(st.ctx, st.id, st.stdin); err != nil && !stopsReading(err) {
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
