package reserve

import (
	"errors"
	"fmt"
	"sync"
)

// Slots hands out the slots of a block, lowest first, so that low ones are used again and again. It is memory only: what is
// in use after a restart is told by Mark. It is safe for concurrent use.
type Slots struct {
	mu    sync.Mutex
	taken [SlotsPerBlock]bool
	first int // no slot below is free
}

// ErrNoSlot says that every slot is taken.
var ErrNoSlot = errors.New("every slot is taken")

// NewSlots makes slots that are all free.
func NewSlots() *Slots { return &Slots{} }

// Take takes the lowest free slot. ErrNoSlot: there is none.
func (s *Slots) Take() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := s.first; n < SlotsPerBlock; n++ {
		if !s.taken[n] {
			s.taken[n] = true
			s.first = n + 1
			return n, nil
		}
	}
	s.first = SlotsPerBlock
	return 0, ErrNoSlot
}

// Mark notes that a slot is in use. Marking it twice is an error: two machines would share it.
func (s *Slots) Mark(n int) error {
	if n < 0 || n >= SlotsPerBlock {
		return fmt.Errorf("slot %d is outside 0…%d", n, SlotsPerBlock-1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[n] {
		return fmt.Errorf("slot %d is in use twice", n)
	}
	s.taken[n] = true
	return nil
}

// Free gives a slot back. Freeing a free slot does nothing.
func (s *Slots) Free(n int) {
	if n < 0 || n >= SlotsPerBlock {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken[n] = false
	s.first = min(s.first, n)
}
