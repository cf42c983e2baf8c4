// Package birth clones the first process of a machine: into its control group, into namespaces of its own, with host ids of
// its own, at a price that does not grow with the node. The process executes the agent's binary in the mode that the driver
// names and finds its end of a channel (package channel) and a standard error that the driver reads.
//
// It neither mounts nor limits anything but capabilities, and knows no driver. To have every first process do one more thing
// before it executes, add a call to program.
package birth

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/driver/channel"
	"dayfly.dev/dayfly/internal/driver/sealed"
)

const (
	namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS |
		unix.CLONE_NEWIPC
	logMax        = 4 << 10
	logWait       = 100 * time.Millisecond
	highFD        = 64 // and above: descriptors that a child's standard ones never overwrite
	capabilityMax = 63
	capEnd        = "/proc/sys/kernel/cap_last_cap"
)

// Parent makes children of one binary. Its methods may be called from several goroutines.
type Parent struct {
	agent   int // descriptor of the sealed binary
	null    *os.File
	lastCap uint // the kernel's highest capability
}

// NewParent keeps a copy of the agent's binary in memory that nothing can change. Close releases it; children live on.
func NewParent(binary []byte) (*Parent, error) {
	p := &Parent{}
	var undo cleanup.Stack
	defer undo.Clean()
	var err error
	if p.lastCap, err = lastCapability(); err != nil {
		return nil, err
	}
	if p.null, err = openNull(); err != nil {
		return nil, err
	}
	undo.Add(func() { _ = p.null.Close() })
	if p.agent, err = sealed.Agent(binary); err != nil {
		return nil, err
	}
	undo.Release()
	return p, nil
}

// Close releases the parent's descriptors.
func (p *Parent) Close() error { return errors.Join(p.null.Close(), unix.Close(p.agent)) }

// Agent is the descriptor of the binary. It is the Parent's.
func (p *Parent) Agent() int { return p.agent }

// Order says what child to make.
type Order struct {
	Group   *cgroup.Group
	UIDBase uint32 // host id of its root
	CPUs    []int  // that it is bound to; none: all
	Name    string // in process lists
	Mode    string // of the agent's binary
	// TimerSlack is how late the kernel may make timers of the child, and of what it executes unless that is changed; 0: as it does.
	TimerSlack time.Duration
	// Capabilities bound those of everything that the child executes; 0 means no bound.
	Capabilities uint64
}

// Child is a cloned process: PID 1 of its namespace, and the driver's ends of what connects them. It was not waited for yet,
// so its pid cannot belong to anybody else. The caller calls Close, and Free once the child runs its binary or is dead.
type Child struct {
	*cloned
	PID     int
	Channel *net.UnixConn
	log     *os.File // what PID 1 says on standard error, until it is ready
}

// Close closes the driver's ends.
func (c *Child) Close() {
	_ = c.Channel.Close()
	_ = c.log.Close()
}

// Free gives the memory back that the child reads until it executes its binary. It can be called twice, not at once.
func (c *Child) Free() { c.arena.free() }

// Died tells what is known of a child that ended without a word: the step before its binary that failed, and what the binary
// wrote to standard error, the trace of a crash.
func (c *Child) Died() error { return errors.Join(c.failed(), c.said()) }

// said gives what PID 1 wrote to standard error.
func (c *Child) said() error {
	_ = c.log.SetReadDeadline(time.Now().Add(logWait))
	b, _ := io.ReadAll(io.LimitReader(c.log, logMax))
	if text := strings.TrimSpace(string(b)); text != "" {
		return fmt.Errorf("it said: %q", text)
	}
	return nil
}

// Open opens one of the child's namespaces.
func (c *Child) Open(namespace string) (*os.File, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", c.PID, namespace))
	if err != nil {
		return nil, fmt.Errorf("open %s namespace: %w", namespace, err)
	}
	return f, nil
}

