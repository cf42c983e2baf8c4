package control

import "sync"

// knownMax bounds the entries of one memory. A full one is emptied: what is asked for again is read again.
const knownMax = 16 << 10

// known remembers answers of the database that nearly every request needs. Whoever changes what an answer was made of forgets it
// once the change is stored and before telling anybody, so that no answer outlives what it was true of. This process is the
// only one that changes the database.
type known[T any] struct {
	mu      sync.Mutex
	entries map[string]T
	changes int64 // how often something was forgotten
}

// recall gives what is known. since goes to note when it is not, so that a change during the reading is not missed.
func (k *known[T]) recall(name string) (v T, ok bool, since int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok = k.entries[name]
	return v, ok, k.changes
}

// note remembers what was read after since, unless something was forgotten meanwhile.
func (k *known[T]) note(name string, v T, since int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.changes != since {
		return
	}
	if k.entries == nil || len(k.entries) >= knownMax {
		k.entries = map[string]T{}
	}
	k.entries[name] = v
}

// forget drops one entry.
func (k *known[T]) forget(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.changes++
	delete(k.entries, name)
}

// forgetAll drops every entry.
func (k *known[T]) forgetAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.changes++
	clear(k.entries)
}
