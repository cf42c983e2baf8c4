package agent

import (
	"sync"

	"dayfly.dev/dayfly"
)

// Limits of what waits for a slow reader of a watch.
const (
	changesMax     = 16 << 10
	changesBytes   = 2 << 20 // with their paths
	changeOverhead = 64      // bytes that a change takes beside its paths
)

// changeQueue holds changes until they are read. When there are too many, those that come are dropped until the reader has
// come to the overflow that stands for them.
type changeQueue struct {
	ready chan struct{} // holds a token when something was added

	mu       sync.Mutex
	changes  []dayfly.FileChange
	bytes    int
	lost     bool                // an overflow is the last in the queue
	modified map[string]struct{} // paths whose last change in the queue is a modification
	end      error               // why nothing comes after what is queued
}

func newChangeQueue() *changeQueue {
	return &changeQueue{ready: make(chan struct{}, 1), modified: make(map[string]struct{})}
}

// push adds a change. Of modifications of one file that nobody has read yet one is enough.
func (q *changeQueue) push(c dayfly.FileChange, root string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lost || q.end != nil {
		return
	}
	if c.Kind == dayfly.ChangeModified {
		if _, ok := q.modified[c.Path]; ok {
			return
		}
		q.modified[c.Path] = struct{}{}
	} else {
		delete(q.modified, c.Path)
	}
	if len(q.changes) >= changesMax || q.bytes >= changesBytes {
		c = dayfly.FileChange{Kind: dayfly.ChangeOverflow}
	}
	if c.Kind == dayfly.ChangeOverflow {
		c.Path, q.lost = root, true
	}
	q.changes = append(q.changes, c)
	q.bytes += sizeOf(c)
	q.wakeLocked()
}

func sizeOf(c dayfly.FileChange) int { return len(c.Path) + len(c.From) + changeOverhead }

// full tells that changes are being dropped.
func (q *changeQueue) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lost
}

// pop takes the first change. err: there will be none any more.
func (q *changeQueue) pop() (c dayfly.FileChange, ok bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end == errWatchClosed || len(q.changes) == 0 {
		return c, false, q.end
	}
	c, q.changes = q.changes[0], q.changes[1:]
	q.bytes -= sizeOf(c)
	if c.Kind == dayfly.ChangeOverflow {
		q.lost = false
		clear(q.modified)
	}
	if c.Kind == dayfly.ChangeModified {
		delete(q.modified, c.Path)
	}
	if len(q.changes) == 0 {
		q.changes = nil
	}
	return c, true, nil
}

// finish says why nothing more comes. The first reason counts, but for that of Close.
func (q *changeQueue) finish(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end == nil || err == errWatchClosed {
		q.end = err
	}
	q.wakeLocked()
}

func (q *changeQueue) wakeLocked() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}
