package control_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

const bootTest = "11111111-2222-3333-4444-555555555555"

// mapNode is a node whose machines are entries of a map, on the clock of the test's bubble. Its hooks let a test watch, slow
// down and break its steps.
type mapNode struct {
	born    time.Time
	endings chan control.Ending
	stepped atomic.Int64 // what the wall clock was set forward by, in nanoseconds
	reboots atomic.Int64 // of the host

	mu       sync.Mutex
	machines map[string]*mapMachine
	created  int // machines that came to life, ever
	destroys map[string]int
	swept    int
	found    control.Recovery
	known    []dayfly.Sandbox

	admit   func() error                                       // all nil at first
	create  func(ctx context.Context, sb dayfly.Sandbox) error // before a machine lives
	destroy func(ctx context.Context, id string) error         // before it dies
	renew   func(ctx context.Context, id string) error
	expire  func(ctx context.Context, id string) error
	recover func() error
	pause   func(ctx context.Context, id string) error // before it is frozen or thawed
	sweep   func(known []dayfly.Sandbox, force bool) (control.Swept, error)
}

func newMapNode() *mapNode {
	return &mapNode{born: time.Now(), endings: make(chan control.Ending, 10), machines: map[string]*mapMachine{}, destroys: map[string]int{}}
}

// change sets hooks while the node is in use.
func (n *mapNode) change(set func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	set()
}

// pick reads a hook.
func pick[F any](n *mapNode, hook *F) F {
	n.mu.Lock()
	defer n.mu.Unlock()
	return *hook
}

func (n *mapNode) ID() string { return "no00000000000000000000" }

func (n *mapNode) Now() dayfly.Instant {
	now := dayfly.Instant{Wall: time.Now().Add(time.Duration(n.stepped.Load())), Boot: time.Hour + time.Since(n.born), BootID: bootTest}
	if boots := n.reboots.Load(); boots > 0 {
		now.BootID += strconv.FormatInt(boots, 10)
	}
	return now
}

func (n *mapNode) Isolation(asked dayfly.Isolation) (dayfly.Isolation, error) {
	if asked != dayfly.IsolationAuto && asked != dayfly.IsolationFake {
		return "", dayfly.Errorf(dayfly.CodeInvalid, "there is no isolation %q", asked)
	}
	return dayfly.IsolationFake, nil
}

func (n *mapNode) Admit(context.Context, dayfly.Limits, dayfly.Isolation) error {
	if hook := pick(n, &n.admit); hook != nil {
		return hook()
	}
	return nil
}

func (n *mapNode) Create(ctx context.Context, sb dayfly.Sandbox, _ dayfly.Image) error {
	if hook := pick(n, &n.create); hook != nil {
		if err := hook(ctx, sb); err != nil {
			return err
		}
	} else if err := ctx.Err(); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.created++
	n.machines[sb.ID] = &mapMachine{lease: sb.Lease, env: sb.Spec.Env, procs: map[string]dayfly.Process{}}
	return nil
}

