package btrfs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	commitEvery = 1500 * time.Millisecond // commits disturb those who create, so there are no more
	commitLow   = 300 * time.Millisecond  // the same when room is short: those who create wait for it
	commitSoon  = 100 * time.Millisecond  // gathers removals before a commit after a quiet time
	commitTries = 60                      // commits for one round of removals; after that the kernel's own pace must do
	lowShare    = 8                       // room is short when less than one part in so many is free
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

// reclaim destroys removed disks and begins commits until their space is back: only after a commit does the kernel take up its
// cleaning, and only after another one is what it cleaned free. By itself it would wait half a minute for each.
func (p *Pool) reclaim(ctx context.Context, last time.Time) time.Time {
	held := false
	defer func() {
		if held {
			p.setDiscard(true)
		}
	}()
	for range commitTries { // what is still open or being written holds its subvolume for some rounds
		p.emptyTrash(ctx)
		if pause(ctx, max(commitSoon, p.pace()-time.Since(last))) != nil {
			return last
		}
		more, err := p.unfinished()
		if err == nil && !more {
			p.sweepQgroups(ctx)
			p.giveBack()
			return last
		}
		if !held && p.discard && !p.hosted && p.starved() {
			held = p.setDiscard(false)
		}
		if err == nil {
			err = p.commit()
		}
		last = time.Now()
		if err != nil {
			p.log.Warn("begin a commit of the disk pool", "error", err)
			return last
		}
		p.sweepQgroups(ctx)
	}
	return last
}

// pace is the time between two commits.
func (p *Pool) pace() time.Duration {
	var st unix.Statfs_t
	if unix.Fstatfs(int(p.trash.Fd()), &st) == nil && st.Bavail < st.Blocks/lowShare {
		return commitLow
	}
	return commitEvery
}

// unfinished tells whether subvolumes wait to be cleaned, or freed room waits to be usable.
func (p *Pool) unfinished() (bool, error) {
	dead, err := deadSubvolumes(int(p.trash.Fd()))
	if err != nil {
		return false, err
	}
	if len(dead) > 0 {
		p.unsettled.Store(true)
		return true, nil
	}
	return p.unsettled.Swap(false) || p.starved(), nil
}

// setDiscard switches the kernel's asynchronous discard, which keeps the room that it is at from being used for ten seconds: too
// long in a full pool. What is freed meanwhile is left to giveBack. It tells whether that worked.
func (p *Pool) setDiscard(on bool) bool {
	const flags = unix.MS_REMOUNT | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME
	err := unix.Mount("", p.dir, "", flags, discardOption(on))
	if err != nil {
		p.log.Warn("switch the disk pool's asynchronous discard", "on", on, "error", err)
	}
	return err == nil
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
	names, err := listRemoved(p.trash)
	if err != nil {
		p.log.Warn("list removed disks", "error", err)
	}
	for _, name := range names {
		if err := unix.Renameat(int(p.trash.Fd()), name, int(p.dying.Fd()), name); err != nil {
			p.log.Warn("remove a disk", "name", name, "error", err)
		}
	}
	if names, err = listRemoved(p.dying); err != nil {
		p.log.Warn("list removed disks", "error", err)
	}
	for _, name := range names {
		if ctx.Err() != nil {
			return
		}
		if err := p.destroy(ctx, p.dying, name); err != nil {
			p.log.Warn("remove a disk", "name", name, "error", err)
		}
	}
}

// listRemoved gives the removed disks in dir. What has another name is not ours.
func listRemoved(dir *os.File) ([]string, error) {
	names, err := listDir(dir)
	return slices.DeleteFunc(names, func(name string) bool { return !removed(name) }), err
}

// commit begins a commit and does not wait for its end.
func (p *Pool) commit() error {
	fd := int(p.trash.Fd())
	// Without a running transaction nothing would be committed and the cleaner not woken, so begin one.
	now := unix.NsecToTimeval(time.Now().UnixNano())
	if err := unix.Futimes(fd, []unix.Timeval{now, now}); err != nil && !errors.Is(err, unix.ENOSPC) { // full: one is running
		return err
	}
	return startSync(fd)
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
	trash, err := listRemoved(p.trash)
	if err != nil {
		return 0, err
	}
	dying, err := listRemoved(p.dying)
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
