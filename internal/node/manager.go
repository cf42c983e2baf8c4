package node

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/clock"
	"dayfly.dev/dayfly/internal/control"
	"dayfly.dev/dayfly/internal/reserve"
)

// endingsMax is how many endings wait for the control plane before boxes hold theirs back.
const endingsMax = 4096

// Bounds of the machines of one driver that start at once, and of those that wait for it, which are served in order. The first keeps a
// great burst from taking all threads and locks for itself; a driver that a narrower one helps says so. The second is what a host starts within a few
// seconds: it takes a hundred at once on any host, and whoever would wait for longer is told so at once.
const (
	startsPerCPU  = 16
	waitingPerCPU = 100
)

// Options is what a Manager needs. All fields are required unless they say otherwise.
type Options struct {
	NodeID       string
	Installation string
	DataDir      string          // holds state files
	RunDir       string          // directory on a tmpfs for sockets and grants, mode 0711
	Drivers      []dayfly.Driver // strongest isolation first
	// Auto is what isolation auto means; empty means the strongest that works, which is never linux: a shared kernel is only
	// given to who asked for it, or where the operator says so here.
	Auto     dayfly.Isolation
	Pool     dayfly.Pool
	Network  Network
	Leases   Leases
	Slots    *reserve.Slots
	UIDBase  uint32 // of slot 0
	ImageDir func(id string) string
	Clock    clock.Clock
	Log      *slog.Logger
	// DisconnectGrace is how long a process may go on after its last client left; 0 means dayfly.DisconnectGracePeriod.
	DisconnectGrace time.Duration
}

// Manager runs the machines of one host. It implements control.Node.
type Manager struct {
	opt     Options
	drivers map[dayfly.Isolation]dayfly.Driver
	auto    dayfly.Isolation                              // what isolation auto means here; empty when no driver works
	probes  map[dayfly.Isolation]func() dayfly.Capability // each tried once, when it is first asked for
	endings chan control.Ending
	waiting atomic.Int64 // creates that wait for their turn to start
	life    context.Context
	stop    context.CancelFunc
	work    sync.WaitGroup

	mu     sync.Mutex
	closed bool // no background work begins any more
	boxes  map[string]*Box
	busy   map[string]*turn                   // ids that a create or destroy works on: not swept
	starts map[dayfly.Isolation]chan struct{} // an element for each machine that is being started

	sweeps
}

// sweeps is what the passes of the reconciler remember, guarded by Manager.mu.
type sweeps struct {
	braked  string                   // why nothing is removed, or empty
	sweptTo string                   // the last id of a pass that left some for the next
	stuck   map[string]bool          // ids of which it was told that they cannot be cleared away
	going   map[string]time.Duration // boot time at which all of an id was removed
}

// turn makes those who work on one id wait for each other.
type turn struct {
	taken chan struct{} // capacity 1: holding the element is having the turn
	users int           // having or waiting; guarded by Manager.mu
}

// New makes a manager and probes the drivers that isolation auto may mean.
func New(opt Options) *Manager {
	life, stop := context.WithCancel(context.Background())
	m := &Manager{
		opt: opt, drivers: map[dayfly.Isolation]dayfly.Driver{}, probes: map[dayfly.Isolation]func() dayfly.Capability{},
		endings: make(chan control.Ending, endingsMax), starts: map[dayfly.Isolation]chan struct{}{}, life: life, stop: stop,
		boxes: map[string]*Box{}, busy: map[string]*turn{}, sweeps: sweeps{stuck: map[string]bool{}, going: map[string]time.Duration{}},
	}
	if m.opt.DisconnectGrace <= 0 {
		m.opt.DisconnectGrace = dayfly.DisconnectGracePeriod
	}
	for _, d := range opt.Drivers {
		m.drivers[d.Name()], m.probes[d.Name()] = d, sync.OnceValue(func() dayfly.Capability { return m.probe(d) })
	}
	m.auto = m.strongest()
	return m
}

// probe tries a driver. It is not bound to the request that happens to be the first to ask.
func (m *Manager) probe(d dayfly.Driver) dayfly.Capability {
	c := d.Probe(m.life)
	switch {
	case !c.Works:
		m.opt.Log.Warn("driver does not work here", "driver", d.Name(), "reasons", c.Reasons)
	case len(c.Reasons) > 0: // such as whose program it runs
		m.opt.Log.Info("driver works", "driver", d.Name(), "notes", c.Reasons)
	}
	return c
}

// strongest finds what isolation auto means. Where the operator has named it, no other driver is tried yet.
func (m *Manager) strongest() dayfly.Isolation {
	for _, d := range m.opt.Drivers {
		name := d.Name()
		named := m.opt.Auto == name || m.opt.Auto == "" && name != dayfly.IsolationLinux
		if named && m.probes[name]().Works {
			return name
		}
	}
	return ""
}

// works tells whether a driver is known and works here.
func (m *Manager) works(name dayfly.Isolation) bool {
	probe := m.probes[name]
	return probe != nil && probe().Works
}

