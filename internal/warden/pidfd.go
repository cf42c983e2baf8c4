package warden

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/reserve"
)

// errNoHolder says that no warden holds the lock.
var errNoHolder = errors.New("no warden holds the lock")

// process is a process that is not our child, held by its pidfd, so that its pid is never mistaken for another's.
type process struct {
	pid  int
	file *os.File
}

// holder finds the process that holds a data directory's warden lock. errNoHolder: nobody does.
func holder(dataDir string) (*process, error) {
	pid, err := lockPID(dataDir)
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, syscall.ESRCH) {
		return nil, errNoHolder
	}
	if err != nil {
		return nil, fmt.Errorf("open warden process %d: %w", pid, err)
	}
	p := &process{pid: pid, file: os.NewFile(uintptr(fd), "pidfd")}
	// The pid was written under the lock; if it still stands there and the lock is still held, it is the holder's.
	again, err := lockPID(dataDir)
	if err == nil && (again != pid || !opened(pid, lockPath(dataDir))) {
		err = errNoHolder
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// opened tells whether the process has the file open, as the holder of a lock on it must.
func opened(pid int, path string) bool {
	want, err := os.Stat(path)
	if err != nil {
		return false
	}
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if info, err := os.Stat(filepath.Join(dir, fd.Name())); err == nil && os.SameFile(info, want) {
			return true
		}
	}
	return false
}

// lockPID reads the pid in a lock file that is held.
func lockPID(dataDir string) (int, error) {
	held, err := reserve.Held(lockPath(dataDir))
	if err != nil {
		return 0, err
	}
	if !held {
		return 0, errNoHolder
	}
	b, err := readRegular(lockPath(dataDir), 64)
	if err != nil {
		return 0, fmt.Errorf("read warden lock: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return 0, errNoHolder // it has just taken the lock and not said who it is
	}
	return pid, nil
}

// wait blocks until the process is dead or ctx ends.
func (p *process) wait(ctx context.Context) error {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("wait for process %d: %w", p.pid, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = p.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && err != syscall.EINTR
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	return err
}

// kill ends the process. One that is dead already is fine.
func (p *process) kill() error { return p.signal(unix.SIGKILL) }

func (p *process) signal(sig syscall.Signal) error {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	var sendErr error
	err = raw.Control(func(fd uintptr) { sendErr = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	if errors.Is(sendErr, syscall.ESRCH) {
		sendErr = nil
	}
	if err = errors.Join(err, sendErr); err != nil {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	return nil
}

func (p *process) close() { _ = p.file.Close() }
