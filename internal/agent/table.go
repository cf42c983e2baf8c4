package agent

import (
	"hash/maphash"
	"slices"
	"sync"

	"dayfly.dev/dayfly"
)

// Limits of what is kept of finished commands.
const (
	finishedMax    = 1000
	retainShare    = 16 // output may take 1/16 of the sandbox's memory
	retainMax      = 64 << 20
	forgottenMax   = 16 << 10 // ids of dropped records that are remembered, twice
	recordBytes    = 1 << 10  // what a record costs beside its output
	commandTextMax = 4 << 10
)

// retainBytes is how much output is kept in all under a memory limit; 0 means that the limit is unknown.
func retainBytes(memoryBytes int64) int64 {
	if memoryBytes <= 0 {
		return retainMax
	}
	return min(retainMax, memoryBytes/retainShare)
}

// table holds the records of all commands, and the budget of memory for their output. Records of finished commands make
// room, oldest first; those of running ones stay, and keep less output when there is no room.
type table struct {
	mu       sync.Mutex
	limit    int64
	used     int64
	byID     map[string]*process
	byName   map[string]*process // those with a name that have not ended
	order    []*process          // by start
	finished []*process          // by end, oldest first
	seed     maphash.Seed
	recent   map[uint64]struct{} // hashes of the ids of dropped records
	older    map[uint64]struct{}
	lost     bool // hashes were discarded: an id that nobody knows may have been that of a command
}

func newTable(limit int64) *table {
	return &table{limit: limit, byID: make(map[string]*process), byName: make(map[string]*process), seed: maphash.MakeSeed(), recent: make(map[uint64]struct{})}
}

// add reserves p's id, and its name until it has ended.
func (t *table) add(p *process) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[p.id] != nil || t.droppedLocked(p.id) {
		return dayfly.Errorf(dayfly.CodeConflict, "the process %s was started before", p.id).
			WithHint("read its result or attach to its output instead")
	}
	if p.name != "" {
		if other := t.byName[p.name]; other != nil {
			return dayfly.Errorf(dayfly.CodeConflict, "the running process %s has the name %q", other.id, p.name).
				WithHint("end it first, or choose another name")
		}
		t.byName[p.name] = p
	}
	t.byID[p.id] = p
	t.order = append(t.order, p)
	return nil
}

// abandon removes p as if it had never been: it could not be started as asked.
func (t *table) abandon(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unnameLocked(p)
	t.deleteLocked(p)
}

func (t *table) unnameLocked(p *process) {
	if t.byName[p.name] == p {
		delete(t.byName, p.name)
	}
}

func (t *table) deleteLocked(p *process) {
	delete(t.byID, p.id)
	if i := slices.Index(t.order, p); i >= 0 {
		t.order = slices.Delete(t.order, i, i+1)
	}
}

// find gives a record, or the error that says why there is none.
func (t *table) find(id string) (*process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byID[id]; p != nil {
		return p, nil
	}
	if !dayfly.ValidID(dayfly.PrefixProcess, id) || !t.lost && !t.droppedLocked(id) {
		return nil, dayfly.Errorf(dayfly.CodeNotFound, "there is no such process")
	}
	return nil, dayfly.Errorf(dayfly.CodeGone, "the record of process %s is no longer kept", id).
		WithHint("a sandbox keeps its last %d finished processes and a limited amount of output", finishedMax)
}

// all lists the records by start.
func (t *table) all() []*process {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.order)
}

// finish moves a record to the finished ones and makes room.
func (t *table) finish(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unnameLocked(p)
	t.finished = append(t.finished, p)
	t.used += recordBytes
	t.charge(p, recordBytes)
	for len(t.finished) > 1 && (len(t.finished) > finishedMax || t.used > t.limit) {
		t.evictLocked()
	}
}

// charge notes what p holds of the budget. It needs mu.
func (t *table) charge(p *process, n int64) { p.charged += n }

// reserve takes n bytes of the budget for p's output, dropping records of finished commands for it. With must it always
// succeeds: a few bytes are due to every command.
func (t *table) reserve(p *process, n int64, must bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.used+n > t.limit && len(t.finished) > 0 {
		t.evictLocked()
	}
	if t.used+n > t.limit && !must {
		return false
	}
	t.used += n
	t.charge(p, n)
	return true
}

// giveBack returns n bytes of p's share.
func (t *table) giveBack(p *process, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n = min(n, p.charged)
	t.used -= n
	t.charge(p, -n)
}

// evictLocked drops the oldest finished record. Whoever reads it now still holds it.
func (t *table) evictLocked() {
	p := t.finished[0]
	t.finished[0] = nil
	t.finished = t.finished[1:]
	t.used -= p.charged
	t.charge(p, -p.charged)
	t.deleteLocked(p)
	t.recent[maphash.String(t.seed, p.id)] = struct{}{}
	if len(t.recent) >= forgottenMax {
		t.lost = t.lost || len(t.older) > 0
		t.older, t.recent = t.recent, make(map[uint64]struct{})
	}
}

func (t *table) droppedLocked(id string) bool {
	h := maphash.String(t.seed, id)
	_, recent := t.recent[h]
	_, older := t.older[h]
	return recent || older
}