// Close lets go of the machines, which go on, and waits for background work.
func (m *Manager) Close() {
	m.stop()
	m.mu.Lock()
	m.closed = true
	boxes := make([]*Box, 0, len(m.boxes))
	for _, b := range m.boxes {
		boxes = append(boxes, b)
	}
	m.mu.Unlock()
	for _, b := range boxes {
		b.release()
	}
	m.work.Wait()
}

// background runs f on a goroutine that Close waits for, unless the manager is closing.
func (m *Manager) background(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.work.Go(f)
	}
}

// ID implements control.Node.
func (m *Manager) ID() string { return m.opt.NodeID }

// Now implements control.Node.
func (m *Manager) Now() dayfly.Instant { return m.opt.Clock.Now() }

// Endings implements control.Node.
func (m *Manager) Endings() <-chan control.Ending { return m.endings }

// Isolation implements control.Node.
func (m *Manager) Isolation(asked dayfly.Isolation) (dayfly.Isolation, error) {
	if asked == dayfly.IsolationAuto {
		if m.auto == "" {
			return "", m.noAuto()
		}
		return m.auto, nil
	}
	probe, known := m.probes[asked]
	if !known {
		return "", dayfly.Errorf(dayfly.CodeInvalid, "there is no isolation %q", asked).
			WithHint("leave it out, or ask for auto")
	}
	if c := probe(); !c.Works {
		return "", dayfly.Errorf(dayfly.CodeInvalid, "isolation %q does not work on this host", asked).
			WithHint("`dayfly doctor` says what is missing").WithDetail("reasons", c.Reasons)
	}
	return asked, nil
}

// noAuto tells why isolation auto cannot be given.
func (m *Manager) noAuto() error {
	switch {
	case m.opt.Auto != "":
		return dayfly.Errorf(dayfly.CodeUnavailable, "isolation %s, which auto means on this server, does not work on this host", m.opt.Auto).
			WithHint("`dayfly doctor` says what is missing; the setting is isolation.auto")
	case m.works(dayfly.IsolationLinux):
		return dayfly.Errorf(dayfly.CodeUnavailable, "only isolation linux works on this host, which shares the host's kernel").
			WithHint("ask for isolation linux if you trust the code, or have the operator set isolation.auto to linux; `dayfly doctor` says what the others lack")
	}
	return dayfly.Errorf(dayfly.CodeUnavailable, "no isolation driver works on this host").
		WithHint("`dayfly doctor` says what is missing")
}

// usable tells whether any driver works.
func (m *Manager) usable() bool {
	if m.auto != "" {
		return true
	}
	for _, probe := range m.probes {
		if probe().Works {
			return true
		}
	}
	return false
}

// Problems implements control.Node.
func (m *Manager) Problems(ctx context.Context) []control.Problem {
	var found []control.Problem
	if !m.usable() {
		found = append(found, control.Problem{Component: "driver", Message: "no isolation driver works on this host"})
	}
	if why := m.stopped(); why != "" {
		found = append(found, control.Problem{Component: "reconciler",
			Message: why + ", and no sandbox is made; `dayfly audit` lists them, `dayfly audit --fix` removes them"})
	}
	if err := m.opt.Leases.Alive(); err != nil {
		found = append(found, control.Problem{Component: "warden", Message: dayfly.AsError(err).Message})
	}
	if _, _, err := m.opt.Pool.Usage(ctx); err != nil {
		m.opt.Log.Error("disk pool", "error", err)
		found = append(found, control.Problem{Component: "pool", Message: "the disk pool cannot be read"})
	}
	return found
}

// hold waits until nobody else works on id and marks it as worked on until letGo is called: no two creates, destroys or
// sweeps of one id meet. It waits for as long as ctx allows.
func (m *Manager) hold(ctx context.Context, id string) (letGo func(), err error) {
	m.mu.Lock()
	t := m.busy[id]
	if t == nil {
		t = &turn{taken: make(chan struct{}, 1)}
		m.busy[id] = t
	}
	t.users++
	m.mu.Unlock()
	leave := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(m.busy, id)
		}
	}
	select {
	case t.taken <- struct{}{}:
		return func() { <-t.taken; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("wait for other work on %s: %w", id, ctx.Err())
	}
}

// owned tells whether a live machine or work under way owns the objects of id.
func (m *Manager) owned(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boxes[id] != nil || m.busy[id] != nil
}

func (m *Manager) box(id string) *Box {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boxes[id]
}

func (m *Manager) setBox(b *Box) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.boxes[b.id] = b
}

func (m *Manager) dropBox(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.boxes, id)
}

func (m *Manager) runDir(id string) string { return filepath.Join(m.opt.RunDir, id) }

// gone is the error of a call into a machine that has ended. The detail lets the control plane add how.
func gone(id string) *dayfly.Error {
	return dayfly.Errorf(dayfly.CodeGone, "sandbox %s has ended", id).WithDetail("sandbox", id)
}
