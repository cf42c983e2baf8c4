package reserve

import (
	"fmt"
	"math/bits"
	"sync"

	"dayfly.dev/dayfly"
)

const wordBits = 64

// Slots hands out small numbers, lowest first, each to one owner at a time. The zero value has all SlotsPerBlock of them free. It
// remembers nothing: after a restart the owner marks what is still in use. It may be used from several goroutines.
type Slots struct {
	mu    sync.Mutex
	words [SlotsPerBlock / wordBits]uint64 // a set bit is taken
}

// NewSlots makes slots that are all free.
func NewSlots() *Slots { return &Slots{} }

// Take gives the lowest free slot. CodeNoCapacity: there is none.
func (s *Slots) Take() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, w := range s.words {
		if free := bits.TrailingZeros64(^w); free < wordBits {
			s.words[i] |= 1 << free
			return i*wordBits + free, nil
		}
	}
	return 0, dayfly.Errorf(dayfly.CodeNoCapacity, "all %d sandbox slots of this host are in use", SlotsPerBlock)
}

// Mark notes that a slot is in use. One that is marked already is an error: two machines would share it.
func (s *Slots) Mark(slot int) error {
	if slot < 0 || slot >= SlotsPerBlock {
		return fmt.Errorf("slot %d is outside 0…%d", slot, SlotsPerBlock-1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	word, bit := &s.words[slot/wordBits], uint64(1)<<(slot%wordBits)
	if *word&bit != 0 {
		return fmt.Errorf("slot %d is in use twice", slot)
	}
	*word |= bit
	return nil
}

// Free gives a slot back. Freeing a free one, or a number that is no slot, does nothing.
func (s *Slots) Free(slot int) {
	if slot < 0 || slot >= SlotsPerBlock {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.words[slot/wordBits] &^= 1 << (slot % wordBits)
}
