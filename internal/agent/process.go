package agent

import (
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// The output streams of a process.
const (
	stdout = iota
	stderr
	streams
)

// process is one command: its record, its output, and while it runs its means of control.
type process struct {
	agent        *Agent
	id           string
	command      string // as shown
	onDisconnect dayfly.OnDisconnect
	follow       bool
	started      time.Time
	pid          int   // of the leader; set before it can exit
	mark         int   // oom_score_adj of all its descendants
	leaf         *leaf // its cgroup, or nil
	oomBefore    int64
	charged      int64 // of the table's budget, under the table's lock

	stdin input
	pipes [streams]*os.File
	wide  [streams]bool // the pipe was made larger; belongs to the stream's pump

	launched chan struct{} // closed when it is settled whether it was started

	mu       sync.Mutex
	timer    *time.Timer
	out      [streams]capture
	pending  int // what must still happen before it is finished: the leader's exit, both drains, a tree's death
	leaderUp bool
	status   unix.WaitStatus
	ended    time.Time
	timedOut bool
	exit     *dayfly.Exit
	readers  map[*reader]struct{}
	changed  chan struct{} // closed at the next change that a reader waits for, or nil when none waits
	space    chan struct{} // closed when a reader has moved on, or nil when the pump does not wait
	done     chan struct{} // closed when exit is set
}

func (a *Agent) newProcess(spec dayfly.ProcessSpec) *process {
	p := &process{
		agent: a, id: spec.ID, command: commandText(spec), onDisconnect: spec.OnDisconnect, follow: spec.Follow,
		started: time.Now(), readers: make(map[*reader]struct{}), done: make(chan struct{}), launched: make(chan struct{}),
	}
	if p.onDisconnect == "" {
		p.onDisconnect = dayfly.DisconnectGrace
	}
	limit := spec.CaptureBytes
	if limit == 0 {
		limit = dayfly.CaptureDefaultBytes
	}
	for i := range p.out {
		p.out[i] = newCapture(p, limit, spec.Follow)
	}
	return p
}

// commandText is what a listing shows.
func commandText(spec dayfly.ProcessSpec) string {
	s := spec.Command
	if s == "" {
		s = strings.Join(spec.Argv, " ")
	}
	if len(s) > commandTextMax {
		s = strings.Clone(s[:commandTextMax])
	}
	return s
}

// record gives the process as the wire shows it.
func (p *process) record() dayfly.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := dayfly.Process{
		ID: p.id, PID: p.pid, Status: dayfly.ProcessRunning, Command: p.command, StartedAgo: time.Since(p.started),
		OnDisconnect: p.onDisconnect, StdoutBytes: p.out[stdout].total, StderrBytes: p.out[stderr].total,
	}
	if p.exit != nil {
		exit := *p.exit
		r.Status, r.Exit = dayfly.ProcessExited, &exit
	}
	return r
}

// result gives the finished process. It must have finished.
func (p *process) result() dayfly.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	return dayfly.Result{ID: p.id, Exit: *p.exit, Stdout: p.out[stdout].captured(), Stderr: p.out[stderr].captured()}
}

// leaderExited notes the leader's end. What is in the pipes at this moment still belongs to the output; what a background
// child writes later does not, and does not hold up the end.
func (p *process) leaderExited(status unix.WaitStatus) {
	p.mu.Lock()
	p.leaderUp, p.status, p.ended = false, status, time.Now()
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	p.stdin.close()
	for _, pipe := range p.pipes {
		_ = pipe.SetReadDeadline(time.Unix(1, 0)) // wakes the pump, which then drains
	}
	p.part()
}

// part notes that one of the pending things has happened. The last one finishes the process.
func (p *process) part() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending--; p.pending == 0 {
		p.finishLocked()
	}
}

func (p *process) finishLocked() {
	exit := dayfly.Exit{
		Code: p.status.ExitStatus(), TimedOut: p.timedOut, Duration: p.ended.Sub(p.started),
		StdoutBytes: p.out[stdout].total, StderrBytes: p.out[stderr].total,
	}
	if p.status.Signaled() {
		exit.Code = signalBase + int(p.status.Signal())
		exit.Signal = signalName(p.status.Signal())
	}
	exit.OOMKilled = exit.Code == signalBase+int(unix.SIGKILL) && !p.timedOut && p.agent.oomKills() > p.oomBefore
	for i := range p.out {
		p.out[i].finish()
	}
	p.exit = &exit
	p.changedLocked()
	close(p.done)
	p.agent.table.finish(p)
	if p.leaf != nil {
		go p.agent.children.leaves.retire(p.leaf)
	} else {
		go p.agent.children.retire(p)
	}
}

