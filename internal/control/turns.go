package control

import (
	"context"
	"sync"
)

// turns lets those who change one thing of a sandbox do so one after the other. The zero value is ready.
type turns struct {
	mu sync.Mutex
	of map[string]*turn
}

// turn is that of one sandbox.
type turn struct {
	taken chan struct{} // capacity 1: holding the element is having the turn
	users int           // having or waiting; guarded by turns.mu
}

// take waits for the turn of id, until ctx ends. leave gives it on.
func (t *turns) take(ctx context.Context, id string) (leave func(), err error) {
	one := t.join(id)
	select {
	case one.taken <- struct{}{}:
		return func() { <-one.taken; t.quit(id, one) }, nil
	case <-ctx.Done():
		t.quit(id, one)
		return nil, ctx.Err()
	}
}

// tryTake takes the turn of id unless somebody has it.
func (t *turns) tryTake(id string) (leave func(), ok bool) {
	one := t.join(id)
	select {
	case one.taken <- struct{}{}:
		return func() { <-one.taken; t.quit(id, one) }, true
	default:
		t.quit(id, one)
		return nil, false
	}
}

func (t *turns) join(id string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.of[id]
	if one == nil {
		if t.of == nil {
			t.of = map[string]*turn{}
		}
		one = &turn{taken: make(chan struct{}, 1)}
		t.of[id] = one
	}
	one.users++
	return one
}

func (t *turns) quit(id string, one *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one.users--; one.users == 0 {
		delete(t.of, id)
	}
}
