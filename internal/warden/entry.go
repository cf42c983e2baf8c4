package warden

import (
	"container/heap"
	"time"

	"dayfly.dev/dayfly"
)

// entry is what the warden knows of one machine.
type entry struct {
	id       string
	lease    Lease         // the last one that could be read, or an assumed one
	assumed  bool          // no lease could ever be read
	damaged  bool          // the file cannot be read now; read it again later
	orphan   bool          // the file is gone although the machine lives
	due      time.Duration // CLOCK_BOOTTIME of this boot, when to try to end it
	slot     int           // in the heap, or -1
	lived    bool          // a process of it was seen
	lives    bool
	ending   bool // a goroutine works on it
	ended    bool // it was ended at its deadline
	unwatch  func()
	attached bool
}

// dueAt is when the lease ends on this boot's clock. One of another boot has ended.
func dueAt(l dayfly.Lease, now dayfly.Instant) time.Duration {
	if l.BootID != now.BootID {
		return 0
	}
	return l.Deadline
}

// queue orders the entries by when they are due.
type queue []*entry

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due < q[j].due }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].slot, q[j].slot = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	e := x.(*entry)
	e.slot = len(*q)
	*q = append(*q, e)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	e.slot = -1
	return e
}

// schedule puts e into the queue, or moves it, for the time due.
func (q *queue) schedule(e *entry, due time.Duration) {
	e.due = due
	if e.slot >= 0 {
		heap.Fix(q, e.slot)
		return
	}
	heap.Push(q, e)
}

// drop takes e out of the queue.
func (q *queue) drop(e *entry) {
	if e.slot >= 0 {
		heap.Remove(q, e.slot)
	}
}
