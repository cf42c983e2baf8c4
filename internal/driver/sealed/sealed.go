// Package sealed holds programs in memory that nothing can change, for drivers to execute by descriptor. It is for small
// ones: sealed memory cannot be taken back by the kernel.
package sealed

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Name is what a process of the agent's binary is called in process lists.
const Name = "dayfly-agent"

const (
	seals  = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	highFD = 64 // out of the way of a child's standard descriptors
)

// Agent puts the agent's binary into sealed memory: one copy that all machines execute and share, that has no path inside or
// outside and that nobody can change, not even by way of /proc/1/exe. The caller closes the descriptor, which is for reading and
// executing, close-on-exec, and too high to be in the way of a child's standard ones.
func Agent(binary []byte) (fd int, err error) {
	fd, err = unix.MemfdCreate(Name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before kernel 6.3
		fd, err = unix.MemfdCreate(Name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return -1, fmt.Errorf("make memory for the agent: %w", err)
	}
	defer unix.Close(fd)
	for rest := binary; len(rest) > 0; {
		n, err := unix.Write(fd, rest)
		if err != nil {
			return -1, fmt.Errorf("copy the agent: %w", err)
		}
		rest = rest[n:]
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return -1, fmt.Errorf("seal the agent: %w", err)
	}
	// Opened again for reading only: a file that is open for writing cannot be executed.
	reader, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the sealed agent: %w", err)
	}
	high, err := moveHigh(reader)
	if err != nil {
		return -1, fmt.Errorf("open the sealed agent: %w", err)
	}
	return high, nil
}

// moveHigh moves a descriptor out of the way of a child's standard ones. It owns fd.
func moveHigh(fd int) (int, error) {
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, highFD)
	return high, errors.Join(err, unix.Close(fd))
}
