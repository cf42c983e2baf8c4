package btrfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/disk"
)

// Pool implements dayfly.Pool. Its methods may be called from several goroutines.
type Pool struct {
	dir     string
	hostDir string // where the pool's file takes its room from; empty when hosted
	hosted  bool   // the pool is a directory on a btrfs that is not its alone
	discard bool   // free room is given back to the host
	quota   Quota
	disks   *os.File
	trash   *os.File // removed disks
	dying   *os.File // those the reclaimer is at
	log     *slog.Logger

	kick   chan struct{} // tells the reclaimer that there is something to do
	stop   context.CancelFunc
	done   chan struct{} // closed when the reclaimer has ended
	closed sync.Once

	unsettled atomic.Bool // subvolumes were unlinked, and no commit began since the kernel cleaned them

	mu    sync.Mutex
	stale map[uint64]struct{} // subvolumes that were unlinked and whose accounting may still be there
}

var _ dayfly.Pool = (*Pool)(nil)

// Kind implements dayfly.Pool.
func (p *Pool) Kind() string { return "btrfs" }

// Quota tells how limits are enforced: QuotaSimple, QuotaClassic or QuotaOff.
func (p *Pool) Quota() Quota { return p.quota }

// Limits implements dayfly.Pool.
func (p *Pool) Limits() (enforced bool, why string) {
	if p.quota == QuotaOff {
		return false, "Disk quotas are switched off by a setting."
	}
	return true, ""
}

// Create implements dayfly.Pool. It takes well below a millisecond unless a commit of the file system is under way.
func (p *Pool) Create(ctx context.Context, id string, limitBytes int64) (string, error) {
	if err := disk.CheckID(id); err != nil {
		return "", err
	}
	if limitBytes < 0 {
		return "", dayfly.Errorf(dayfly.CodeInvalid, "a disk limit of %d bytes is negative", limitBytes)
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("create disk: %w", err)
	}
	err := createSubvolume(int(p.disks.Fd()), id)
	if errors.Is(err, unix.EEXIST) {
		return "", dayfly.Errorf(dayfly.CodeConflict, "there is a disk %s already", id)
	}
	if err != nil {
		return "", disk.Error("create disk", err)
	}
	undo := cleanup.Make(func() { _ = p.Remove(context.WithoutCancel(ctx), id) })
	defer undo.Clean()
	if err := p.furnish(id, limitBytes); err != nil {
		return "", disk.Error("create disk", err)
	}
	undo.Release()
	return filepath.Join(p.dir, disksName, id), nil
}

// furnish limits a new subvolume and puts the two directories of an overlay into it.
func (p *Pool) furnish(id string, limitBytes int64) error {
	fd, err := openDir(p.disks, id)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if limitBytes > 0 && p.quota != QuotaOff {
		if err := limitSubvolume(fd, uint64(limitBytes)); err != nil {
			return fmt.Errorf("set the limit: %w", err)
		}
	}
	if err := unix.Fchmod(fd, 0o755); err != nil {
		return err
	}
	for _, sub := range []string{"u", "w"} {
		if err := unix.Mkdirat(fd, sub, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", sub, err)
		}
		if err := unix.Fchmodat(fd, sub, 0o755, 0); err != nil { // whatever the umask
			return fmt.Errorf("make %s: %w", sub, err)
		}
	}
	return nil
}

// List implements dayfly.Pool.
func (p *Pool) List(ctx context.Context) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("list disks: %w", err)
	}
	ids, err := listDir(p.disks)
	if err != nil {
		return nil, fmt.Errorf("list disks: %w", err)
	}
	return ids, nil
}

// Usage implements dayfly.Pool. A pool in a sparse file has no more free than the host's file system below it.
func (p *Pool) Usage(ctx context.Context) (total, free int64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, 0, fmt.Errorf("read the pool's usage: %w", err)
	}
	total, free, err = room(p.dir)
	if err == nil && p.hostDir != "" {
		var hostFree int64
		if _, hostFree, err = room(p.hostDir); err == nil {
			free = min(free, hostFree)
		}
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read the pool's usage: %w", err)
	}
	return total, free, nil
}

// Close implements dayfly.Pool. A pool in a file stays mounted.
func (p *Pool) Close() error {
	p.closed.Do(func() {
		p.stop()
		<-p.done
		p.closeFiles()
	})
	return nil
}

func (p *Pool) closeFiles() {
	for _, f := range []*os.File{p.disks, p.trash, p.dying} {
		if f != nil {
			_ = f.Close()
		}
	}
}

func room(dir string) (total, free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	bytes := func(blocks uint64) int64 { return int64(min(blocks, math.MaxInt64/uint64(st.Bsize))) * st.Bsize }
	return bytes(st.Blocks), bytes(st.Bavail), nil
}

func openDir(parent *os.File, name string) (int, error) {
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return fd, nil
}

// listDir gives the names in dir, on a descriptor of its own so that callers may overlap.
func listDir(dir *os.File) ([]string, error) {
	fd, err := openDir(dir, ".")
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), dir.Name())
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}
