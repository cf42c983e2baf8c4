package hostnet

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

const (
	elementsPerMessage = 256 // of a message that carries set elements; one attribute holds 64 KiB
	elementKeyBytes    = interfaceNameSize + addressBytes
)

// element is one sandbox's permission.
type element struct {
	slot    int
	id      string
	name    string // of the link
	address netip.Addr
}

func (e element) encode() nftables.SetElement {
	key := make([]byte, elementKeyBytes)
	copy(key, e.name)
	addr := e.address.As4()
	copy(key[interfaceNameSize:], addr[:])
	return nftables.SetElement{Key: key, Comment: e.id}
}

// decodeElement reads an element back. ok is false for one that this package did not make.
func decodeElement(s nftables.SetElement, block netip.Prefix) (e element, ok bool) {
	if len(s.Key) != elementKeyBytes {
		return element{}, false
	}
	name := s.Key[:interfaceNameSize]
	for i, c := range name {
		if c == 0 {
			name = name[:i]
			break
		}
	}
	e.address, _ = netip.AddrFromSlice(s.Key[interfaceNameSize:])
	e.name, e.id = string(name), s.Comment
	e.slot, ok = slotOf(block, e.address)
	return e, ok
}

// elements is the set of permissions in the kernel with a copy of it here: the copy finds a slot's leftover without a
// dump and refills a table that somebody flushed.
type elements struct {
	mu     sync.Mutex
	conn   *nftables.Conn
	rules  *ruleset
	bySlot map[int]element
}

// load reads the permissions that an earlier process left; no table means none.
func (s *elements) load() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, err := permissions(s.conn, s.rules)
	if err != nil {
		return err
	}
	for _, f := range found {
		if e, ok := decodeElement(f, s.rules.block); ok {
			s.bySlot[e.slot] = e
		}
	}
	return nil
}

// permissions dumps the elements from the kernel; no table means none.
func permissions(conn *nftables.Conn, rules *ruleset) ([]nftables.SetElement, error) {
	tables, err := conn.ListTablesOfFamily(rules.table.Family)
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	for _, t := range tables {
		if t.Name != rules.table.Name {
			continue
		}
		found, err := conn.GetSetElements(rules.boxes)
		if err != nil {
			return nil, fmt.Errorf("list permissions: %w", err)
		}
		return found, nil
	}
	return nil, nil
}

// add permits one sandbox.
func (s *elements) add(e element) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.conn.SetAddElements(s.rules.boxes, []nftables.SetElement{e.encode()}); err != nil {
		return fmt.Errorf("encode permission: %w", err)
	}
	if err := s.conn.Flush(); err != nil {
		return fmt.Errorf("add permission: %w", err)
	}
	s.bySlot[e.slot] = e
	return nil
}

// remove takes id's permission for the slot away, and nobody else's.
func (s *elements) remove(slot int, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.bySlot[slot]
	if !ok || e.id != id {
		return nil
	}
	if err := s.conn.SetDeleteElements(s.rules.boxes, []nftables.SetElement{e.encode()}); err != nil {
		return fmt.Errorf("encode permission: %w", err)
	}
	if err := s.conn.Flush(); err != nil && !missing(err) {
		return fmt.Errorf("remove permission: %w", err)
	}
	delete(s.bySlot, slot)
	return nil
}

// owner tells who has a slot's permission.
func (s *elements) owner(slot int) (element, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.bySlot[slot]
	return e, ok
}

// reinstall calls install with all permissions while none can change.
func (s *elements) reinstall(install func([]nftables.SetElement) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]nftables.SetElement, 0, len(s.bySlot))
	for _, e := range s.bySlot {
		all = append(all, e.encode())
	}
	return install(all)
}

// list copies the permissions.
func (s *elements) list() []element {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]element, 0, len(s.bySlot))
	for _, e := range s.bySlot {
		all = append(all, e)
	}
	return all
}

func missing(err error) bool { return errors.Is(err, unix.ENOENT) }
