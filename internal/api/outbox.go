package api

import (
	"errors"
	"sync"
	"time"
)

// errUntaken says that a client took nothing for so long that it is not waited for any more.
var errUntaken = errors.New("the client takes nothing")

// Bounds of what is on its way to one client of a stream. With one piece of output beyond boxMax, and as much being written, a
// client that takes nothing holds less than 400 KiB of this process.
const (
	boxMax     = 64 << 10 // bytes that wait, beyond which the source is slowed down
	boxKeepMax = 256 << 10
	slowLooks  = 4 // looks within the time after which a client is slow
	quietLooks = 4 // looks within a silence: one is at most so much shorter than it may be
)

// outbox holds what is to be written to one client: one goroutine fills it while another writes what was in it before. So writes
// are as large as the client is slow, nothing that is ready waits for more, and the source is slowed to the client's pace. A
// third goroutine sends a sign of life after a silence, and cuts a client that takes nothing: its source is told at once, and
// what is on its way has a while longer to arrive.
type outbox struct {
	drain     func([]byte) error        // writes all of it to the client; called by one goroutine at a time
	taken     func() (int64, bool)      // counts bytes that the client's host has taken, where that is known
	expire    func(after time.Duration) // ends a write that takes longer, from now on
	sign      func([]byte) []byte       // appends a sign of life, or nil for none
	onUntaken func()                    // called once when the client is cut; must not block
	pool      *sync.Pool                // of *[]byte
	silence   time.Duration
	limit     time.Duration // without anything taken, after which a client is cut
	grace     time.Duration // for what is on its way then

	mu      sync.Mutex
	changed sync.Cond // any of the following
	waiting *[]byte   // what is to be written, or nil
	running bool
	writing bool
	moved   bool  // something was put in since the last look
	cut     bool  // the client was slow; nothing is put in any more
	writes  int64 // that have ended
	err     error // of the first failed write; nothing follows it

	done sync.WaitGroup
	end  chan struct{}
}

// run begins to write, until the function that it returns is called; that waits until everything is written, or the client is
// gone or cut. Before and after, what is put in is written at once.
func (o *outbox) run() (stop func()) {
	o.changed.L = &o.mu
	o.end = make(chan struct{})
	o.running = true
	var writer sync.WaitGroup
	writer.Go(o.write)
	o.done.Go(o.watch)
	return func() {
		o.mu.Lock()
		o.running = false
		o.changed.Broadcast()
		o.mu.Unlock()
		writer.Wait()
		close(o.end)
		o.done.Wait()
		o.mu.Lock()
		cut := o.cut
		o.mu.Unlock()
		if !cut {
			o.expire(o.limit) // the last bytes of the answer have nobody who watches over them
		}
	}
}

// put adds what add appends. It blocks while too much waits. An error says that it was not put in: errUntaken, or that of a write.
func (o *outbox) put(add func([]byte) []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.running && o.err == nil && !o.cut && o.waiting != nil && len(*o.waiting) >= boxMax {
		o.changed.Wait()
	}
	switch {
	case o.err != nil:
		return o.err
	case o.cut:
		return errUntaken
	}
	o.addLocked(add)
	o.moved = true
	if o.running {
		o.changed.Broadcast()
		return nil
	}
	o.writeLocked()
	return o.err
}

// last writes the last words, also to a client that was cut. Only after the end of run.
func (o *outbox) last(add func([]byte) []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.addLocked(add)
		o.writeLocked()
	}
}

func (o *outbox) addLocked(add func([]byte) []byte) {
	if o.waiting == nil {
		o.waiting = o.pool.Get().(*[]byte)
	}
	*o.waiting = add(*o.waiting)
}

// writeLocked writes what waits; the lock is not held meanwhile.
func (o *outbox) writeLocked() {
	box := o.waiting
	o.waiting, o.writing = nil, true
	o.mu.Unlock()
	err := o.drain(*box)
	if cap(*box) <= boxKeepMax {
		*box = (*box)[:0]
		o.pool.Put(box)
	}
	o.mu.Lock()
	o.writing, o.err = false, err
	o.writes++
}

// write writes what waits, as long as there is anything.
func (o *outbox) write() {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() { o.changed.Broadcast() }()
	for o.err == nil {
		switch {
		case o.waiting != nil:
			o.changed.Broadcast() // there is room
			o.writeLocked()
		case !o.running:
			return
		default:
			o.changed.Wait()
		}
	}
}

// failed is the error of the first write that failed, or errUntaken, or nil.
func (o *outbox) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil && o.cut {
		return errUntaken
	}
	return o.err
}

// busy tells whether a write is under way.
func (o *outbox) busy() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.writing
}

// pace is what the watch remembers from one look to the next.
type pace struct {
	every time.Duration // between looks
	quiet time.Time     // since when nothing was put in; the last thing was, up to one look earlier
	stuck time.Time     // since when the client has taken nothing of a write, or zero
	taken int64         // at stuck
}

// watch looks after the client until the end.
func (o *outbox) watch() {
	every := max(min(o.silence/quietLooks, o.limit/slowLooks), time.Millisecond)
	tick := time.NewTicker(every)
	defer tick.Stop()
	p := pace{quiet: time.Now(), every: every}
	for {
		select {
		case <-o.end:
			return
		case now := <-tick.C:
			o.look(&p, now)
		}
	}
}

func (o *outbox) look(p *pace, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.moved || o.writing {
		o.moved, p.quiet = false, now
	}
	switch {
	case o.err != nil || o.cut:
	case o.writing:
		o.lookSlowLocked(p, now)
	case o.sign != nil && o.running && o.waiting == nil && now.Sub(p.quiet) >= o.silence-p.every: // the next look would be too late
		p.stuck, p.quiet = time.Time{}, now
		o.addLocked(o.sign)
		o.changed.Broadcast()
	default:
		p.stuck = time.Time{}
	}
}

// lookSlowLocked cuts a client that has taken nothing for too long while something is being written to it.
func (o *outbox) lookSlowLocked(p *pace, now time.Time) {
	taken, known := o.taken()
	if !known {
		taken = o.writes
	}
	if p.stuck.IsZero() || taken != p.taken {
		p.stuck, p.taken = now, taken
		return
	}
	if now.Sub(p.stuck) < o.limit {
		return
	}
	o.cut = true
	o.expire(o.grace)
	o.onUntaken()
	o.changed.Broadcast()
}