// signalBase is what a shell adds to the number of the signal that a command died of.
const signalBase = 128

// changedLocked wakes the readers.
func (p *process) changedLocked() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// expire ends the whole tree at the timeout: TERM to the group, and after a grace KILL to every descendant. The result waits
// until all are dead.
func (p *process) expire() {
	p.mu.Lock()
	if !p.leaderUp {
		p.mu.Unlock()
		return
	}
	p.timedOut = true
	p.pending++
	p.mu.Unlock()
	defer p.part()
	_ = p.agent.children.signal(p, unix.SIGTERM)
	if p.awaitDeath(termGrace) {
		return
	}
	if p.killTree() != nil {
		_ = p.agent.children.signal(p, unix.SIGKILL)
	}
}

// pumpBuffer is how much a pump reads at once, pipeWide the size of the pipe of a command that fills it.
const (
	pumpBuffer = 64 << 10
	pipeWide   = 256 << 10
)

// pump moves one output stream from its pipe into the capture until the last writer has closed it. After the leader's exit
// and the drain it reads on and discards, so that background children are not killed by a broken pipe.
func (p *process) pump(stream int) {
	pipe := p.pipes[stream]
	defer pipe.Close()
	raw, err := pipe.SyscallConn()
	if err != nil {
		p.part()
		return
	}
	keep := true
	for {
		n, err := p.readPipe(raw.Read, stream, keep)
		if os.IsTimeout(err) && keep {
			_ = pipe.SetReadDeadline(time.Time{})
			_ = raw.Control(func(fd uintptr) { p.drain(int(fd), stream) })
			keep = false
			p.part()
			continue
		}
		if err != nil || n == 0 {
			break
		}
	}
	if keep {
		p.part()
	}
}

// readPipe waits for output, reads what there is into a shared buffer and keeps it. 0 bytes without an error is the end.
func (p *process) readPipe(whenReady func(func(uintptr) bool) error, stream int, keep bool) (n int, err error) {
	var readErr error
	err = whenReady(func(fd uintptr) bool {
		buf := p.agent.buffers.Get().(*[pumpBuffer]byte)
		defer p.agent.buffers.Put(buf)
		if n, readErr = readFull(int(fd), buf[:]); n == 0 && readErr == unix.EAGAIN {
			return false
		}
		if n == pumpBuffer && !p.wide[stream] {
			p.wide[stream] = true
			_, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeWide) // a chatty command: fewer turns between it and the agent
		}
		if n > 0 && keep {
			p.keep(stream, buf[:n])
		}
		return true
	})
	if err == nil && n == 0 {
		err = readErr
	}
	return n, err
}

// readFull reads until the buffer is full or nothing more is there; a command that writes in small pieces is still
// creating some meanwhile. The error says why it stopped, nil at the end of the file.
func readFull(fd int, buf []byte) (n int, err error) {
	for n < len(buf) {
		got, err := unix.Read(fd, buf[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || got == 0 {
			return n, err
		}
		n += got
	}
	return n, nil
}

// drain keeps exactly what the pipe holds now: everything that was written before the leader's exit.
func (p *process) drain(fd, stream int) {
	left, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return
	}
	buf := p.agent.buffers.Get().(*[pumpBuffer]byte)
	defer p.agent.buffers.Put(buf)
	for left > 0 {
		n, err := unix.Read(fd, buf[:min(left, pumpBuffer)])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return
		}
		p.keep(stream, buf[:n])
		left -= n
	}
}

// keep puts output into the capture. For a followed process it waits as long as an attached reader would lose bytes.
func (p *process) keep(stream int, b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 {
		n := len(b)
		if p.follow {
			n = min(n, p.roomLocked(stream))
		}
		if n > 0 {
			p.out[stream].write(b[:n])
			b = b[n:]
			p.changedLocked()
			continue
		}
		if p.space == nil {
			p.space = make(chan struct{})
		}
		space := p.space
		p.mu.Unlock()
		<-space // a reader that leaves closes it too
		p.mu.Lock()
	}
}

// roomLocked is how much can be kept without dropping what an attached reader has yet to read.
func (p *process) roomLocked(stream int) int {
	room := pumpBuffer
	for r := range p.readers {
		room = min(room, p.out[stream].room(r.at[stream]))
	}
	return room
}

// spaceLocked wakes a pump that waits for a reader.
func (p *process) spaceLocked() {
	if p.space != nil {
		close(p.space)
		p.space = nil
	}
}