func (n *mapNode) Renew(ctx context.Context, id string, lease dayfly.Lease) error {
	if hook := pick(n, &n.renew); hook != nil {
		if err := hook(ctx, id); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.machines[id]
	if m == nil {
		return dayfly.Errorf(dayfly.CodeGone, "ended").WithDetail("sandbox", id)
	}
	m.lease = lease
	return nil
}

func (n *mapNode) Expire(ctx context.Context, id string) (dayfly.Lease, bool, error) {
	if hook := pick(n, &n.expire); hook != nil {
		if err := hook(ctx, id); err != nil {
			return dayfly.Lease{}, false, err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.machines[id]
	if m == nil {
		return dayfly.Lease{}, true, nil
	}
	if !m.lease.Due(n.Now()) {
		return m.lease, false, nil
	}
	return m.lease, true, nil
}

func (n *mapNode) Pause(ctx context.Context, id string) error { return n.freeze(ctx, id, true) }

func (n *mapNode) Resume(ctx context.Context, id string) error { return n.freeze(ctx, id, false) }

func (n *mapNode) freeze(ctx context.Context, id string, frozen bool) error {
	if hook := pick(n, &n.pause); hook != nil {
		if err := hook(ctx, id); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.machines[id]
	if m == nil {
		return dayfly.Errorf(dayfly.CodeGone, "ended").WithDetail("sandbox", id)
	}
	m.frozen = frozen
	return nil
}

func (n *mapNode) Paused(_ context.Context, id string) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.machines[id]
	if m == nil {
		return false, dayfly.Errorf(dayfly.CodeGone, "ended").WithDetail("sandbox", id)
	}
	return m.frozen, nil
}

func (n *mapNode) Destroy(ctx context.Context, id string) (control.Ending, error) {
	n.mu.Lock()
	n.destroys[id]++
	n.mu.Unlock()
	var err error
	if hook := pick(n, &n.destroy); hook != nil {
		if err = hook(ctx, id); err != nil && !errors.Is(err, control.ErrLeftover) {
			return control.Ending{}, err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.machines[id] == nil { // dead before
		return control.Ending{ID: id, Reason: dayfly.EndCrashed}, err
	}
	delete(n.machines, id)
	return control.Ending{ID: id, At: n.Now().Wall, Boot: n.Now().Boot, Reason: dayfly.EndCrashed}, err
}

func (n *mapNode) Machine(_ context.Context, id string) (control.Machine, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m := n.machines[id]; m != nil {
		return m, nil
	}
	return nil, dayfly.Errorf(dayfly.CodeGone, "ended").WithDetail("sandbox", id)
}

func (n *mapNode) Endings() <-chan control.Ending { return n.endings }

func (n *mapNode) Recover(_ context.Context, known []dayfly.Sandbox, note func(control.Ending) error) (control.Recovery, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known = known
	if n.recover != nil {
		if err := n.recover(); err != nil {
			return control.Recovery{}, err
		}
	}
	for _, e := range append(slices.Clone(n.found.Ended), n.found.Ending...) {
		if err := note(e); err != nil {
			return control.Recovery{}, err
		}
	}
	return n.found, nil
}

func (n *mapNode) Problems(context.Context) []control.Problem {
	return []control.Problem{{Component: "warden", Message: "it rests"}}
}

func (n *mapNode) Sweep(_ context.Context, known []dayfly.Sandbox, force bool, _ func(control.Ending) error) (control.Swept, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.swept++
	if n.sweep != nil {
		return n.sweep(known, force)
	}
	return control.Swept{}, nil
}

func (n *mapNode) has(id string) bool { return n.machine(id) != nil }

func (n *mapNode) machine(id string) *mapMachine {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.machines[id]
}

func (n *mapNode) lives() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.created
}

func (n *mapNode) destroyed(id string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.destroys[id]
}

// dies has a machine end by itself.
func (n *mapNode) dies(id string, why dayfly.EndReason, at time.Time) {
	n.mu.Lock()
	delete(n.machines, id)
	n.mu.Unlock()
	n.endings <- control.Ending{ID: id, At: at, Reason: why}
}

// mapMachine runs nothing: a command ends when a test says so.
type mapMachine struct {
	control.Machine // what is not here is not called
	env             map[string]string
	run             func(ctx context.Context, spec dayfly.ProcessSpec) error // before a command starts, or nil
	during          func(ctx context.Context, id string) error               // while it runs, or nil
	lease           dayfly.Lease
	frozen          bool // guarded by mapNode.mu

	mu    sync.Mutex
	procs map[string]dayfly.Process
	begun []string // ids of commands, as they began
	read  int      // results that were read
}

func (m *mapMachine) begin(ctx context.Context, spec dayfly.ProcessSpec) error {
	if m.run != nil {
		if err := m.run(ctx, spec); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Contains(m.begun, spec.ID) {
		return dayfly.Errorf(dayfly.CodeConflict, "started before")
	}
	m.begun = append(m.begun, spec.ID)
	m.procs[spec.ID] = dayfly.Process{ID: spec.ID, Status: dayfly.ProcessRunning}
	return nil
}

func (m *mapMachine) starts() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.begun)
}

func (m *mapMachine) forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.procs, id)
}

func (m *mapMachine) Run(ctx context.Context, spec dayfly.ProcessSpec, _ io.Reader) (dayfly.Result, error) {
	if err := m.begin(ctx, spec); err != nil {
		return dayfly.Result{}, err
	}
	if m.during != nil {
		if err := m.during(ctx, spec.ID); err != nil {
			return dayfly.Result{}, err
		}
	}
	return dayfly.Result{ID: spec.ID}, nil
}

func (m *mapMachine) Start(ctx context.Context, spec dayfly.ProcessSpec, _ io.Reader) (dayfly.OutputStream, dayfly.Process, error) {
	if err := m.begin(ctx, spec); err != nil {
		return nil, dayfly.Process{}, err
	}
	return ended{}, dayfly.Process{ID: spec.ID}, nil
}

func (m *mapMachine) Process(_ context.Context, id string) (dayfly.Process, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.procs[id]
	switch {
	case ok:
		return p, nil
	case slices.Contains(m.begun, id):
		return p, dayfly.Errorf(dayfly.CodeGone, "no longer kept")
	}
	return p, dayfly.Errorf(dayfly.CodeNotFound, "there is no such process")
}

func (m *mapMachine) Result(ctx context.Context, id string) (dayfly.Result, error) {
	_, err := m.Process(ctx, id)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.read++
	return dayfly.Result{ID: id}, err
}

func (m *mapMachine) Output(ctx context.Context, id string, _ dayfly.Offsets, _ bool) (dayfly.OutputStream, error) {
	_, err := m.Process(ctx, id)
	return ended{}, err
}

// ended is an output stream at its end.
type ended struct{}

func (ended) Next() (dayfly.Output, error) { return dayfly.Output{}, io.EOF }
func (ended) Close() error                 { return nil }

// passes is how often it was swept.
func (n *mapNode) passes() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.swept
}
