// Package plain is the disk pool of last resort: each disk is a directory in the data directory. It enforces no limits and
// says so; removing takes as long as the disk is large, so it happens in the background.
//
// To add an operation, extend dayfly.Pool and disktest first.
package plain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/disk"
	"dayfly.dev/dayfly/internal/tree"
)

// Options say where the pool is.
type Options struct {
	DataDir string       // absolute; the pool is DataDir/plain. Must exist.
	Log     *slog.Logger // or nil
}

const (
	poolName  = "plain"
	disksName = "disks"
	trashName = "trash"
)

// Pool implements dayfly.Pool. Its methods may be called from several goroutines.
type Pool struct {
	dir   string
	disks string
	trash string
	log   *slog.Logger

	kick   chan struct{} // tells the reclaimer that there is something in the trash
	stop   context.CancelFunc
	done   chan struct{} // closed when the reclaimer has ended
	closed sync.Once
}

var _ dayfly.Pool = (*Pool)(nil)

// Open takes the pool of the data directory, making it at first, and goes on removing what an earlier process left.
func Open(_ context.Context, o Options) (*Pool, error) {
	dir, err := filepath.Abs(filepath.Join(o.DataDir, poolName))
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Pool{
		dir: dir, disks: filepath.Join(dir, disksName), trash: filepath.Join(dir, trashName),
		log: o.Log, kick: make(chan struct{}, 1), done: make(chan struct{}),
	}
	for _, d := range []string{p.dir, p.disks, p.trash} {
		if err := os.Mkdir(d, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, disk.Error("open pool", err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go p.reclaim(ctx)
	p.wake()
	return p, nil
}

// Kind implements dayfly.Pool.
func (p *Pool) Kind() string { return "plain" }

// Limits implements dayfly.Pool.
func (p *Pool) Limits() (enforced bool, why string) {
	return false, "The disk pool is a plain directory, where the kernel enforces no limits; with btrfs it would."
}

// Create implements dayfly.Pool. The limit is not enforced.
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
	dir := filepath.Join(p.disks, id)
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return "", dayfly.Errorf(dayfly.CodeConflict, "there is a disk %s already", id)
	}
	if err != nil {
		return "", disk.Error("create disk", err)
	}
	undo := cleanup.Make(func() { _ = p.Remove(context.WithoutCancel(ctx), id) })
	defer undo.Clean()
	for _, d := range []string{filepath.Join(dir, "u"), filepath.Join(dir, "w")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return "", disk.Error("create disk", err)
		}
		if err := os.Chmod(d, 0o755); err != nil { // whatever the umask
			return "", disk.Error("create disk", err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", disk.Error("create disk", err)
	}
	undo.Release()
	return dir, nil
}

// Remove implements dayfly.Pool.
func (p *Pool) Remove(ctx context.Context, id string) error {
	if err := disk.CheckID(id); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("remove disk %s: %w", id, err)
	}
	err := os.Rename(filepath.Join(p.disks, id), filepath.Join(p.trash, id+"."+dayfly.NewInstallation()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return disk.Error("remove disk "+id, err)
	}
	p.wake()
	return nil
}

// List implements dayfly.Pool.
func (p *Pool) List(ctx context.Context) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("list disks: %w", err)
	}
	ids, err := names(p.disks)
	if err != nil {
		return nil, fmt.Errorf("list disks: %w", err)
	}
	return ids, nil
}

// Reclaiming implements dayfly.Pool. It also makes the reclaimer try again what it could not remove.
func (p *Pool) Reclaiming(ctx context.Context) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("count removed disks: %w", err)
	}
	left, err := names(p.trash)
	if err != nil {
		return 0, fmt.Errorf("count removed disks: %w", err)
	}
	if len(left) > 0 {
		p.wake()
	}
	return len(left), nil
}

// Usage implements dayfly.Pool: it is the data directory's file system.
func (p *Pool) Usage(ctx context.Context) (total, free int64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, 0, fmt.Errorf("read the pool's usage: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(p.dir, &st); err != nil {
		return 0, 0, fmt.Errorf("read the pool's usage: %w", err)
	}
	bytes := func(blocks uint64) int64 { return int64(min(blocks, math.MaxInt64/uint64(st.Bsize))) * st.Bsize }
	return bytes(st.Blocks), bytes(st.Bavail), nil
}

// Close implements dayfly.Pool. What is left in the trash is removed after the next Open.
func (p *Pool) Close() error {
	p.closed.Do(func() {
		p.stop()
		<-p.done
	})
	return nil
}

// Destroy removes the pool of the data directory with everything in it. None may be open. No pool there is fine.
func Destroy(ctx context.Context, dataDir string) error {
	if err := tree.RemoveAll(ctx, filepath.Join(dataDir, poolName)); err != nil {
		return fmt.Errorf("destroy pool: %w", err)
	}
	return nil
}

func (p *Pool) wake() {
	select {
	case p.kick <- struct{}{}:
	default: // told already
	}
}

// reclaim empties the trash whenever it is told to.
func (p *Pool) reclaim(ctx context.Context) {
	defer close(p.done)
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.kick:
		}
		left, err := names(p.trash)
		if err != nil {
			p.log.Warn("list removed disks", "error", err)
		}
		for _, name := range left {
			if err := tree.RemoveAll(ctx, filepath.Join(p.trash, name)); err != nil && ctx.Err() == nil {
				p.log.Warn("remove a disk", "name", name, "error", err)
			}
		}
	}
}

func names(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, err := f.Readdirnames(-1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return list, err
}
