// Package machine is what the instances of all drivers have in common: a control group that everything of a machine lives in,
// the watch on it that tells the machine's end, and the means to find it again after a restart of the node.
//
// It knows nothing of how a machine is made, and nothing of the agent beyond a stream to it. A driver embeds Machine in its
// instance and adds Dial.
package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
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

// ErrEnded is CodeGone: no process of the machine lives any more.
var ErrEnded = dayfly.Errorf(dayfly.CodeGone, "the sandbox's machine has ended")

// Watcher is what the machines of one driver share. The driver closes Events and then waits for Ending.
type Watcher struct {
	Events *cgroup.Events
	Ending sync.WaitGroup // goroutines that see a machine to its end
}

// Machine implements dayfly.Instance but for Dial.
type Machine struct {
	Group *cgroup.Group
	PID   int  // of the machine's first process, on the host; 0 until there is one
	Ours  bool // that process is this process's child, to be waited for

	id      string
	watcher *Watcher
	ended   func() // more to do at the end, or nil
	state   json.RawMessage
	done    chan struct{}
	once    sync.Once // finish

	mu      sync.Mutex
	unwatch func()             // releases the watch on the cgroup; nil while there is none
	ooms    *cgroup.OOMCounter // nil before the first command and after the end
	over    bool
	kills   int64 // for lack of memory, once it is over; -1 when that cannot be told
}

// New makes a machine of a group. ended, or nil, is called once when no process of it lives.
func New(w *Watcher, id string, group *cgroup.Group, ended func()) *Machine {
	return &Machine{Group: group, id: id, watcher: w, ended: ended, done: make(chan struct{})}
}

// ID implements dayfly.Instance.
func (m *Machine) ID() string { return m.id }

// State implements dayfly.Instance.
func (m *Machine) State() json.RawMessage { return m.state }

// Done implements dayfly.Instance.
func (m *Machine) Done() <-chan struct{} { return m.done }

// Usage implements dayfly.Instance.
func (m *Machine) Usage(ctx context.Context) (dayfly.Usage, error) {
	if err := ctx.Err(); err != nil {
		return dayfly.Usage{}, err
	}
	return m.Group.Usage()
}

// OOMKills counts the processes killed for lack of memory. The node asks before and after every command, so it is not part
// of Usage alone, which makes the kernel sum up all statistics. After the machine's end it tells how many there were at the end.
func (m *Machine) OOMKills() (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over && m.kills >= 0 {
		return m.kills, nil
	}
	counter := m.ooms
	if counter == nil {
		var err error
		if counter, err = m.Group.OOMCounter(); err != nil {
			return 0, err
		}
		if m.over {
			defer counter.Close()
		} else {
			m.ooms = counter
		}
	}
	return counter.Kills()
}

// Pause implements dayfly.Pauser.
func (m *Machine) Pause(ctx context.Context) error { return m.Group.Freeze(ctx) }

// Resume implements dayfly.Pauser.
func (m *Machine) Resume(ctx context.Context) error { return m.Group.Thaw(ctx) }

// Paused implements dayfly.Pauser.
func (m *Machine) Paused() (bool, error) { return m.Group.Freezing() }

// OutOfMemory tells, once the machine has ended, whether anything of it was killed for lack of memory.
func (m *Machine) OutOfMemory() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kills > 0
}

// Ended tells whether the machine has ended.
func (m *Machine) Ended() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// DialWith dials until dial succeeds, the machine ends or ctx does. It tries again only while the agent's queue is full.
func (m *Machine) DialWith(ctx context.Context, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	for try := range dialTries {
		if m.Ended() {
			return nil, ErrEnded
		}
		conn, err := dial(ctx)
		switch {
		case err == nil:
			return conn, nil
		case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
			return nil, ErrEnded.WithCause(err)
		case !errors.Is(err, unix.EAGAIN) || try == dialTries-1:
			return nil, fmt.Errorf("dial agent of %s: %w", m.id, err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-m.done:
		case <-time.After(dialWait):
		}
	}
	return nil, ErrEnded
}

// watch sees to it that Finish runs when the last process has ended.
func (m *Machine) watch() error {
	cancel, err := m.watcher.Events.Notify(m.Group.EventsPath(), func(populated bool) {
		if !populated {
			m.watcher.Ending.Go(m.Finish)
		}
	})
	if errors.Is(err, fs.ErrNotExist) {
		m.Finish()
		return nil
	}
	if err != nil {
		return fmt.Errorf("watch cgroup: %w", err)
	}
	m.mu.Lock()
	m.unwatch = cancel
	over := m.over
	m.mu.Unlock()
	if over {
		cancel()
	}
	return nil
}

// Finish runs once, when no process of the machine lives: it reaps, closes Done and calls what New was given.
func (m *Machine) Finish() {
	m.once.Do(func() {
		m.reap()
		kills, err := m.OOMKills()
		if err != nil {
			kills = -1
		}
		m.mu.Lock()
		m.over, m.kills = true, kills
		unwatch := m.unwatch
		if m.ooms != nil {
			_ = m.ooms.Close()
			m.ooms = nil
		}
		m.mu.Unlock()
		if unwatch != nil {
			unwatch()
		}
		if m.ended != nil {
			m.ended()
		}
		close(m.done)
	})
}

// reap waits for the first process, which is dead or just dying.
func (m *Machine) reap() {
	if !m.Ours {
		return // its parent died with the node before; the host's init waits for it
	}
	for {
		if _, err := unix.Wait4(m.PID, nil, 0, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// forget lets go of a machine that is not taken over. It goes on by itself.
func (m *Machine) forget() {
	m.mu.Lock()
	unwatch := m.unwatch
	m.mu.Unlock()
	if unwatch != nil {
		unwatch()
	}
}

// Destroy implements dayfly.Instance. What it could not remove stays in the driver's List, for Reclaim.
func (m *Machine) Destroy(ctx context.Context) error {
	err := m.Group.Kill(ctx)
	if err == nil {
		m.Finish()
	}
	if err = errors.Join(err, m.Group.Remove()); err != nil {
		return fmt.Errorf("destroy %s: %w", m.id, err)
	}
	return nil
}
