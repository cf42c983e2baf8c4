package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"dayfly.dev/dayfly"
)

// stdinChunk is how much is written to a command's stdin at once.
const stdinChunk = 64 << 10

// input is a command's standard input.
type input struct {
	f    *os.File      // or nil when there is none; closing it is final and unblocks a write
	turn chan struct{} // holds a token while somebody writes
}

func newInput(f *os.File) input { return input{f: f, turn: make(chan struct{}, 1)} }

// close ends the input.
func (i *input) close() {
	if i.f != nil {
		_ = i.f.Close()
	}
}

// feed writes all of r. It is the first to write, so it has the turn already. A client that left in the middle leaves the
// input as it is if more may come, else it ends.
func (i *input) feed(r io.Reader, closeAfter bool) {
	defer func() { <-i.turn }()
	_ = i.copy(r)
	if closeAfter {
		i.close()
	}
}

// copy moves r into the pipe. An error is the reader's, or of the pipe: os.ErrClosed, EPIPE.
func (i *input) copy(r io.Reader) error {
	buf := make([]byte, stdinChunk)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := i.f.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// WriteStdin implements agentwire.Machine.
func (a *Agent) WriteStdin(ctx context.Context, id string, r io.Reader, closeAfter bool) error {
	p, err := a.settled(ctx, id)
	if err != nil {
		return err
	}
	if p.stdin.f == nil {
		return stdinClosed(p)
	}
	select {
	case p.stdin.turn <- struct{}{}:
		defer func() { <-p.stdin.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	stop := context.AfterFunc(ctx, func() { _ = p.stdin.f.SetWriteDeadline(time.Unix(1, 0)) })
	err = p.stdin.copy(r)
	if !stop() {
		_ = p.stdin.f.SetWriteDeadline(time.Time{})
		return ctx.Err()
	}
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return stdinClosed(p).WithCause(err)
	}
	if err == nil && closeAfter {
		p.stdin.close()
	}
	return err
}

func stdinClosed(p *process) *dayfly.Error {
	return dayfly.Errorf(dayfly.CodeConflict, "the standard input of process %s is closed", p.id)
}