// Start makes a child. After an error there is none.
func (m *Parent) Start(o Order) (*Child, error) {
	var undo, always cleanup.Stack
	defer undo.Clean()
	defer always.Clean()
	conn, end, err := bootChannel()
	if err != nil {
		return nil, fmt.Errorf("make boot channel: %w", err)
	}
	undo.Add(func() { _ = conn.Close() })
	always.Add(func() { _ = unix.Close(end) })
	log, logEnd, err := bootLog()
	if err != nil {
		return nil, fmt.Errorf("make boot log: %w", err)
	}
	undo.Add(func() { _ = log.Close() })
	always.Add(func() { _ = unix.Close(logEnd) })
	memory, err := newArena()
	if err != nil {
		return nil, err
	}
	undo.Add(memory.free)
	c := &Child{Channel: conn, log: log}
	steps := m.program(memory, o, logEnd, end)
	err = o.Group.Start(func(v2 int) error {
		runtime.LockOSThread()
		c.cloned, err = clone3(memory, namespaces, v2, o.UIDBase, steps)
		if !errors.Is(err, errSpoilt) {
			runtime.UnlockOSThread()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("clone the agent: %w", err)
	}
	c.PID = c.cloned.pid
	undo.Release()
	return c, nil
}

// program is what the child does between clone and exec. It waits for its id maps first.
func (m *Parent) program(a *arena, o Order, logEnd, channel int) *program {
	p := &program{}
	closeOthers(p, int(m.null.Fd()), m.agent, logEnd, channel)
	p.atLeast(1, "wait for id maps", unix.SYS_READ, uintptr(channel), a.put(make([]byte, 1)), 1)
	p.call("start session", unix.SYS_SETSID)
	p.call("drop groups", unix.SYS_SETGROUPS, 0, 0)
	p.call("become group 0 inside", unix.SYS_SETRESGID, 0, 0, 0)
	p.call("become user 0 inside", unix.SYS_SETRESUID, 0, 0, 0)
	p.call("enter own cgroup namespace", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)
	if o.TimerSlack > 0 {
		p.call("set how late timers may be", unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, uintptr(o.TimerSlack))
	}
	if o.Capabilities != 0 {
		m.limitCapabilities(a, p, o.Capabilities)
	}
	if len(o.CPUs) > 0 {
		var set unix.CPUSet
		for _, cpu := range o.CPUs {
			set.Set(cpu)
		}
		p.call("set CPUs", unix.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(set), a.words(cpuWords(&set)...))
	}
	for to, from := range []int{int(m.null.Fd()), int(m.null.Fd()), logEnd, channel} {
		p.call("pass descriptors", unix.SYS_DUP3, uintptr(from), uintptr(to), 0)
	}
	p.call("unblock signals", unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, a.words(0), 0, sigsetSize)
	p.call("execute the agent", unix.SYS_EXECVEAT, uintptr(m.agent), a.text(""), a.texts([]string{o.Name, o.Mode}),
		a.texts(agentEnv()), unix.AT_EMPTY_PATH)
	return p
}

// closeOthers closes every descriptor but those named. The clone has copies of all the node's, the node's end of the boot
// channel among them: with that one open, it would not hear that the node died and wait for its id maps for ever, in a mount
// namespace that keeps every file system of the host from being unmounted.
func closeOthers(p *program, keep ...int) {
	slices.Sort(keep)
	from := 0
	for _, fd := range slices.Compact(keep) {
		if fd > from {
			p.call("close descriptors", unix.SYS_CLOSE_RANGE, uintptr(from), uintptr(fd-1), 0)
		}
		from = fd + 1
	}
	p.call("close descriptors", unix.SYS_CLOSE_RANGE, uintptr(from), math.MaxUint32, 0)
}

// limitCapabilities takes what nothing inside may have out of the bounding set. Boot itself still needs the rest: it comes
// through the inheritable set, which boot empties at its end.
func (m *Parent) limitCapabilities(a *arena, p *program, keep uint64) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	all := uint64(1)<<(m.lastCap+1) - 1
	low, high := uint32(all), uint32(all>>32)
	data := [2]unix.CapUserData{
		{Effective: low, Permitted: low, Inheritable: low},
		{Effective: high, Permitted: high, Inheritable: high},
	}
	p.call("keep capabilities for boot", unix.SYS_CAPSET, a.put(bytesOf(&header)), a.put(bytesOf(&data)))
	for c := range m.lastCap + 1 {
		if keep&(1<<c) == 0 {
			p.call("limit capabilities", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c))
		}
	}
}

