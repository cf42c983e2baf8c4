package agent

import (
	"context"
	"errors"
	"io"
	"sync"

	"dayfly.dev/dayfly"
)

// readChunk is the most output that one event carries.
const readChunk = 64 << 10

// errDetached is what Next gives after Close.
var errDetached = errors.New("the output stream was closed")

// reader follows the output of one process from its own position on. It implements dayfly.OutputStream.
type reader struct {
	p      *process
	ctx    context.Context
	closed chan struct{}
	once   sync.Once
	buf    []byte

	// under p.mu
	at    [streams]int64
	until [streams]int64 // where a reader that does not follow stops, or -1
	ended bool           // the exit was given
}

// attach makes a reader. While it is attached, a followed process waits for it.
func (p *process) attach(ctx context.Context, from dayfly.Offsets, follow bool) *reader {
	r := &reader{p: p, ctx: ctx, closed: make(chan struct{}), at: [streams]int64{from.Stdout, from.Stderr}, until: [streams]int64{-1, -1}}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !follow && p.exit == nil {
		r.until = [streams]int64{p.out[stdout].total, p.out[stderr].total}
	}
	p.readers[r] = struct{}{}
	return r
}

// Next implements dayfly.OutputStream.
func (r *reader) Next() (dayfly.Output, error) {
	p := r.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if r.ended {
			return dayfly.Output{}, io.EOF
		}
		for stream := range r.at {
			if o, ok := r.takeLocked(stream); ok {
				return o, nil
			}
		}
		if r.until[stdout] >= 0 {
			return dayfly.Output{}, io.EOF
		}
		if p.exit != nil {
			exit := *p.exit
			r.ended = true
			return dayfly.Output{Kind: dayfly.OutputExit, Exit: &exit}, nil
		}
		if p.changed == nil {
			p.changed = make(chan struct{})
		}
		if err := r.sleep(p.changed); err != nil {
			return dayfly.Output{}, err
		}
	}
}

// sleep gives up the lock until something changes.
func (r *reader) sleep(changed <-chan struct{}) error {
	r.p.mu.Unlock()
	defer r.p.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-r.closed:
		return errDetached
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}

// takeLocked takes the next event of one stream, if there is one.
func (r *reader) takeLocked(stream int) (dayfly.Output, bool) {
	c := &r.p.out[stream]
	at := r.at[stream]
	left := c.total - at
	if r.until[stream] >= 0 {
		left = r.until[stream] - at
	}
	if left <= 0 {
		return dayfly.Output{}, false
	}
	kind := dayfly.OutputStdout
	if stream == stderr {
		kind = dayfly.OutputStderr
	}
	if r.buf == nil {
		r.buf = make([]byte, min(left, readChunk))
	} else if int64(len(r.buf)) < min(left, readChunk) {
		r.buf = make([]byte, readChunk)
	}
	n, dropped := c.read(at, r.buf[:min(left, int64(len(r.buf)))])
	if dropped > 0 {
		dropped = min(dropped, left)
		r.at[stream] += dropped
		r.p.spaceLocked()
		return dayfly.Output{Kind: dayfly.OutputDropped, Stream: kind, Offset: at, Bytes: dropped}, true
	}
	r.at[stream] += int64(n)
	r.p.spaceLocked()
	return dayfly.Output{Kind: kind, Offset: at, Data: r.buf[:n]}, true
}

// Close implements dayfly.OutputStream.
func (r *reader) Close() error {
	r.once.Do(func() {
		close(r.closed)
		r.p.mu.Lock()
		defer r.p.mu.Unlock()
		delete(r.p.readers, r)
		r.p.spaceLocked()
	})
	return nil
}
