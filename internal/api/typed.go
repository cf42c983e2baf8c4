package api

import (
	"io"
	"sync"
)

// typed is standard input on its way from a client to a process. It is bounded: beyond typedMax the client waits.
type typed struct {
	mu      sync.Mutex
	changed sync.Cond
	waiting []byte
	closed  bool // end of file follows
	ended   bool // nobody takes it any more
	blocked bool // a writer waits for room
}

func newTyped() *typed {
	t := &typed{}
	t.changed.L = &t.mu
	return t
}

// Write implements io.Writer. It blocks while too much waits. What comes behind the end of the input, or when nobody takes it,
// is dropped.
func (t *typed) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.blocked = true
	for len(t.waiting) > 0 && len(t.waiting)+len(p) > typedMax && !t.ended {
		t.changed.Wait()
	}
	t.blocked = false
	if t.ended {
		return 0, io.ErrClosedPipe
	}
	if !t.closed {
		t.waiting = append(t.waiting, p...)
		t.changed.Broadcast()
	}
	return len(p), nil
}

// take blocks for something that was typed. closed: this is the last of it. ok is false at the end.
func (t *typed) take() (piece []byte, closed, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.waiting) == 0 && !t.closed && !t.ended {
		t.changed.Wait()
	}
	piece, t.waiting = t.waiting, nil
	t.changed.Broadcast()
	return piece, t.closed, !t.ended
}

// close ends the input behind what was typed.
func (t *typed) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.changed.Broadcast()
}

// end drops what was typed: nobody takes it any more.
func (t *typed) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.changed.Broadcast()
}

// full tells whether the client waits for room.
func (t *typed) full() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.blocked
}
