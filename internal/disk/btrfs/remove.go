package btrfs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/disk"
)

const (
	sweepMost   = 64  // quota groups or trash entries in one sweep
	staleSoon   = 256 // so many stale quota groups make Create sweep some
	nestedDepth = 32  // subvolumes in subvolumes
	// commitDelay gathers removals before the commit that lets their space come back.
	commitDelay = time.Second
	commitTries = 60 // commits for one round of removals; after that the kernel's own pace must do
)

// Remove implements dayfly.Pool. It takes the same time whatever the disk holds, also while files of it are open.
func (p *Pool) Remove(ctx context.Context, id string) error {
	if err := disk.CheckID(id); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("remove disk %s: %w", id, err)
	}
	err := p.destroy(p.disks, id)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	// It cannot go yet: at least it is no disk any more.
	aside := id + "." + dayfly.NewInstallation()
	if renameErr := unix.Renameat(int(p.disks.Fd()), id, int(p.trash.Fd()), aside); renameErr != nil {
		if errors.Is(renameErr, unix.ENOENT) {
			return nil
		}
		return disk.Error("remove disk "+id, errors.Join(err, renameErr))
	}
	p.log.Warn("disk put aside", "disk", id, "error", err)
	return nil
}

// destroy unlinks the subvolume name in parent and everything nested in it.
func (p *Pool) destroy(parent *os.File, name string) error {
	fd, err := openDir(parent, name)
	if err != nil {
		return err
	}
	id, err := subvolumeOf(fd)
	_ = unix.Close(fd)
	if err != nil {
		return fmt.Errorf("find the subvolume: %w", err)
	}
	err = destroySubvolume(int(parent.Fd()), name)
	if errors.Is(err, unix.ENOTEMPTY) {
		if err = p.destroyNested(id, nestedDepth); err == nil {
			err = destroySubvolume(int(parent.Fd()), name)
		}
	}
	if err != nil {
		return err
	}
	p.unlinked(id)
	return nil
}

func (p *Pool) destroyNested(id uint64, depth int) error {
	if depth == 0 {
		return fmt.Errorf("subvolumes are nested deeper than %d", nestedDepth)
	}
	fd := int(p.trash.Fd())
	children, err := childrenOf(fd, id)
	if err != nil {
		return fmt.Errorf("list nested subvolumes: %w", err)
	}
	for _, child := range children {
		if err := p.destroyNested(child, depth-1); err != nil {
			return err
		}
		if err := destroySubvolumeByID(fd, child); err != nil {
			return fmt.Errorf("destroy nested subvolume: %w", err)
		}
		p.unlinked(child)
	}
	return nil
}

// unlinked notes that a subvolume waits for its space to come back.
func (p *Pool) unlinked(id uint64) {
	p.mu.Lock()
	p.stale[id] = struct{}{}
	p.mu.Unlock()
	p.wake()
}

func (p *Pool) wake() {
	select {
	case p.kick <- struct{}{}:
	default: // told already
	}
}

// start runs the reclaimer: after removals it begins commits until the space is back, because only after a commit does the
// kernel take up its cleaning, which otherwise would wait for half a minute and longer.
func (p *Pool) start() {
	ctx, stop := context.WithCancel(context.Background())
	p.stop, p.done = stop, make(chan struct{})
	go func() {
		defer close(p.done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-p.kick:
			}
			for range commitTries { // what is still open or being written holds its subvolume for some rounds
				if pause(ctx, commitDelay) != nil {
					return
				}
				if left, err := p.commit(); err != nil || left == 0 {
					break
				}
			}
		}
	}()
}

// commit begins a commit if subvolumes wait to be cleaned, and tells how many do.
func (p *Pool) commit() (int, error) {
	fd := int(p.trash.Fd())
	dead, err := deadSubvolumes(fd)
	if err == nil && len(dead) > 0 {
		// Without a running transaction nothing would be committed and the cleaner not woken, so begin one.
		now := unix.NsecToTimeval(time.Now().UnixNano())
		if err = unix.Futimes(fd, []unix.Timeval{now, now}); err == nil {
			err = startSync(fd)
		}
	}
	if err != nil {
		p.log.Warn("begin a commit of the disk pool", "error", err)
	}
	return len(dead), err
}

