// Command dayfly-gvisor is runsc, built from its Go module at the version that go.mod pins. It is a module of its own, so that
// gVisor's dependencies never touch the server's, and a program of its own, so that the server never links it. The build
// packs it (scripts/helper.sh) and embeds it into dayfly, which puts it into its data directory.
//
// Nothing may be added here that starts goroutines while packages initialise: the code runs in every process of gVisor, also
// under the system call filter of the sentry.
//
// What is changed in gVisor itself is in _mend, and why in docs/adr/0016-gvisor-start.md.
package main

import (
	"errors"
	"os"
	"runtime/debug"
	"syscall"

	"gvisor.dev/gvisor/runsc/cli/maincli"
)

// How the cell holds a runsc that it started early (internal/driver/gvisor/cell/launch.go).
const (
	waitFD   = 4
	waitName = "DAYFLY_WAIT"
)

// main collects no garbage: these processes end before it would pay. Sentry and gofer turn collections on once they have
// started (_mend/gvisor.patch).
func main() {
	debug.SetGCPercent(-1)
	if os.Getenv(waitName) != "" {
		wait()
	}
	maincli.Main()
}

// wait returns when the cell says that everything is there, and ends this process when the cell has ended.
func wait() {
	_ = os.Unsetenv(waitName)
	var b [1]byte
	n, err := syscall.Read(waitFD, b[:])
	for errors.Is(err, syscall.EINTR) {
		n, err = syscall.Read(waitFD, b[:])
	}
	if n != 1 {
		os.Exit(1)
	}
	_ = syscall.Close(waitFD)
}