// bytesOf shows a value without pointers as its bytes.
func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

func cpuWords(set *unix.CPUSet) []uintptr {
	words := make([]uintptr, len(set))
	for i, w := range set {
		words[i] = uintptr(w)
	}
	return words
}

// agentEnv keeps the agent's runtime small and away from the host's cgroup files. Boot is one sequence; the agent asks for
// more processors when it takes over.
func agentEnv() []string {
	return []string{"GOMAXPROCS=1", "GODEBUG=containermaxprocs=0,updatemaxprocs=0"}
}

// FixScore writes the oom_score_adj that PID 1 gave itself once more: nothing inside can lower what a writer with CAP_SYS_RESOURCE
// wrote. It must run after the exec, because a score belongs to everybody who shares the memory, which was this process.
func (c *Child) FixScore(score string) error {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/oom_score_adj", c.PID), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open oom_score_adj: %w", err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(score)); err != nil && !errors.Is(err, unix.EACCES) { // the node's own is higher
		return fmt.Errorf("write oom_score_adj: %w", err)
	}
	return nil
}

// MapIDs gives the child's user namespace its ids and lets the child go on.
func (c *Child) MapIDs(base uint32) error {
	line := fmt.Appendf(nil, "0 %d %d\n", base, dayfly.IDCount)
	for _, name := range []string{"uid_map", "gid_map"} {
		// Opened without O_TRUNC or O_CREAT, which these files do not know.
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/%s", c.PID, name), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", name, err)
		}
		_, err = unix.Write(fd, line)
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	if _, err := c.Channel.Write([]byte{1}); err != nil {
		return fmt.Errorf("let the clone go on: %w", err)
	}
	return nil
}

// bootChannel gives the driver's end and the child's.
func bootChannel() (*net.UnixConn, int, error) {
	conn, theirs, err := channel.Pair()
	if err != nil {
		return nil, -1, err
	}
	defer theirs.Close()
	end, err := unix.FcntlInt(theirs.Fd(), unix.F_DUPFD_CLOEXEC, highFD)
	if err != nil {
		return nil, -1, errors.Join(err, conn.Close())
	}
	return conn, end, nil
}

// bootLog gives the driver's end and the child's.
func bootLog() (*os.File, int, error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, err
	}
	err := unix.SetNonblock(pipe[0], true) // so that reading it has a deadline
	ours := os.NewFile(uintptr(pipe[0]), "boot log")
	if err != nil {
		return nil, -1, errors.Join(err, ours.Close(), unix.Close(pipe[1]))
	}
	end, err := moveHigh(pipe[1])
	if err != nil {
		return nil, -1, errors.Join(err, ours.Close())
	}
	return ours, end, nil
}

// moveHigh moves a descriptor out of the way of a child's standard ones. It owns fd.
func moveHigh(fd int) (int, error) {
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, highFD)
	return high, errors.Join(err, unix.Close(fd))
}

// openNull opens the null device where a child's standard descriptors do not overwrite it.
func openNull() (*os.File, error) {
	fd, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open null device: %w", err)
	}
	if fd, err = moveHigh(fd); err != nil {
		return nil, fmt.Errorf("open null device: %w", err)
	}
	return os.NewFile(uintptr(fd), os.DevNull), nil
}

func lastCapability() (uint, error) {
	b, err := os.ReadFile(capEnd)
	if err != nil {
		return 0, fmt.Errorf("read the kernel's last capability: %w", err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 8)
	if err != nil || n >= capabilityMax {
		return 0, fmt.Errorf("read the kernel's last capability: %q", b)
	}
	return uint(n), nil
}
