package agent

import (
	"strings"
	"sync"
	"sync/atomic"
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
	name         string // or empty
	command      string // as shown
	onDisconnect dayfly.OnDisconnect
	follow       bool
	started      time.Time
	fed          atomic.Int64  // bytes of input accepted so far
	charged      int64         // of the table's budget, under the table's lock
	gate         chan struct{} // holds a token while a try is being started, so that no signal gets lost in between

	mu        sync.Mutex
	kin       kin
	again     restarts
	try       *try                 // the present or last one, or nil when the command could not be run
	size      *dayfly.TerminalSize // or nil for pipes
	timer     *time.Timer
	out       [streams]capture
	pending   int // what must still happen before the try is over: the leader's exit, the drains, a tree's death
	leaderUp  bool
	answering bool // the request that started it is not over
	status    unix.WaitStatus
	ended     time.Time
	timedOut  bool
	exit      *dayfly.Exit
	readers   map[*reader]struct{}
	changed   chan struct{} // closed at the next change that a reader waits for, or nil when none waits
	space     chan struct{} // closed when a reader has moved on, or nil when the pump does not wait
	done      chan struct{} // closed when exit is set
}

// kin is what tells a process's descendants apart from all others, over all of its tries.
type kin struct {
	pid  int           // of the present or last leader; set before it can exit
	mark int           // oom_score_adj of all descendants
	leaf *leaf         // their cgroup, or nil; each try has another one
	past time.Duration // CPU time of the leaves of former tries
	cpu  time.Duration // of the leaders that have ended since and of what they waited for
}

func (a *Agent) newProcess(spec dayfly.ProcessSpec) *process {
	p := &process{
		agent: a, id: spec.ID, name: spec.Name, command: commandText(spec), onDisconnect: spec.OnDisconnect, follow: spec.Follow,
		started: time.Now(), gate: make(chan struct{}, 1), again: newRestarts(spec), size: spec.Terminal,
		readers: make(map[*reader]struct{}), done: make(chan struct{}),
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
		ID: p.id, PID: p.kin.pid, Status: dayfly.ProcessRunning, Name: p.name, Command: p.command, StartedAgo: time.Since(p.started),
		OnDisconnect: p.onDisconnect, StdoutBytes: p.out[stdout].total, StderrBytes: p.out[stderr].total,
		Restart: p.again.policy(), Restarts: p.again.done,
	}
	if p.size != nil {
		size := *p.size
		r.Terminal = &size
	}
	if p.again.resting {
		r.PID = 0
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
func (p *process) leaderExited(status unix.WaitStatus, cpu time.Duration) {
	p.mu.Lock()
	p.leaderUp, p.status, p.ended = false, status, time.Now()
	p.kin.cpu += cpu
	t := p.try
	p.mu.Unlock()
	t.leaderExited()
	p.part()
}

// part notes that one of the pending things has happened. The last one ends the try.
func (p *process) part() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending--; p.pending == 0 {
		p.settleLocked()
	}
}

// settleLocked decides what follows the end of a try: another one or the end.
func (p *process) settleLocked() {
	if p.againLocked() {
		p.again.resting = true
		go p.tryAgain()
		return
	}
	p.finishLocked()
}

// exitCode is the code of the last try as a shell gives it.
func (p *process) exitCode() int {
	if p.status.Signaled() {
		return signalBase + int(p.status.Signal())
	}
	return p.status.ExitStatus()
}

func (p *process) finishLocked() {
	exit := dayfly.Exit{
		Code: p.exitCode(), TimedOut: p.timedOut, Duration: p.ended.Sub(p.started),
		StdoutBytes: p.out[stdout].total, StderrBytes: p.out[stderr].total,
	}
	if p.status.Signaled() {
		exit.Signal = signalName(p.status.Signal())
	}
	exit.OOMKilled = p.agent.oom.killed(p, exit.Code, p.timedOut || p.again.asked)
	if p.timer != nil {
		p.timer.Stop()
	}
	for i := range p.out {
		p.out[i].finish()
	}
	p.exit = &exit
	p.changedLocked()
	close(p.done)
	p.agent.table.finish(p)
	p.try, p.again.spec = nil, nil
	p.endedLocked()
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
	p.gate <- struct{}{} // no try begins meanwhile
	p.mu.Lock()
	killing := p.exit == nil && p.leaderUp
	if killing {
		p.timedOut = true
		p.pending++
	} else if p.again.resting {
		p.timedOut = true
		p.again.wakeLocked()
	}
	p.mu.Unlock()
	<-p.gate
	if !killing {
		return
	}
	defer p.part()
	_ = p.agent.children.signal(p, unix.SIGTERM)
	if p.awaitDeath(termGrace) && p.leaf() != nil {
		return // the kernel's word; without a cgroup it is looked at again
	}
	if p.killTree() != nil {
		_ = p.agent.children.signal(p, unix.SIGKILL)
	}
}
