package agent

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

const (
	// cpuExact is how long a command must have run for its cgroup's CPU time to be read when it has ended. What the kernel
	// counts for the leader and for those that it waited for is enough for shorter ones.
	cpuExact = 100 * time.Millisecond
	// ticksSecond is the kernel's unit of CPU times for user space, the same on every architecture.
	ticksSecond = 100
	statBytes   = 1 << 10 // of /proc/PID/stat
	// cpuMicrosMax is the most CPU time that can be told.
	cpuMicrosMax = int64(1<<63-1) / int64(time.Microsecond)
)

// Fields of /proc/PID/stat behind the name.
const (
	statState      = 0
	statUser       = 11
	statSystem     = 12
	statChildUser  = 13
	statChildSys   = 14
	statResident   = 21
	statFieldsLeft = 22 // at least so many
)

// used is what processes use and have used.
type used struct {
	cpu       time.Duration
	bytes     int64
	processes int
}

// add adds a living process. What is gone by now or dead adds nothing.
func (u *used) add(pid int) {
	f := statFields(pid)
	if len(f) < statFieldsLeft || f[statState][0] == 'Z' || f[statState][0] == 'X' {
		return
	}
	u.processes++
	u.bytes += statNumber(f[statResident]) * int64(os.Getpagesize())
	ticks := statNumber(f[statUser]) + statNumber(f[statSystem]) + statNumber(f[statChildUser]) + statNumber(f[statChildSys])
	u.cpu += time.Duration(ticks) * time.Second / ticksSecond
}

// statFields are the fields of a process's stat behind its name, which may hold anything.
func statFields(pid int) [][]byte {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	buf := make([]byte, statBytes)
	n, _ := unix.Read(fd, buf)
	b := buf[:max(0, n)]
	return bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
}

func statNumber(b []byte) int64 {
	n, _ := strconv.ParseInt(string(b), 10, 64)
	return n
}

// cpu reads the CPU time of everything that ever was in the leaf. false: it is removed, or its kernel counts none.
func (l *leaf) cpu() (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dir == nil {
		return 0, false
	}
	b, err := readAt(l.dir, "cpu.stat")
	if err != nil {
		return 0, false
	}
	return parseCPU(b)
}

// parseCPU finds the CPU time in a cpu.stat.
func parseCPU(b []byte) (time.Duration, bool) {
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte("usage_usec ")); ok {
			n, err := strconv.ParseInt(string(bytes.TrimSpace(v)), 10, 64)
			return time.Duration(n) * time.Microsecond, err == nil && n >= 0 && n <= cpuMicrosMax
		}
	}
	return 0, false
}

// dropLeaf removes the leaf of a try that is over, whose processes are all dead. The next try needs a new one: some kernels kill
// at once what is started in a cgroup that was killed before.
func (p *process) dropLeaf() {
	l := p.leaf()
	if l == nil {
		return
	}
	cpu, _ := l.cpu()
	p.mu.Lock()
	p.kin.past += max(p.kin.cpu, cpu)
	p.kin.cpu, p.kin.leaf = 0, nil
	p.mu.Unlock()
	p.agent.children.leaves.retire(l)
}

// retireLeaf removes the leaf of a process that has ended, now or when the last process in it dies.
func (p *process) retireLeaf(l *leaf, exact bool) {
	if exact {
		if cpu, ok := l.cpu(); ok {
			p.mu.Lock()
			p.kin.cpu = max(p.kin.cpu, cpu)
			p.mu.Unlock()
		}
	}
	l.gone = func() { p.agent.oom.leave(p) }
	p.agent.children.leaves.retire(l)
	p.agent.children.leaves.stock(p.agent.children.cgroup)
}

// usage fills in what p and its descendants use. byMark are the living processes by their mark, where there are no cgroups.
func (p *process) usage(r *dayfly.Process, byMark func() map[int][]int) {
	p.mu.Lock()
	past, ended, l, mark := p.kin.past, p.kin.cpu, p.kin.leaf, p.kin.mark
	p.mu.Unlock()
	var u used
	if l != nil {
		for _, pid := range l.pids() {
			u.add(pid)
		}
		u.cpu += ended
		if cpu, ok := l.cpu(); ok {
			u.cpu = max(ended, cpu)
		}
	} else {
		if mark >= markFirst && p.agent.children.owns(p) {
			for _, pid := range byMark()[mark] {
				u.add(pid)
			}
		}
		u.cpu += ended
	}
	r.CPU, r.MemoryBytes, r.Processes = past+u.cpu, u.bytes, u.processes
}

// byMark lists the living descendants of the agent by their mark.
func byMark() map[int][]int {
	m := make(map[int][]int)
	for _, pid := range descendants(os.Getpid()) {
		mark := markOf(pid)
		m[mark] = append(m[mark], pid)
	}
	return m
}
