package cell

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/driver/channel"
	"dayfly.dev/dayfly/internal/driver/loopback"
)

// Score is the oom_score_adj of everything of a machine: when the whole host lacks memory the kernel kills machines before
// anything of the host.
const Score = "400"

// cell is one run.
type cell struct {
	cfg    Config
	fds    [fdNumber]int
	mounts pseudo
	end    *os.File // of the channel
	run    *run     // nil until runsc has been started
	vital  []int    // the user-space kernel and its file server: the machine ends with either
}

// steps are what happens once the Config is here, in this order. Their names are reported when they fail.
var steps = []struct {
	name string
	do   func(*cell) error
}{
	{"furnish the root file system", func(c *cell) error { return furnish(c.fds[fdRoot], c.cfg) }},
	{"make the cell", func(c *cell) error { return c.mounts.makeTree(c.fds) }},
	{"load filter", func(*cell) error { return quietMembarrier() }},
	{"start runsc", (*cell).startEarly},
	{"close network", (*cell).closeNetwork},
	{"write the machine's specification", func(c *cell) error { return writeSpec(c.cfg) }},
	{"wait for the network", func(c *cell) error { return awaitGo(c.end) }},
	{"start the machine", (*cell).launch},
	{"find the machine's processes", (*cell).findVital},
	{"confine the cell", func(*cell) error { return confine() }},
}

// Run is the cell's life. It returns when the machine has ended, which ends whatever is left of it, or with an error when it
// could not be started; then the driver has been told, and told is true, unless there was no driver any more. It must be the
// first thing the process does.
func Run() (told bool, err error) {
	runtime.LockOSThread() // the thread that starts runsc bears a filter; namespaces are the whole process's
	c := &cell{end: os.NewFile(channel.FD, "channel")}
	fail := func(step string, err error) (bool, error) {
		aerr := channel.Answer(c.end, channel.Failed(step, err))
		return aerr == nil, fmt.Errorf("%s: %w", step, err)
	}
	if err := unix.CloseRange(channel.FD+1, ^uint(0), 0); err != nil {
		return fail("close descriptors", err)
	}
	unix.CloseOnExec(channel.FD)
	if err := setScore(); err != nil {
		return fail("set own score", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fail("make mounts private", err)
	}
	if c.mounts, err = makePseudo(); err != nil {
		return fail("make file systems", err)
	}
	if err := channel.Receive(channel.FD, &c.cfg, c.fds[:]); err != nil {
		return fail("receive configuration", err)
	}
	for _, s := range steps {
		if err := s.do(c); err != nil {
			return fail(s.name, err)
		}
	}
	if err := channel.Answer(c.end, channel.Reply{}); err != nil {
		return false, err // nobody waits for this machine: it ends with this process
	}
	return false, c.reap()
}

// setScore makes this process and what it starts earlier victims than the host's. A node that is itself more exposed has
// its way.
func setScore() error {
	err := os.WriteFile("/proc/self/oom_score_adj", []byte(Score), 0)
	if errors.Is(err, unix.EACCES) {
		return nil
	}
	return err
}

// closeNetwork makes a network of loopback alone, without IPv6, for a machine that nobody connects.
func (c *cell) closeNetwork() error {
	if c.cfg.Network {
		return nil
	}
	if err := setSwitch("net/ipv6/conf/all/disable_ipv6", "1"); err != nil {
		return err
	}
	return loopback.Up()
}

// quietMembarrier answers one command of membarrier(2) with EINVAL, for this thread and what it starts. Every process of
// gVisor registers for it at its start, which waits for a grace period of the kernel: 8 to 20 ms each, seven times a start.
func quietMembarrier() error {
	const (
		offsetNr  = 0  // of seccomp_data
		offsetArg = 16 // low half of its first argument
		register  = 16 // MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED
		retErrno  = 0x00050000
		retAllow  = 0x7fff0000
	)
	f := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetNr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_MEMBARRIER, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetArg},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: register, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: retErrno | uint32(unix.EINVAL)},
		{Code: unix.BPF_RET | unix.BPF_K, K: retAllow},
	}
	p := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&p))); errno != 0 {
		return errno
	}
	return nil
}
