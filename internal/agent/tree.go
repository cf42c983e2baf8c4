package agent

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of killing a tree.
const (
	termGrace  = time.Second            // between TERM and KILL at a timeout
	killWait   = 800 * time.Millisecond // for everything to be dead after KILL
	scanRounds = 16                     // lists of all processes, until none changed while it was made
	quietLooks = 2                      // at a tree, that must all find nothing: what is just being born or executed may be missed by one
	quietWait  = 20 * time.Millisecond  // between two of them
	killRounds = 64                     // looks for survivors, and for those not yet stopped, where there is no cgroup
)

// errSurvivors: not everything of a tree died in time. It cannot happen to processes that the kernel can kill.
var errSurvivors = errors.New("processes survived their kill")

// alive tells whether anything of p lives, its leader included.
func (p *process) alive() bool {
	if l := p.leaf(); l != nil {
		return l.populated()
	}
	return len(p.marked()) > 0
}

// leaf is p's cgroup, or nil.
func (p *process) leaf() *leaf {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kin.leaf
}

// awaitDeath waits until nothing of p lives or limit has passed. Every reaping is a reason to look again.
func (p *process) awaitDeath(limit time.Duration) bool {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	recheck := time.NewTicker(emptyRecheck)
	defer recheck.Stop()
	for {
		reaped := p.agent.children.onReap()
		if !p.alive() {
			return true
		}
		select {
		case <-reaped:
		case <-recheck.C: // the last one may have been another process's child
		case <-deadline.C:
			return !p.alive()
		}
	}
}

// killTree kills every descendant of p and returns when all are dead.
func (p *process) killTree() error {
	if l := p.leaf(); l != nil {
		if err := l.kill(); err != nil {
			return err
		}
		if !p.awaitDeath(killWait) {
			return errSurvivors
		}
		return nil
	}
	if p.kin.mark < markFirst { // shared with other commands
		return p.agent.children.signal(p, unix.SIGKILL)
	}
	quiet := 0
	for range killRounds {
		pids := p.stopTree()
		if len(pids) == 0 {
			if quiet++; quiet == quietLooks {
				return nil
			}
			<-time.After(quietWait)
			continue
		}
		reaped := p.agent.children.onReap()
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		select {
		case <-reaped:
		case <-time.After(emptyRecheck):
		}
	}
	return errSurvivors
}

// stopTree stops every process of p, so that none sees another one die and ends by itself, with an exit code of its own,
// before its kill. It gives the processes; they are stopped but for those of a tree that grows faster than it is stopped.
func (p *process) stopTree() []int {
	stopped := make(map[int]bool)
	for range killRounds {
		pids, before := p.marked(), len(stopped)
		for _, pid := range pids {
			if !stopped[pid] {
				_ = unix.Kill(pid, unix.SIGSTOP)
				stopped[pid] = true
			}
		}
		if len(stopped) == before {
			return pids
		}
	}
	return p.marked()
}

// signalTree sends sig to each process of p once.
func (p *process) signalTree(sig unix.Signal) error {
	var pids []int
	if l := p.leaf(); l != nil {
		pids = l.pids()
	} else {
		pids = p.marked()
	}
	for _, pid := range pids {
		_ = unix.Kill(pid, sig)
	}
	return nil
}

// pids lists the processes of the leaf.
func (l *leaf) pids() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dir == nil {
		return nil
	}
	fd, err := unix.Openat(int(l.dir.Fd()), "cgroup.procs", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), "cgroup.procs")
	defer f.Close()
	b := make([]byte, procsBytes)
	n, _ := f.Read(b)
	var pids []int
	for _, line := range bytes.Fields(b[:n]) {
		if pid, err := strconv.Atoi(string(line)); err == nil && pid > 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// procsBytes bounds how much of cgroup.procs is read: several thousand processes.
const procsBytes = 64 << 10

// processIDs lists all processes but the agent.
func processIDs() []int {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 1 && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killAll kills every descendant of the agent: whatever has it as an ancestor. Nothing is started any more.
func (c *children) killAll() {
	c.mu.Lock()
	c.ending = true
	c.mu.Unlock()
	for range killRounds {
		pids := descendants(os.Getpid())
		if len(pids) == 0 {
			return
		}
		reaped := c.onReap()
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		select {
		case <-reaped:
		case <-time.After(emptyRecheck):
		}
	}
}

// descendants lists the living processes below root. As orphans come to the agent, none is missed for long: where a parent died
// while the list was made, its children seem to be nobody's, so the list is made again.
func descendants(root int) (found []int) {
	for range scanRounds {
		var whole bool
		if found, whole = scan(root); whole {
			break
		}
	}
	return found
}

// scan lists the living processes below root once. whole: each one's parents were known.
func scan(root int) (found []int, whole bool) {
	parent, dead := make(map[int]int), make(map[int]bool)
	for _, pid := range processIDs() {
		if up, ended, err := parentOf(pid); err == nil {
			parent[pid], dead[pid] = up, ended
		}
	}
	whole = true
	for pid := range parent {
		up, known := pid, true
		for range len(parent) + 1 {
			if up, known = parent[up]; up == root || up <= 1 || !known {
				break
			}
		}
		whole = whole && known
		if up == root && !dead[pid] {
			found = append(found, pid)
		}
	}
	return found, whole
}

// parentOf gives the parent of a process, and whether it has ended. One whose first thread alone has ended lives.
func parentOf(pid int) (parent int, ended bool, err error) {
	const state, up, threads = 0, 1, 17 // among the fields after the name, see proc_pid_stat(5)
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false, err
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]) // the name before it may hold anything
	if len(fields) <= threads {
		return 0, false, errors.New("not a process")
	}
	parent, err = strconv.Atoi(string(fields[up]))
	ended = fields[state][0] == 'Z' || fields[state][0] == 'X'
	return parent, ended && (len(fields[threads]) == 1 && fields[threads][0] <= '1'), err
}
