package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"

	"dayfly.dev/dayfly"
)

// stdinChunk is how much is written to a command's stdin at once.
const stdinChunk = 64 << 10

// input is the standard input of one try of a command.
type input struct {
	f    *os.File      // or nil when there is none; closing it is final and unblocks a write
	tty  *terminal     // to which f belongs, or nil
	turn chan struct{} // holds a token while somebody writes
	took *atomic.Int64 // bytes of input that the process has accepted, over all of its tries
}

func newInput(f *os.File, tty *terminal, took *atomic.Int64) input {
	return input{f: f, tty: tty, turn: make(chan struct{}, 1), took: took}
}

// close ends the input: a pipe is closed for good, at a terminal the end of a file is typed.
func (i *input) close() error {
	if i.tty != nil {
		return i.tty.endInput()
	}
	return i.f.Close()
}

// end takes the input away from a command that has ended. Whoever is writing to it fails.
func (i *input) end() {
	switch {
	case i.tty != nil:
		_ = i.f.SetWriteDeadline(time.Unix(1, 0))
	case i.f != nil:
		_ = i.f.Close()
	}
}

// feed writes all of r. It is the first to write, so it has the turn already. A client that left in the middle leaves the
// input as it is if more may come, else it ends.
func (t *try) feed(r io.Reader, closeAfter bool) {
	defer func() { <-t.stdin.turn }()
	_ = t.stdin.copy(r, 0)
	if closeAfter {
		t.p.inputOver()
		_ = t.stdin.close()
	}
}

// inputOver notes that the input was closed: a further try gets none.
func (p *process) inputOver() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.again.spec != nil {
		p.again.spec.OpenStdin = false
	}
}

// copy moves r without its first skip bytes into the pipe, and counts what the pipe takes. An error is the reader's, or of the pipe:
// os.ErrClosed, EPIPE.
func (i *input) copy(r io.Reader, skip int64) error {
	buf := make([]byte, stdinChunk)
	for {
		n, err := r.Read(buf)
		known := int(min(skip, int64(n)))
		skip -= int64(known)
		if piece := buf[known:n]; len(piece) > 0 {
			n, err := i.f.Write(piece)
			i.took.Add(int64(n))
			if err != nil {
				return err
			}
			if i.tty != nil {
				i.tty.typed(piece)
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
	_, err := a.WriteStdinAt(ctx, id, dayfly.StdinNext, r, closeAfter)
	return err
}

// WriteStdinAt implements agentwire.Machine.
func (a *Agent) WriteStdinAt(ctx context.Context, id string, offset int64, r io.Reader, closeAfter bool) (int64, error) {
	p, release, err := a.settled(ctx, id)
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	t := p.try
	p.mu.Unlock()
	release()
	if t == nil || t.stdin.f == nil {
		return p.fed.Load(), stdinClosed(p)
	}
	select {
	case t.stdin.turn <- struct{}{}:
		defer func() { <-t.stdin.turn }()
	case <-ctx.Done():
		return p.fed.Load(), ctx.Err()
	}
	err = p.write(ctx, &t.stdin, offset, r, closeAfter)
	return p.fed.Load(), err
}

// write is WriteStdinAt for who has the turn.
func (p *process) write(ctx context.Context, in *input, offset int64, r io.Reader, closeAfter bool) error {
	skip := int64(0)
	if offset != dayfly.StdinNext {
		skip = p.fed.Load() - offset
	}
	if offset < dayfly.StdinNext || skip < 0 {
		return dayfly.Errorf(dayfly.CodeConflict, "process %s has accepted %d bytes of standard input, so there is a gap before byte %d", p.id, p.fed.Load(), offset).
			WithHint("send the input from there on, or without an offset to append to it")
	}
	left := make(chan struct{}) // closed when the write was broken off
	stop := context.AfterFunc(ctx, func() {
		_ = in.f.SetWriteDeadline(time.Unix(1, 0))
		close(left)
	})
	before := p.fed.Load()
	err := in.copy(r, skip)
	if !stop() {
		<-left
		_ = in.f.SetWriteDeadline(time.Time{}) // for the next one, whose turn comes after this
		return ctx.Err()
	}
	if err == nil && closeAfter {
		p.inputOver()
		err = in.close()
		if errors.Is(err, os.ErrClosed) && (offset != dayfly.StdinNext || p.fed.Load() > before) {
			return nil // it took all and has ended since, or this repeats what closed it
		}
	}
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return stdinClosed(p).WithCause(err)
	}
	return err
}

func stdinClosed(p *process) *dayfly.Error {
	return dayfly.Errorf(dayfly.CodeConflict, "the standard input of process %s is closed", p.id)
}
