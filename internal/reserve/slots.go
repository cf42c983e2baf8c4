package reserve

import (
	"fmt"
	"math/bits"
	"sync"

	"dayfly.dev/dayfly"
)

const wordBits = 64

// Slots hands out small numbers in turn, each to one owner at a time. A number that was just given back comes last, so that its
// network address and host uids rest for as long as possible: what the kernel still does for the old owner need not be
// waited for. The zero value has all SlotsPerBlock of them free. It remembers nothing: after a restart the owner marks what is
// still in use. It may be used from several goroutines.
type Slots struct {
	mu    sync.Mutex
	next  int                              // where the search begins
	words [SlotsPerBlock / wordBits]uint64 // a set bit is taken
}

// NewSlots makes slots that are all free.
func NewSlots() *Slots { return &Slots{} }

// Take gives the next free slot, beginning anew after the last. CodeNoCapacity: there is none.
func (s *Slots) Take() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, below := s.next/wordBits, uint64(1)<<(s.next%wordBits)-1 // bits of the first word that come at the very end
	for i := range len(s.words) + 1 {
		word := (first + i) % len(s.words)
		taken := s.words[word]
		if i == 0 {
			taken |= below
		}
		if free := bits.TrailingZeros64(^taken); free < wordBits {
			s.words[word] |= 1 << free
			slot := word*wordBits + free
			s.next = (slot + 1) % SlotsPerBlock
			return slot, nil
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
