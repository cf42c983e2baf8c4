package agent

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// What rt_sigaction of the kernel speaks of, from linux/signal.h.
const (
	signalMax   = 64
	signalSet   = 8 // bytes of the kernel's signal set
	ignored     = 1 // SIG_IGN
	defaultDisp = 0 // SIG_DFL
)

// disposition is the kernel's struct sigaction, large enough for every architecture's.
type disposition struct {
	handler uintptr
	rest    [3]uintptr // flags, restorer, mask
}

// listenAgain gives every signal that the starter of the server ignored (nohup does, for one) its default back: an ignored
// signal would stay ignored in every command, whose programs expect it not to be. Signals that Go handles are left alone.
func listenAgain() {
	for s := 1; s <= signalMax; s++ {
		if s == int(unix.SIGKILL) || s == int(unix.SIGSTOP) {
			continue
		}
		var now disposition
		if sigaction(s, nil, &now) != 0 || now.handler != ignored {
			continue
		}
		_ = sigaction(s, &disposition{handler: defaultDisp}, nil)
	}
}

func sigaction(signal int, set, get *disposition) unix.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(get)), signalSet, 0, 0)
	return e
}