// Reclaiming implements dayfly.Pool. It also tries again what could not be removed before.
func (p *Pool) Reclaiming(ctx context.Context) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("count removed disks: %w", err)
	}
	left, err := p.sweepTrash()
	if err != nil {
		return 0, fmt.Errorf("count removed disks: %w", err)
	}
	p.sweepQgroups()
	dead, err := deadSubvolumes(int(p.trash.Fd()))
	if err != nil {
		return 0, fmt.Errorf("count removed disks: %w", err)
	}
	if p.hosted { // on a btrfs of the host, others remove subvolumes too
		p.mu.Lock()
		maps.DeleteFunc(dead, func(id uint64, _ bool) bool { _, ours := p.stale[id]; return !ours })
		p.mu.Unlock()
	}
	if len(dead) > 0 {
		p.wake()
	}
	return left + len(dead), nil
}

// sweepTrash removes disks that were put aside and tells how many are left.
func (p *Pool) sweepTrash() (int, error) {
	names, err := listDir(p.trash)
	if err != nil {
		return 0, err
	}
	left := len(names)
	for _, name := range names[:min(len(names), sweepMost)] {
		if err := p.destroy(p.trash, name); err != nil {
			p.log.Warn("remove a disk that was put aside", "name", name, "error", err)
			continue
		}
		left--
	}
	return left, nil
}

func (p *Pool) staleCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.stale)
}

// findStale looks for quota groups of subvolumes that are gone: an earlier process may have had no time to remove them.
func (p *Pool) findStale() error {
	p.stale = map[uint64]struct{}{}
	if p.hosted || p.quota == QuotaOff { // on a btrfs of the host they may be anybody's
		return nil
	}
	fd := int(p.disks.Fd())
	groups, err := qgroups(fd, firstFree, levelZero)
	if err != nil {
		return fmt.Errorf("list quota groups: %w", err)
	}
	for id := range groups {
		exists, err := subvolumeExists(fd, id)
		if err != nil {
			return fmt.Errorf("look for a subvolume: %w", err)
		}
		if !exists {
			p.stale[id] = struct{}{}
		}
	}
	return nil
}

// levelZero is the largest id of a quota group that stands for one subvolume.
const levelZero = math.MaxUint64 >> 16

// sweepQgroups forgets the accounting of some subvolumes that are wholly gone. Newer kernels do it by themselves.
func (p *Pool) sweepQgroups() {
	p.mu.Lock()
	ids := make([]uint64, 0, sweepMost)
	for id := range p.stale {
		if ids = append(ids, id); len(ids) == sweepMost {
			break
		}
	}
	p.mu.Unlock()
	for _, id := range ids {
		gone, err := p.forget(id)
		if err != nil {
			p.log.Warn("remove a stale quota group", "subvolume", id, "error", err)
		}
		if gone {
			p.mu.Lock()
			delete(p.stale, id)
			p.mu.Unlock()
		}
	}
}

// forget tells whether the accounting of subvolume id is gone, and removes it once nothing is left to account for.
func (p *Pool) forget(id uint64) (bool, error) {
	fd := int(p.trash.Fd())
	exists, err := subvolumeExists(fd, id)
	if err != nil || exists {
		return false, err
	}
	groups, err := qgroups(fd, id, id)
	if err != nil {
		return false, err
	}
	used, found := groups[id]
	if !found {
		return true, nil
	}
	if used > 0 && p.quota == QuotaSimple { // extents that outlive it are still counted here
		return false, nil
	}
	err = removeQgroup(fd, id)
	if errors.Is(err, unix.EBUSY) {
		return false, nil
	}
	if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTCONN) { // the last: quotas are off
		return true, nil
	}
	return false, err
}
