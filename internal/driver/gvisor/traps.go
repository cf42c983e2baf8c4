package gvisor

import (
	"errors"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/driver/trial"
)

// The user-space kernel has the host's kernel trap what programs call: by a system call filter with a listener, and, to make an
// address space, by ptrace. Where a server runs in somebody else's container either may be forbidden, which runsc tells as no
// more than an end of file.
var (
	trapped = trial.Requirement{Fault: listenerFault, Install: "run the server outside the container whose seccomp profile forbids that, or use isolation linux"}
	traced  = trial.Requirement{Fault: ptraceFault, Install: "allow ptrace for root (kernel.yama.ptrace_scope 2 or less, which is set at boot; no seccomp profile against it), or use isolation linux"}
)

const (
	yamaScope  = "/proc/sys/kernel/yama/ptrace_scope"
	yamaNobody = "3"
)

// listenerFault asks for a filter without naming one: the kernel that would allow it says EFAULT. runsc does without where the
// kernel does not know of listeners (EINVAL).
func listenerFault() string {
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, 0)
	if errno == unix.EFAULT || errno == unix.EINVAL {
		return ""
	}
	return "this host forbids that system calls are trapped for a program to answer (seccomp with a listener: " + errno.Error() + ")"
}

// ptraceFault asks to trace nobody.
func ptraceFault() string {
	if scope, err := os.ReadFile(yamaScope); err == nil && strings.TrimSpace(string(scope)) == yamaNobody {
		return "this host forbids ptrace to everybody (" + yamaScope + " is " + yamaNobody + ")"
	}
	if err := unix.PtraceAttach(math.MaxInt32); err != nil && !errors.Is(err, unix.ESRCH) {
		return "this host forbids ptrace: " + err.Error()
	}
	return ""
}
