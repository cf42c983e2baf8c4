package agent

import "dayfly.dev/dayfly"

// Sizes of captures.
const (
	captureFloor  = 64 << 10  // of each stream's tail, whatever the budget
	followTailMin = 256 << 10 // of the tail of a followed process, which is its back-pressure buffer
	captureFirst  = 512       // first allocation
)

// capture keeps the head and the tail of one output stream. It needs its process's lock.
type capture struct {
	p       *process
	head    []byte
	headMax int
	ring    []byte // the tail: n bytes from start on, around its end
	start   int
	n       int
	tailMax int
	total   int64 // bytes ever written
	closed  bool  // head takes no more
}

func newCapture(p *process, limit int, follow bool) capture {
	c := capture{p: p, headMax: limit / 2, tailMax: limit - limit/2}
	if follow {
		c.tailMax = max(c.tailMax, followTailMin)
	}
	return c
}

// tailStart is the offset of the first byte that the tail still holds.
func (c *capture) tailStart() int64 { return c.total - int64(c.n) }

// write keeps b: first in the head, then in the tail, whose oldest bytes make way.
func (c *capture) write(b []byte) {
	c.total += int64(len(b))
	b = b[c.fillHead(b):]
	if len(b) == 0 {
		return
	}
	c.growRing(c.n + len(b))
	if len(b) >= len(c.ring) {
		c.start, c.n = 0, copy(c.ring, b[len(b)-len(c.ring):])
		return
	}
	if over := c.n + len(b) - len(c.ring); over > 0 {
		c.start = (c.start + over) % len(c.ring)
		c.n -= over
	}
	at := (c.start + c.n) % len(c.ring)
	if first := copy(c.ring[at:], b); first < len(b) {
		copy(c.ring, b[first:])
	}
	c.n += len(b)
}

// fillHead appends what fits to the head and tells how much that was.
func (c *capture) fillHead(b []byte) int {
	n := min(len(b), c.headMax-len(c.head))
	if c.closed || n <= 0 {
		c.closed = true
		return 0
	}
	if need := len(c.head) + n; need > cap(c.head) {
		size := min(c.headMax, max(need, 2*cap(c.head), captureFirst))
		if !c.p.agent.table.reserve(c.p, int64(size-cap(c.head)), false /* or the tail takes it */) {
			c.closed = true
			return 0
		}
		c.head = append(make([]byte, 0, size), c.head...)
	}
	c.head = append(c.head, b[:n]...)
	return n
}

// growRing makes room for need bytes in the tail, as far as its limit and the budget allow.
func (c *capture) growRing(need int) {
	if need <= len(c.ring) || len(c.ring) >= c.tailMax {
		return
	}
	size := min(c.tailMax, max(need, 2*len(c.ring), captureFirst))
	floor := min(c.tailMax, captureFloor)
	if !c.p.agent.table.reserve(c.p, int64(size-len(c.ring)), size <= floor) {
		if len(c.ring) >= floor {
			return
		}
		size = floor
		c.p.agent.table.reserve(c.p, int64(size-len(c.ring)), true /* the floor is due to every command */)
	}
	ring := make([]byte, size)
	c.copyTail(ring)
	c.ring, c.start = ring, 0
}

// copyTail copies the tail to dst in order.
func (c *capture) copyTail(dst []byte) {
	if c.n == 0 {
		return
	}
	first := copy(dst[:c.n], c.ring[c.start:])
	copy(dst[first:c.n], c.ring)
}

// room is how many bytes can be written before the tail drops a byte at or after offset.
func (c *capture) room(offset int64) int {
	offset = max(offset, c.tailStart()) // older bytes are dropped already
	if c.total == offset {
		return c.tailMax
	}
	return max(0, max(len(c.ring), c.tailMax)-int(c.total-offset))
}

// read copies bytes from offset on to dst. When those at offset are no longer kept it tells how many are missing instead.
func (c *capture) read(offset int64, dst []byte) (n int, dropped int64) {
	if offset < int64(len(c.head)) {
		return copy(dst, c.head[offset:]), 0
	}
	if start := c.tailStart(); offset < start {
		return 0, start - offset
	}
	skip := int(offset - c.tailStart())
	if skip >= c.n {
		return 0, 0
	}
	at := (c.start + skip) % len(c.ring)
	return copy(dst, c.ring[at:min(len(c.ring), at+c.n-skip)]), 0
}

// finish gives back the memory that the capture does not need. Nothing is written after it.
func (c *capture) finish() {
	held := cap(c.head) + len(c.ring)
	tail := make([]byte, c.n)
	c.copyTail(tail)
	c.ring, c.start = tail, 0
	if cap(c.head) > len(c.head) {
		c.head = append(make([]byte, 0, len(c.head)), c.head...)
	}
	if spare := held - cap(c.head) - len(c.ring); spare > 0 {
		c.p.agent.table.giveBack(c.p, int64(spare))
	}
}

// captured gives what was kept, after finish. The slices are shared and never change.
func (c *capture) captured() dayfly.Captured {
	return dayfly.Captured{Head: c.head, Tail: c.ring, Bytes: c.total}
}
