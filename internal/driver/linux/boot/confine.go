package boot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Capabilities are those that root inside keeps: the list that Docker gives its containers.
const Capabilities uint64 = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FSETID | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_MKNOD | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETFCAP |
	1<<unix.CAP_SETPCAP | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_KILL | 1<<unix.CAP_AUDIT_WRITE

const (
	instructionBytes = 8 // of a BPF program
	instructionsMax  = 4096
	stackBytes       = 8 << 20
)

// setLimits gives the machine's processes limits that do not depend on how the node was started.
func (b *boot) setLimits() error {
	var open syscall.Rlimit
	if err := syscall.Getrlimit(unix.RLIMIT_NOFILE, &open); err != nil {
		return fmt.Errorf("read limit of open files: %w", err)
	}
	open.Max = min(open.Max, b.cfg.OpenMax)
	open.Cur = open.Max
	if err := syscall.Setrlimit(unix.RLIMIT_NOFILE, &open); err != nil { // syscall's: commands inherit it
		return fmt.Errorf("limit open files to %d: %w", open.Max, err)
	}
	// 1, not 0: a size of 1 also keeps the host's core_pattern program from being started, which 0 does not.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}); err != nil {
		return fmt.Errorf("switch core files off: %w", err)
	}
	var stack unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_STACK, &stack); err != nil {
		return fmt.Errorf("read limit of the stack: %w", err)
	}
	stack.Cur = min(stackBytes, stack.Max)
	if err := unix.Setrlimit(unix.RLIMIT_STACK, &stack); err != nil {
		return fmt.Errorf("limit the stack: %w", err)
	}
	return nil
}

// setName gives PID 1 a name in process lists: it was executed through a descriptor, which has none.
func (b *boot) setName() error {
	name, err := unix.BytePtrFromString("dayfly-agent")
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0)
}

func (b *boot) setHostname() error { return unix.Sethostname([]byte(b.cfg.Hostname)) }

// closeStderr points standard error, a pipe to the driver until now, at nothing.
func (b *boot) closeStderr() error {
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for fd := range 3 {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return err
		}
	}
	return nil
}

// confine gives up every right that a machine must not have. The order matters: loading the filter without no_new_privs,
// which would break sudo, takes CAP_SYS_ADMIN, so capabilities go last.
func (b *boot) confine() error {
	if err := loadSeccomp(b.cfg.Seccomp); err != nil {
		return fmt.Errorf("load seccomp filter: %w", err)
	}
	if err := setCapabilities(); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	// Nothing inside may trace PID 1 or look into its /proc directory.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become undumpable: %w", err)
	}
	return nil
}

// loadSeccomp loads the program on every thread at once.
func loadSeccomp(program []byte) error {
	n := len(program) / instructionBytes
	if n == 0 || n > instructionsMax || len(program)%instructionBytes != 0 {
		return fmt.Errorf("program of %d bytes", len(program))
	}
	filter := make([]unix.SockFilter, n)
	for i := range filter {
		in := program[i*instructionBytes:]
		filter[i] = unix.SockFilter{
			Code: binary.NativeEndian.Uint16(in), Jt: in[2], Jf: in[3], K: binary.NativeEndian.Uint32(in[4:]),
		}
	}
	prog := unix.SockFprog{Len: uint16(n), Filter: &filter[0]}
	tid, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	if tid != 0 {
		return errors.New("a thread could not be synchronised")
	}
	return nil
}

func setCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	const low, high = uint32(Capabilities & 0xffffffff), uint32(Capabilities >> 32)
	data := [2]unix.CapUserData{{Effective: low, Permitted: low}, {Effective: high, Permitted: high}}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
