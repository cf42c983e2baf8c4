package linux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
)

const (
	dialTries = 100                  // while more connections wait than the socket queues; the kernel tells of no room
	dialWait  = 5 * time.Millisecond // between two tries
)

// instance implements dayfly.Instance.
type instance struct {
	id     string
	driver *Driver
	group  *cgroup.Group
	runDir string
	cpus   []int
	pid    int    // of PID 1, on the host; 0 until it is cloned
	ours   bool   // PID 1 is this process's child, to be waited for
	arena  *arena // that PID 1 may still read while it is being cloned; nil for a recovered machine
	state  json.RawMessage

	done chan struct{}
	once sync.Once // finish

	mu      sync.Mutex
	unwatch func()             // releases the watch on the cgroup; nil while there is none
	ooms    *cgroup.OOMCounter // nil before the first command and after the end
	ended   bool
}

func newInstance(d *Driver, id string, group *cgroup.Group, runDir string) *instance {
	return &instance{id: id, driver: d, group: group, runDir: runDir, done: make(chan struct{})}
}

// ID implements dayfly.Instance.
func (i *instance) ID() string { return i.id }

// State implements dayfly.Instance.
func (i *instance) State() json.RawMessage { return i.state }

// Done implements dayfly.Instance.
func (i *instance) Done() <-chan struct{} { return i.done }

// Usage implements dayfly.Instance.
func (i *instance) Usage(ctx context.Context) (dayfly.Usage, error) {
	if err := ctx.Err(); err != nil {
		return dayfly.Usage{}, err
	}
	return i.group.Usage()
}

// OOMKills counts the processes killed for lack of memory. The node asks before and after every command, so it is not part
// of Usage alone, which makes the kernel sum up all statistics.
func (i *instance) OOMKills() (int64, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	counter := i.ooms
	if counter == nil {
		var err error
		if counter, err = i.group.OOMCounter(); err != nil {
			return 0, err
		}
		if i.ended {
			defer counter.Close()
		} else {
			i.ooms = counter
		}
	}
	return counter.Kills()
}

// Pause implements dayfly.Pauser.
func (i *instance) Pause(ctx context.Context) error { return i.group.Freeze(ctx) }

// Resume implements dayfly.Pauser.
func (i *instance) Resume(ctx context.Context) error { return i.group.Thaw(ctx) }

// Paused implements dayfly.Pauser.
func (i *instance) Paused() (bool, error) { return i.group.Freezing() }

// Dial implements dayfly.Instance.
func (i *instance) Dial(ctx context.Context) (net.Conn, error) {
	var conn net.Conn
	dial := func(path string) (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, "unix", path)
		return err
	}
	for try := range dialTries {
		if i.hasEnded() {
			return nil, errEnded
		}
		err := shortPath(i.runDir, dial)
		switch {
		case err == nil:
			return conn, nil
		case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
			return nil, errEnded.WithCause(err)
		case !errors.Is(err, unix.EAGAIN) || try == dialTries-1:
			return nil, fmt.Errorf("dial agent of %s: %w", i.id, err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-i.done:
		case <-time.After(dialWait):
		}
	}
	return nil, errEnded
}

var errEnded = dayfly.Errorf(dayfly.CodeGone, "the sandbox's machine has ended")

func (i *instance) hasEnded() bool {
	select {
	case <-i.done:
		return true
	default:
		return false
	}
}

// watch sees to it that finish runs when the last process has ended.
func (i *instance) watch() error {
	cancel, err := i.driver.events.Notify(i.group.EventsPath(), func(populated bool) {
		if !populated {
			i.driver.ending.Go(i.finish)
		}
	})
	if errors.Is(err, fs.ErrNotExist) {
		i.finish()
		return nil
	}
	if err != nil {
		return fmt.Errorf("watch cgroup: %w", err)
	}
	i.mu.Lock()
	i.unwatch = cancel
	ended := i.ended
	i.mu.Unlock()
	if ended {
		cancel()
	}
	return nil
}

// finish runs once, when no process of the machine lives.
func (i *instance) finish() {
	i.once.Do(func() {
		i.reap()
		i.mu.Lock()
		i.ended = true
		unwatch := i.unwatch
		if i.ooms != nil {
			_ = i.ooms.Close()
			i.ooms = nil
		}
		i.mu.Unlock()
		if unwatch != nil {
			unwatch()
		}
		i.driver.cpus.give(i.cpus)
		if i.arena != nil {
			i.arena.free()
		}
		close(i.done)
	})
}

// reap waits for PID 1, which is dead or just dying.
func (i *instance) reap() {
	if !i.ours {
		return // its parent died with the node before; the host's init waits for it
	}
	for {
		if _, err := unix.Wait4(i.pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// forget lets go of a machine that is not taken over. It goes on by itself.
func (i *instance) forget() {
	i.mu.Lock()
	unwatch := i.unwatch
	i.mu.Unlock()
	if unwatch != nil {
		unwatch()
	}
}

// Destroy implements dayfly.Instance. What it could not remove stays in List, for Reclaim.
func (i *instance) Destroy(ctx context.Context) error {
	err := i.group.Kill(ctx)
	if err == nil {
		i.finish()
	}
	err = errors.Join(err, i.group.Remove())
	if rerr := os.Remove(filepath.Join(i.runDir, socketName)); !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	if err != nil {
		return fmt.Errorf("destroy %s: %w", i.id, err)
	}
	return nil
}
