package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"dayfly.dev/dayfly"
)

// stdinChunk is how much is written to a command's stdin at once.
const stdinChunk = 64 << 10

// input is a command's standard input.
type input struct {
	f    *os.File // or nil when there is none; closing it is final and unblocks a write
	turn sync.Mutex
}

// close ends the input.
func (i *input) close() {
	if i.f != nil {
		_ = i.f.Close()
	}
}

// feed writes all of r. A client that left in the middle leaves the input as it is if more may come, else it ends.
func (i *input) feed(r io.Reader, closeAfter bool) {
	i.turn.Lock()
	defer i.turn.Unlock()
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
	p, err := a.table.find(id)
	if err != nil {
		return err
	}
	if p.stdin.f == nil {
		return stdinClosed(p)
	}
	p.stdin.turn.Lock()
	defer p.stdin.turn.Unlock()
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
