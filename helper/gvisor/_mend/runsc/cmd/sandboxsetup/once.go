package sandboxsetup

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/moby/sys/capability"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/hostsyscall"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

// A process of gVisor gives up its capabilities by executing itself once more, and has /proc unmounted by a third one that
// executes the same program. Here it gives them up where it stands, in every thread, and the third process is a copy of it that
// makes system calls alone: that saves the start of four Go programs for each machine.

// ApplyCapsHere leaves every thread of this process what ApplyCaps and an execution would leave it.
func ApplyCapsHere(caps *specs.LinuxCapabilities) error {
	cur, err := capability.NewPid2(0)
	if err != nil {
		return err
	}
	if err := cur.Load(); err != nil {
		return err
	}
	last, err := capability.LastCap()
	if err != nil {
		return err
	}
	masks := map[capability.CapType]uint64{}
	for _, kind := range AllCapTypes {
		set, err := TrimCaps(GetCaps(kind, caps), cur)
		if err != nil {
			return err
		}
		for _, c := range set {
			masks[kind] |= 1 << c
		}
	}
	for c := capability.Cap(0); c <= last; c++ {
		if cur.Get(capability.BOUNDS, c) && masks[capability.BOUNDS]&(1<<c) == 0 {
			if err := everywhere("limit capabilities", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0); err != nil {
				return err
			}
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for i := range data {
		half := func(kind capability.CapType) uint32 { return uint32(masks[kind] >> (32 * i)) }
		data[i] = unix.CapUserData{Effective: half(capability.EFFECTIVE), Permitted: half(capability.PERMITTED), Inheritable: half(capability.INHERITABLE)}
	}
	if err := everywhere("set capabilities", unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0); err != nil {
		return err
	}
	if err := everywhere("clear ambient capabilities", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0); err != nil {
		return err
	}
	for c := capability.Cap(0); c <= last; c++ {
		if masks[capability.AMBIENT]&(1<<c) != 0 {
			if err := everywhere("raise ambient capabilities", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c)); err != nil {
				return err
			}
		}
	}
	return nil
}

// everywhere makes a system call in every thread of this process.
//
//go:uintptrescapes
func everywhere(what string, trap, a1, a2, a3 uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall(trap, a1, a2, a3); errno != 0 {
		return fmt.Errorf("%s: %w", what, errno)
	}
	return nil
}

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

//go:linkname afterForkInChild syscall.runtime_AfterForkInChild
func afterForkInChild()

// ForkProcUmounter makes a copy of this process, with the capabilities that it has now, that unmounts /proc when a byte is written
// to the descriptor that is given; UmountProc does that, and waits. The copy holds nothing but its end of the pipe, and ends when
// this process does.
func ForkProcUmounter() int {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		util.Fatalf("error creating a pipe: %v", err)
	}
	path := []byte("/proc\x00")
	_, errno := forkUmounter(uintptr(pipe[0]), &path[0])
	if errno != 0 {
		util.Fatalf("error making the umounter: %v", errno)
	}
	if err := unix.Close(pipe[0]); err != nil {
		util.Fatalf("error closing the umounter's end: %v", err)
	}
	return pipe[1]
}

// forkUmounter must neither allocate nor grow its stack in the child.
//
//go:norace
//go:nocheckptr
func forkUmounter(end uintptr, path *byte) (uintptr, unix.Errno) {
	var (
		b     [1]byte
		n     uintptr
		errno unix.Errno
	)
	beforeFork()
	n, errno = hostsyscall.RawSyscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0)
	if errno != 0 || n != 0 {
		afterFork()
		return n, errno
	}
	afterForkInChild()
	if _, errno = hostsyscall.RawSyscall(unix.SYS_DUP3, end, 0, 0); errno == 0 || end == 0 {
		_, errno = hostsyscall.RawSyscall(unix.SYS_CLOSE_RANGE, 1, ^uintptr(0)>>32, 0)
	}
	for errno == 0 {
		n, errno = hostsyscall.RawSyscall(unix.SYS_READ, 0, uintptr(unsafe.Pointer(&b)), 1)
		if errno == unix.EINTR {
			errno = 0
			continue
		}
		break
	}
	if errno == 0 && n == 1 {
		_, errno = hostsyscall.RawSyscall(unix.SYS_UMOUNT2, uintptr(unsafe.Pointer(path)), unix.MNT_DETACH, 0)
	} else {
		errno = unix.EPIPE
	}
	for {
		hostsyscall.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(errno), 0, 0)
	}
}
