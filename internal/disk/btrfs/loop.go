package btrfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

const (
	loopControl  = "/dev/loop-control"
	loopMajor    = 7
	loopTries    = 64 // another process may take the free device first
	detachWait   = 20 * time.Second
	retryEvery   = 20 * time.Millisecond // where the kernel gives no event
	sysBlock     = "/sys/block"
	backingEntry = "loop/backing_file"
)

// attachLoop makes a loop device of the file, or finds the one that it has. The device lives as long as it is mounted or
// the returned file is open.
func attachLoop(file *os.File) (*os.File, error) {
	if dev, err := findLoop(file); err != nil || dev != nil {
		return dev, err
	}
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("attach a loop device: %w", err)
	}
	defer control.Close()
	for range loopTries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("attach a loop device: %w", err)
		}
		dev, err := openLoop(n)
		if err != nil {
			return nil, fmt.Errorf("attach a loop device: %w", err)
		}
		if err = configureLoop(dev, file); err == nil {
			return dev, nil
		}
		_ = dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("attach loop device %d: %w", n, err)
		}
	}
	return nil, fmt.Errorf("attach a loop device: %w", unix.EBUSY)
}

func openLoop(n int) (*os.File, error) {
	name := fmt.Sprintf("/dev/loop%d", n)
	dev, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) { // no devtmpfs makes the node by itself
		if err := unix.Mknod(name, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(n)))); err != nil {
			return nil, &os.PathError{Op: "mknod", Path: name, Err: err}
		}
		dev, err = os.OpenFile(name, os.O_RDWR, 0)
	}
	return dev, err
}

// configureLoop attaches the file. Direct I/O keeps its pages from being cached twice; the kernel falls back by itself where
// the file system below has none.
func configureLoop(dev, file *os.File) error {
	c := unix.LoopConfig{Fd: uint32(file.Fd()), Size: sectorBytes}
	c.Info.Flags = unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO
	copy(c.Info.File_name[:len(c.Info.File_name)-1], file.Name())
	return unix.IoctlLoopConfigure(int(dev.Fd()), &c)
}

const sectorBytes = 4096

// findLoop gives the loop device of the file, open, or nil if it has none.
func findLoop(file *os.File) (*os.File, error) {
	var want unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &want); err != nil {
		return nil, fmt.Errorf("find the pool's loop device: %w", err)
	}
	entries, err := filepath.Glob(filepath.Join(sysBlock, "loop*", backingEntry)) // attached ones only
	if err != nil {
		return nil, fmt.Errorf("find the pool's loop device: %w", err)
	}
	for _, e := range entries {
		name := strings.TrimPrefix(strings.TrimSuffix(e, "/"+backingEntry), sysBlock+"/")
		dev, err := os.OpenFile(filepath.Join("/dev", name), os.O_RDWR, 0)
		if err != nil {
			continue // detached since, or not ours to open
		}
		if loopHas(dev, &want) {
			return dev, nil
		}
		_ = dev.Close()
	}
	return nil, nil
}

func loopHas(dev *os.File, want *unix.Stat_t) bool {
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	return err == nil && info.Device == want.Dev && info.Inode == want.Ino
}

// detachLoop waits until the file has no loop device any more, and detaches by force one that does not go by itself.
func detachLoop(ctx context.Context, file *os.File) error {
	deadline := time.Now().Add(detachWait)
	for {
		dev, err := findLoop(file)
		if err != nil || dev == nil {
			return err
		}
		name := dev.Name()
		if _, err = unix.IoctlRetInt(int(dev.Fd()), unix.LOOP_CLR_FD); errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EBUSY) {
			err = nil // gone already, or held for the moment by a mount namespace that is being born or dying
		}
		_ = dev.Close() // the device goes with its last user
		_ = forgetDevice(name)
		if err != nil {
			return fmt.Errorf("detach %s: %w", name, err)
		}
		if time.Now().After(deadline) {
			return dayfly.Errorf(dayfly.CodeConflict, "the disk pool is still mounted somewhere else from %s", name).
				WithHint("a process with mounts of its own has it: `grep -l %s /proc/*/mountinfo` names it; end that and try again", name)
		}
		if err := pause(ctx, retryEvery); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
