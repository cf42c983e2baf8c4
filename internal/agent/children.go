package agent

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// slackCommand is how late the kernel may make timers of commands, which is what it does by itself.
const slackCommand = 50 * time.Microsecond

// scoreCommand is the oom_score_adj of commands, so that the agent is never the first victim of a lack of memory.
const scoreCommand = 500

// children starts and reaps every process. One lock covers forking and reaping, so that a process id always means the
// process that it was looked up for.
type children struct {
	score  *os.File // own oom_score_adj, or nil
	normal string   // its value while nothing is being forked
	slack  int      // how late the agent's own timers may be, in nanoseconds, or less than 0 when the kernel does not tell
	cgroup *os.File // directory for leaf cgroups, or nil
	leaves leaves

	mu      sync.Mutex
	leaders map[int]*process // by pid, until they are reaped
	forked  *sync.Cond       // a child was forked
	reaped  chan struct{}    // closed and replaced when something was reaped
	marks   marks
	ending  bool // nothing is started any more
}

func newChildren(score, cgroup *os.File) (*children, error) {
	c := &children{score: score, cgroup: cgroup, leaders: make(map[int]*process), reaped: make(chan struct{}), marks: newMarks()}
	c.forked = sync.NewCond(&c.mu)
	c.slack, _ = unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if c.score == nil {
		f, err := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0)
		if err != nil {
			return c, nil // a machine without it has nothing to protect the agent with
		}
		c.score = f
	}
	buf := make([]byte, 16)
	n, err := unix.Pread(int(c.score.Fd()), buf, 0)
	if err != nil {
		return nil, fmt.Errorf("read oom_score_adj: %w", err)
	}
	c.normal = strings.TrimSpace(string(buf[:n]))
	return c, nil
}

// start forks p's leader. p.leaf, or a mark of its own, tells its descendants apart from then on.
func (c *children) start(p *process, path string, argv []string, attr *syscall.ProcAttr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return syscall.EAGAIN
	}
	score := scoreCommand
	if p.leaf() == nil {
		score = c.marks.take(p)
	}
	if c.score != nil {
		if _, err := unix.Pwrite(int(c.score.Fd()), strconv.AppendInt(nil, int64(score), 10), 0); err == nil {
			defer func() { _, _ = unix.Pwrite(int(c.score.Fd()), []byte(c.normal), 0) }()
		} else {
			c.marks.untake(score)
			score = scoreCommand // no mark
		}
	}
	defer c.usualSlack()()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		c.marks.untake(score)
		return err
	}
	p.mu.Lock()
	p.kin.pid, p.kin.mark = pid, score
	p.mu.Unlock()
	c.leaders[pid] = p
	c.forked.Broadcast()
	return nil
}

// usualSlack gives the calling thread the timer slack of commands, which inherit it, until it is undone.
func (c *children) usualSlack() (undo func()) {
	if c.slack <= int(slackCommand) {
		return func() {}
	}
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slackCommand), 0, 0, 0)
	return func() {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(c.slack), 0, 0, 0)
		runtime.UnlockOSThread()
	}
}

// settle waits until no fork is under way. A child holds copies of all descriptors until it executes its program.
func (c *children) settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
}

// retire notes that p's leader has ended. Its mark is used again once nothing bears it any more.
func (c *children) retire(p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.marks.retire(p.kin.mark)
}

// owns tells whether p's mark is still its own.
func (c *children) owns(p *process) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.marks.owns(p)
}

// leads tells whether p's leader has not been reaped yet.
func (c *children) leads(p *process) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaders[p.kin.pid] == p
}

// signal sends sig to the process group of p's leader, unless that was reaped already.
func (c *children) signal(p *process, sig unix.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaders[p.kin.pid] != p {
		return nil
	}
	return unix.Kill(-p.kin.pid, sig)
}

// onReap gives a channel that is closed at the next reaping.
func (c *children) onReap() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reaped
}

type exited struct {
	p      *process
	status unix.WaitStatus
	cpu    time.Duration // of the leader and of what it waited for
}

// reap waits for children for ever, leaders and orphans alike. The wait that blocks leaves the zombie in place, so that its
// id is not given away before the lock is held.
func (c *children) reap() {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT|unix.WALL, nil)
		if err == unix.EINTR {
			continue
		}
		c.mu.Lock()
		if err == unix.ECHILD && !c.anyLocked() {
			c.forked.Wait() // every process here descends from a child, so without children nothing can need reaping
		}
		ended := c.collectLocked()
		c.mu.Unlock()
		for _, e := range ended {
			e.p.leaderExited(e.status, e.cpu)
		}
		c.leaves.sweep()
	}
}

// anyLocked tells whether there is a child, in case one was forked since the wait failed.
func (c *children) anyLocked() bool {
	return unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG|unix.WALL, nil) == nil
}

// collectLocked reaps everything that is dead.
func (c *children) collectLocked() []exited {
	var ended []exited
	any := false
	for {
		var status unix.WaitStatus
		var used unix.Rusage
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WALL, &used)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			break
		}
		any = true
		if p := c.leaders[pid]; p != nil {
			delete(c.leaders, pid)
			ended = append(ended, exited{p, status, time.Duration(used.Utime.Nano() + used.Stime.Nano())})
		}
	}
	if any {
		close(c.reaped)
		c.reaped = make(chan struct{})
	}
	return ended
}
