package btrfs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	commitEvery = 1500 * time.Millisecond // commits disturb those who create, so there are no more
	commitSoon  = 100 * time.Millisecond  // gathers removals before a commit after a quiet time
	commitTries = 60                      // commits for one round of removals; after that the kernel's own pace must do
)

// start runs the reclaimer. It sleeps until a removal wakes it.
func (p *Pool) start() {
	ctx, stop := context.WithCancel(context.Background())
	p.stop, p.done = stop, make(chan struct{})
	go func() {
		defer close(p.done)
		var last time.Time // of the last commit
		for {
			select {
			case <-ctx.Done():
				return
			case <-p.kick:
				last = p.reclaim(ctx, last)
			}
		}
	}()
}

func (p *Pool) wake() {
	select {
	case p.kick <- struct{}{}:
	default: // told already
	}
}

// reclaim destroys removed disks and begins commits until their space is back, because only after a commit does the kernel
// take up its cleaning, which otherwise would wait for half a minute and longer.
func (p *Pool) reclaim(ctx context.Context, last time.Time) time.Time {
	for range commitTries { // what is still open or being written holds its subvolume for some rounds
		p.emptyTrash(ctx)
		if pause(ctx, max(commitSoon, commitEvery-time.Since(last))) != nil {
			return last
		}
		left, err := p.commit()
		last = time.Now()
		if err != nil {
			p.log.Warn("begin a commit of the disk pool", "error", err)
			return last
		}
		p.sweepQgroups(ctx)
		if left == 0 {
			p.giveBack()
			return last
		}
	}
	return last
}

// giveBack gives all free room back to the host's file, if that is wanted. The kernel's own asynchronous discard leaves out
// what is small, like freed blocks of the trees, and small files live in those.
func (p *Pool) giveBack() {
	if !p.discard || p.hosted {
		return
	}
	if err := trim(int(p.trash.Fd())); err != nil {
		p.log.Warn("give free room of the disk pool back", "error", err)
	}
}

// emptyTrash destroys removed disks. Each goes through the directory dying first, since its directory is locked meanwhile
// and Remove must not wait for that.
func (p *Pool) emptyTrash(ctx context.Context) {
	names, err := listDir(p.trash)
	if err != nil {
		p.log.Warn("list removed disks", "error", err)
	}
	for _, name := range names {
		if err := unix.Renameat(int(p.trash.Fd()), name, int(p.dying.Fd()), name); err != nil {
			p.log.Warn("remove a disk", "name", name, "error", err)
		}
	}
	if names, err = listDir(p.dying); err != nil {
		p.log.Warn("list removed disks", "error", err)
	}
	for _, name := range names {
		if ctx.Err() != nil {
			return
		}
		if err := p.destroy(p.dying, name); err != nil {
			p.log.Warn("remove a disk", "name", name, "error", err)
		}
	}
}

// commit begins a commit if subvolumes wait to be cleaned or freed room waits to be usable, and tells how many.
func (p *Pool) commit() (int, error) {
	fd := int(p.trash.Fd())
	dead, err := deadSubvolumes(fd)
	if err != nil {
		return 0, err
	}
	left := len(dead)
	if left == 0 && p.starved() {
		left = 1
	}
	if left == 0 {
		return 0, nil
	}
	// Without a running transaction nothing would be committed and the cleaner not woken, so begin one.
	now := unix.NsecToTimeval(time.Now().UnixNano())
	if err := unix.Futimes(fd, []unix.Timeval{now, now}); err != nil {
		return left, err
	}
	return left, startSync(fd)
}

// starved tells that the pool was full and the kernel has not yet made the room that was freed since usable.
func (p *Pool) starved() bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(p.trash.Fd()), &st) == nil && st.Bavail == 0 && st.Bfree > st.Blocks/8
}

// Reclaiming implements dayfly.Pool. It also makes the reclaimer try again what it could not remove.
func (p *Pool) Reclaiming(ctx context.Context) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("count removed disks: %w", err)
	}
	n, err := p.reclaiming()
	if err != nil {
		return 0, fmt.Errorf("count removed disks: %w", err)
	}
	if n > 0 {
		p.wake()
	}
	return n, nil
}

func (p *Pool) reclaiming() (int, error) {
	trash, err := listDir(p.trash)
	if err != nil {
		return 0, err
	}
	dying, err := listDir(p.dying)
	if err != nil {
		return 0, err
	}
	dead, err := deadSubvolumes(int(p.trash.Fd()))
	if err != nil {
		return 0, err
	}
	if p.hosted { // on a btrfs of the host, others remove subvolumes too
		p.mu.Lock()
		maps.DeleteFunc(dead, func(id uint64, _ bool) bool { _, ours := p.stale[id]; return !ours })
		p.mu.Unlock()
	}
	return len(trash) + len(dying) + len(dead), nil
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

// sweepQgroups forgets the accounting of subvolumes that are wholly gone. Newer kernels do it by themselves.
func (p *Pool) sweepQgroups(ctx context.Context) {
	p.mu.Lock()
	ids := slices.Collect(maps.Keys(p.stale))
	p.mu.Unlock()
	for _, id := range ids {
		if ctx.Err() != nil {
			return
		}
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
