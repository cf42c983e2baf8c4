package linux

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/driver/channel"
	"dayfly.dev/dayfly/internal/driver/linux/boot"
	"dayfly.dev/dayfly/internal/driver/sealed"
)

const (
	namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS |
		unix.CLONE_NEWIPC
	bootLogMax    = 4 << 10
	highFD        = 64 // and above: descriptors that a child's standard ones never overwrite
	capabilityMax = 63
	capEnd        = "/proc/sys/kernel/cap_last_cap"
)

// child is a cloned machine that boots: PID 1 of it, and the driver's ends of what connects them. It was not waited for yet,
// so its pid cannot belong to anybody else.
type child struct {
	*cloned
	channel *net.UnixConn
	log     *os.File // what PID 1 says on standard error, until it is ready
}

func (c *child) close() {
	_ = c.channel.Close()
	_ = c.log.Close()
}

// open opens one of the child's namespaces.
func (c *child) open(namespace string) (*os.File, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", c.pid, namespace))
	if err != nil {
		return nil, fmt.Errorf("open %s namespace: %w", namespace, err)
	}
	return f, nil
}

// spawn clones the agent into group and into namespaces of its own. The child's arena is the caller's to free, even after
// an error that comes with a child.
func (d *Driver) spawn(group *cgroup.Group, spec dayfly.InstanceSpec, cpus []int) (*child, error) {
	var undo, always cleanup.Stack
	defer undo.Clean()
	defer always.Clean()
	channel, end, err := bootChannel()
	if err != nil {
		return nil, fmt.Errorf("make boot channel: %w", err)
	}
	undo.Add(func() { _ = channel.Close() })
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
	c := &child{channel: channel, log: log}
	p := d.program(memory, spec, cpus, logEnd, end)
	err = group.Start(func(v2 int) error {
		runtime.LockOSThread()
		c.cloned, err = clone3(memory, namespaces, v2, spec.UIDBase, p)
		if !errors.Is(err, errSpoilt) {
			runtime.UnlockOSThread()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("clone the agent: %w", err)
	}
	undo.Release()
	return c, nil
}

// program is what the child does between clone and exec. It waits for its id maps first.
func (d *Driver) program(a *arena, spec dayfly.InstanceSpec, cpus []int, logEnd, channel int) *program {
	p := &program{}
	closeOthers(p, int(d.null.Fd()), d.agent, logEnd, channel)
	p.atLeast(1, "wait for id maps", unix.SYS_READ, uintptr(channel), a.put(make([]byte, 1)), 1)
	p.call("start session", unix.SYS_SETSID)
	p.call("drop groups", unix.SYS_SETGROUPS, 0, 0)
	p.call("become group 0 inside", unix.SYS_SETRESGID, 0, 0, 0)
	p.call("become user 0 inside", unix.SYS_SETRESUID, 0, 0, 0)
	p.call("enter own cgroup namespace", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)
	d.limitCapabilities(a, p)
	if len(cpus) > 0 {
		var set unix.CPUSet
		for _, cpu := range cpus {
			set.Set(cpu)
		}
		p.call("set CPUs", unix.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(set), a.words(cpuWords(&set)...))
	}
	for to, from := range []int{int(d.null.Fd()), int(d.null.Fd()), logEnd, channel} {
		p.call("pass descriptors", unix.SYS_DUP3, uintptr(from), uintptr(to), 0)
	}
	p.call("unblock signals", unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, a.words(0), 0, sigsetSize)
	p.call("execute the agent", unix.SYS_EXECVEAT, uintptr(d.agent), a.text(""), a.texts([]string{sealed.Name, "boot"}),
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
func (d *Driver) limitCapabilities(a *arena, p *program) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	all := uint64(1)<<(d.lastCap+1) - 1
	low, high := uint32(all), uint32(all>>32)
	data := [2]unix.CapUserData{
		{Effective: low, Permitted: low, Inheritable: low},
		{Effective: high, Permitted: high, Inheritable: high},
	}
	p.call("keep capabilities for boot", unix.SYS_CAPSET, a.put(bytesOf(&header)), a.put(bytesOf(&data)))
	for c := range d.lastCap + 1 {
		if boot.Capabilities&(1<<c) == 0 {
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

// fixScore writes the oom_score_adj that PID 1 gave itself once more: nothing inside can lower what a writer with CAP_SYS_RESOURCE
// wrote. It must run after the exec, because a score belongs to everybody who shares the memory, which was this process.
func (c *child) fixScore() error {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/oom_score_adj", c.pid), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open oom_score_adj: %w", err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(boot.Score)); err != nil && !errors.Is(err, unix.EACCES) { // the node's own is higher
		return fmt.Errorf("write oom_score_adj: %w", err)
	}
	return nil
}

// mapIDs gives the child's user namespace its ids and lets the child go on.
func (c *child) mapIDs(base uint32) error {
	line := fmt.Appendf(nil, "0 %d %d\n", base, dayfly.IDCount)
	for _, name := range []string{"uid_map", "gid_map"} {
		// Opened without O_TRUNC or O_CREAT, which these files do not know.
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/%s", c.pid, name), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", name, err)
		}
		_, err = unix.Write(fd, line)
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	if _, err := c.channel.Write([]byte{1}); err != nil {
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
