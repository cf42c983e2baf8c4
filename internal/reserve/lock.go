package reserve

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrHeld says that another process holds the lock.
var ErrHeld = errors.New("the lock is held by another process")

const (
	lockTries = 20                   // against Held, which holds the lock for microseconds
	lockWait  = 2 * time.Millisecond // between two tries
	lockMode  = 0o600
)

// Lock takes the lock file at path, made if missing, for as long as the returned file is open: the kernel releases it when
// the process dies, however it dies. The file stays when released; its content is the holder's to use. ErrHeld at once (40 ms at most)
// when another process, or another Lock of this one, holds it.
func Lock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, lockMode)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for range lockTries {
		if err = flock(f, unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			break
		}
		time.Sleep(lockWait)
	}
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("lock %s: %w", path, ErrHeld)
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// Held tells whether any process holds the lock file at path. A missing file is not held; one that cannot be opened is an
// error, never "not held".
func Held(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open lock: %w", err)
	}
	defer f.Close()
	err = flock(f, unix.LOCK_SH|unix.LOCK_NB) // shared, so that two who look do not take each other for the holder
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at lock %s: %w", path, err)
	}
	return false, nil
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}
