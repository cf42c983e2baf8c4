package agent

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// timeMax is the latest modification time that an archive may give: far away, and still one that every file system takes.
const timeMax = 1 << 33 // seconds since 1970

// setTime gives an open file a modification time from an archive. One that no file has is left out.
func setTime(fd int, at time.Time) error {
	if at.Unix() < 0 || at.Unix() > timeMax {
		return nil
	}
	return setTimes(fd, unix.Timespec{Nsec: unix.UTIME_NOW}, unix.NsecToTimespec(at.UnixNano()))
}

// setTimes is futimens, which takes an open file instead of a path.
func setTimes(fd int, access, modified unix.Timespec) error {
	ts := [2]unix.Timespec{access, modified}
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0 /* no path */, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
