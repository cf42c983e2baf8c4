package hostnet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	forwardSysctl = "net/ipv4/ip_forward"
	forwardFile   = "ip_forward" // below StateDir: the value before the first installation came

	stateLockTries = 16
)

// withStateLock holds the lock of the state directory while fn runs, so that installations coming and going do not mix up
// who turned forwarding on. It blocks for as long as another one works. A directory that is empty afterwards is removed.
func withStateLock(dir string, fn func() error) error {
	for range stateLockTries {
		f, err := lockDir(dir)
		if err != nil {
			return err
		}
		if f == nil {
			continue // the last installation removed it while we waited
		}
		err = fn()
		_ = os.Remove(dir) // fails unless it is empty
		return errors.Join(err, f.Close())
	}
	return fmt.Errorf("lock state directory %s: it keeps being replaced", dir)
}

// lockDir makes and locks dir; nil when it was removed meanwhile.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	f, err := os.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open state directory: %w", err)
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	held, statErr := f.Stat()
	if err = errors.Join(err, statErr); err != nil {
		return nil, errors.Join(fmt.Errorf("lock state directory: %w", err), f.Close())
	}
	if now, err := os.Stat(dir); err != nil || !os.SameFile(held, now) {
		_ = f.Close()
		return nil, nil
	}
	return f, nil
}

// forwardOn makes the host a router and remembers what it was. It runs on a thread in the host's namespace, under the lock.
func forwardOn(dir string) error {
	old, err := os.ReadFile("/proc/sys/" + forwardSysctl)
	if err != nil {
		return fmt.Errorf("read %s: %w", forwardSysctl, err)
	}
	path := filepath.Join(dir, forwardFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err == nil { // the first installation
		_, err = f.Write(old)
		err = errors.Join(err, f.Close())
	} else if errors.Is(err, os.ErrExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("remember %s: %w", forwardSysctl, err)
	}
	if strings.TrimSpace(string(old)) == "1" {
		return nil // writing it again would reset other settings
	}
	return setSysctl(forwardSysctl, "1")
}

// forwardBack restores what forwardOn found. It runs on a thread in the host's namespace, under the lock, when the last
// installation goes.
func forwardBack(dir string) error {
	path := filepath.Join(dir, forwardFile)
	old, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("recall %s: %w", forwardSysctl, err)
	}
	if strings.TrimSpace(string(old)) == "0" {
		if err := setSysctl(forwardSysctl, "0"); err != nil {
			return err
		}
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("forget %s: %w", forwardSysctl, err)
	}
	return nil
}
