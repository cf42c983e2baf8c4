package btrfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

const unmountWait = 10 * time.Second

// Destroy removes the pool of the data directory with everything in it: disks, mount, loop device, file. It needs no open
// Pool and none may be open. A data directory without a pool is fine. CodeConflict: something still uses the pool.
func Destroy(ctx context.Context, dataDir string) error {
	dir, err := filepath.EvalSymlinks(dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("destroy pool: %w", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("destroy pool: %w", err)
	}
	hosted, err := onHost(dir)
	if err != nil {
		return fmt.Errorf("destroy pool: %w", err)
	}
	if hosted {
		err = destroyHosted(ctx, filepath.Join(dir, poolName))
	} else {
		err = destroyFile(ctx, dir)
	}
	if err != nil {
		return fmt.Errorf("destroy pool: %w", err)
	}
	return nil
}

func destroyFile(ctx context.Context, dataDir string) error {
	dir := filepath.Join(dataDir, poolName)
	file, err := os.OpenFile(filepath.Join(dataDir, fileName), os.O_RDWR, 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if file != nil {
		defer file.Close()
		shown, err := showsFile(dir, file)
		if err != nil {
			return err
		}
		if shown {
			if err := unmount(ctx, dir); err != nil {
				return err
			}
		}
		if err := detachLoop(ctx, file); err != nil {
			return err
		}
	}
	for _, name := range []string{fileName, newName, poolName} { // a directory that is not empty stays: it is not ours
		if err := os.Remove(filepath.Join(dataDir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// unmount waits for the last user of the mount: the kernel lets go of a dead machine's files a little later.
func unmount(ctx context.Context, dir string) error {
	deadline := time.Now().Add(unmountWait)
	for {
		err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
		if time.Now().After(deadline) {
			return dayfly.Errorf(dayfly.CodeConflict, "the disk pool %s is in use", dir).
				WithHint("end the processes that use it (fuser -vm %s names them) and try again", dir)
		}
		if err := pause(ctx, retryEvery); err != nil {
			return err
		}
	}
}

// destroyHosted removes a pool that is a directory on the host's own btrfs, and switches quotas off if we had switched them on.
func destroyHosted(ctx context.Context, dir string) error {
	p := &Pool{dir: dir, hosted: true, log: slog.New(slog.DiscardHandler), kick: make(chan struct{}, 1), stale: map[uint64]struct{}{}}
	defer p.closeFiles()
	for _, d := range p.parts() {
		f, err := os.Open(filepath.Join(dir, d.name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		*d.file = f
	}
	for _, d := range p.parts() {
		if err := p.destroyAll(ctx, *d.file); err != nil {
			return err
		}
	}
	if err := p.restoreQuota(); err != nil {
		return err
	}
	for _, name := range []string{disksName, trashName, dyingName, ""} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// destroyAll removes every disk in f, which is nil if there is no such directory.
func (p *Pool) destroyAll(ctx context.Context, f *os.File) error {
	if f == nil {
		return nil
	}
	names, err := listDir(f)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if err := p.destroy(ctx, f, name); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (p *Pool) restoreQuota() error {
	marker := filepath.Join(p.dir, markerName)
	if _, err := os.Lstat(marker); err != nil || p.disks == nil {
		return nil // they were on before us
	}
	if err := quotaControl(int(p.disks.Fd()), quotaDisable); err != nil && !errors.Is(err, unix.ENOTCONN) {
		return fmt.Errorf("switch quotas off: %w", err)
	}
	return os.Remove(marker)
}
