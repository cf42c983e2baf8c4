package agent

import (
	"bytes"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// oomLedger attributes kills for lack of memory to commands. The kernel only counts them for the whole sandbox, so the counter
// is read whenever the set of commands that have processes changes. What was killed while only one command had any was that
// command's, whoever of its processes it was. What was killed while several had some is nobody's for certain: of those, only
// commands that died of SIGKILL themselves are said to have died of it, unless somebody asked for that.
type oomLedger struct {
	events *os.File // or nil: nothing can be told

	mu    sync.Mutex
	seen  int64
	live  map[*process]*oomShare
	loose bool // a command without a cgroup runs or ran: nobody knows when its last process died
}

// oomShare is what was killed while one command had processes.
type oomShare struct {
	sure  int64
	maybe int64
}

func newLedger(events *os.File) *oomLedger {
	l := &oomLedger{events: events, live: make(map[*process]*oomShare)}
	l.seen = l.read()
	return l
}

// enter notes that a try of p may have processes from now on, all of them in a leaf or not.
func (l *oomLedger) enter(p *process, leaf bool) {
	if l.events == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settleLocked()
	l.live[p] = &oomShare{}
	l.loose = l.loose || !leaf
}

// leave notes that p has no processes any more.
func (l *oomLedger) leave(p *process) {
	if l.events == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settleLocked()
	delete(l.live, p)
}

// killed tells whether p, whose try ended with the code, or a process of it was killed for lack of memory. asked: its end was
// asked for.
func (l *oomLedger) killed(p *process, code int, asked bool) bool {
	if l.events == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settleLocked()
	share := l.live[p]
	if share == nil {
		return false
	}
	if p.kin.leaf == nil {
		delete(l.live, p)
	}
	return share.sure > 0 || share.maybe > 0 && !asked && code == signalBase+int(unix.SIGKILL)
}

// settleLocked attributes what was killed since it was called last.
func (l *oomLedger) settleLocked() {
	now := l.read()
	killed := now - l.seen
	l.seen = now
	if killed <= 0 {
		return
	}
	for _, share := range l.live {
		if len(l.live) == 1 && !l.loose {
			share.sure += killed
		} else {
			share.maybe += killed
		}
	}
}

// read gives how many processes the kernel has killed for lack of memory, or 0 when it cannot be known.
func (l *oomLedger) read() int64 {
	if l.events == nil {
		return 0
	}
	buf := make([]byte, eventsBytes)
	n, _ := unix.Pread(int(l.events.Fd()), buf, 0)
	for line := range bytes.Lines(buf[:max(0, n)]) {
		if v, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			kills, _ := strconv.ParseInt(string(bytes.TrimSpace(v)), 10, 64)
			return kills
		}
	}
	return 0
}
