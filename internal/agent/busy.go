package agent

import (
	"time"

	"golang.org/x/sys/unix"
)

// Waiting for copies of a descriptor to be closed: the kernel gives no event.
const (
	busyRest  = 100 * time.Microsecond
	busyLooks = 100
)

// awaitIdle waits until nobody has the open file, of which fd is open for reading only, open for writing. A program that is
// starting holds copies of the agent's descriptors a little longer than it tells: until it has closed them one by one. A lease
// for reading is granted only when nobody may write. Where none can be had, because the file is another user's or on a file
// system without leases, it waits for nothing.
func awaitIdle(fd int) {
	for range busyLooks {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
		if err == nil {
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
		}
		if err != unix.EAGAIN {
			return
		}
		time.Sleep(busyRest)
	}
}
