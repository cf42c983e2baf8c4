package api

import (
	"context"
	"sync"

	"dayfly.dev/dayfly"
)

// errStopping ends what may never end by itself when the server stops.
var errStopping = dayfly.Errorf(dayfly.CodeUnavailable, "the server is stopping; commands go on").
	WithHint("come back in a moment and go on where this ended")

// residents are requests that end only when their client leaves, or the server stops.
type residents struct {
	stay context.Context // ends at leave
	end  context.CancelFunc

	mu    sync.Mutex
	count int
	left  bool
	empty chan struct{} // closed when left and nobody is there
}

func (r *residents) open() {
	r.stay, r.end = context.WithCancel(context.Background())
	r.empty = make(chan struct{})
}

// enter begins a stay; out ends it and may be called again. The error refuses it: the server stops.
func (r *residents) enter() (out func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left {
		return nil, errStopping
	}
	r.count++
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.count--
		r.closeLocked()
	}), nil
}

func (r *residents) closeLocked() {
	if r.left && r.count == 0 {
		close(r.empty)
	}
}

// leave asks everyone to leave and waits until they have, or ctx ends.
func (r *residents) leave(ctx context.Context) error {
	r.mu.Lock()
	if !r.left {
		r.left = true
		r.closeLocked()
	}
	r.mu.Unlock()
	r.end()
	select {
	case <-r.empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// untilStop makes a context of a request that also ends, with errStopping as its cause, when the server stops.
func (c *call) untilStop() (ctx context.Context, leave context.CancelCauseFunc, done func()) {
	ctx, leave = context.WithCancelCause(c.ctx())
	stop := context.AfterFunc(c.residents.stay, func() { leave(errStopping) })
	return ctx, leave, func() {
		stop()
		leave(nil)
	}
}
