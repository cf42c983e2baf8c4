package dayfly

import (
	"math"
	"strconv"
)

// pieces puts output together that may come in parts over several connections: nothing twice, and nothing skipped silently.
type pieces struct {
	next  map[EventType]int64 // offset of the next byte of each stream
	queue []Event             // not given out yet
}

func newPieces() pieces { return pieces{next: map[EventType]int64{}} }

// output queues what is new of a piece of output: a resumed stream may repeat some of it, and must not skip any silently.
func (p *pieces) output(kind EventType, offset int64, data []byte) {
	next := p.next[kind]
	if offset > next {
		p.dropped(kind, next, offset-next)
		next = offset
	}
	if skip := next - offset; skip > 0 {
		if skip >= int64(len(data)) {
			return
		}
		data = data[skip:]
	}
	p.next[kind] = next + int64(len(data))
	p.queue = append(p.queue, Event{Type: kind, Offset: next, Data: data})
}

func (p *pieces) dropped(of EventType, offset, n int64) {
	end := offset + n
	if n > 0 && end < offset {
		end = math.MaxInt64
	}
	offset = max(offset, p.next[of])
	if end <= offset {
		return
	}
	p.next[of] = end
	p.queue = append(p.queue, Event{Type: EventDropped, Of: of, Offset: offset, Bytes: end - offset})
}

// pop gives the next queued event.
func (p *pieces) pop() (Event, bool) {
	if len(p.queue) == 0 {
		return Event{}, false
	}
	ev := p.queue[0]
	p.queue = p.queue[1:]
	return ev, true
}

func offsetText(n int64) string { return strconv.FormatInt(n, 10) }
