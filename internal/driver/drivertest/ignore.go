package drivertest

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ownSignal is a signal that neither Go nor any test uses.
const ownSignal = 32

// ignoreSignal has this process ignore a signal until the test ends, as whoever starts a server may have it do: a machine
// inherits that, its commands must not.
func ignoreSignal(t *testing.T) {
	t.Helper()
	type action struct{ handler, flags, restorer, mask uintptr }
	const setBytes = 8
	ignore, before := action{handler: 1 /* SIG_IGN */}, action{}
	set := func(to, was *action) unix.Errno {
		_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, ownSignal, uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(was)), setBytes, 0, 0)
		return e
	}
	if e := set(&ignore, &before); e != 0 {
		t.Fatalf("ignore signal %d: %v", ownSignal, e)
	}
	t.Cleanup(func() { _ = set(&before, nil) })
}
