package warden

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// waitMarks blocks while any enforcer has a mark on id, woken by the kernel, not by a clock. seen tells whether there was
// one. All who wait share one inotify descriptor, of which a user has only 128.
func (d *Dir) waitMarks(ctx context.Context, id string) (seen bool, err error) {
	marks, err := d.marks(id)
	if err != nil || len(marks) == 0 {
		return false, err
	}
	changes, release, err := d.watch()
	if err != nil {
		return true, err
	}
	defer release()
	for {
		changed := changes.wait() // before looking, so that no change is missed
		marks, err := d.marks(id)
		if err != nil || len(marks) == 0 {
			return true, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return true, fmt.Errorf("wait for %v to decide on %s: %w", marks, id, ctx.Err())
		}
	}
}

// watch gives the shared feed of changes, started by the first who waits and ended by the last.
func (d *Dir) watch() (changes *broadcast, release func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiters == 0 {
		w, err := newWatcher(func([]notice) { d.changes.wake() })
		if err != nil {
			return nil, nil, err
		}
		if _, err := w.add(d.path, unix.IN_DELETE|unix.IN_MOVED_FROM); err != nil {
			w.close()
			return nil, nil, err
		}
		d.watcher = w
	}
	d.waiters++
	return &d.changes, d.release, nil
}

func (d *Dir) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiters--; d.waiters == 0 {
		d.watcher.close()
		d.watcher = nil
	}
}

// decided tells whether an enforcer other than except, which may be empty, has begun to kill id, and when it saw it alive, or 0.
func (d *Dir) decided(id, except string) (begun bool, alive time.Duration) {
	marks, err := d.marks(id)
	if err != nil {
		return false, 0
	}
	for _, name := range marks {
		if name == except {
			continue
		}
		if b, err := readRegular(d.mark(id, name), endMaxBytes); err == nil {
			if begun, alive = decision(string(b)); begun {
				return true, alive
			}
		}
	}
	return false, 0
}
