package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agentwire"
	"dayfly.dev/dayfly/internal/control"
)

// Box is one sandbox's life on this node: its instance, the session with its agent, and who is attached to its processes.
type Box struct {
	id   string
	m    *Manager
	inst dayfly.Instance

	mu         sync.Mutex
	st         state
	agent      *agentwire.Client // nil until connected, and again after it was lost
	dialing    *dialing          // nil unless a session is being made
	processes  map[string]*attachment
	oom        oomMemory
	pausing    pausing
	destroying bool // its end was asked for: watch tells nobody
	released   bool // no session is made any more
}

// dialing is a session that is being made. All who need it wait for the same one.
type dialing struct {
	done   chan struct{} // closed when it is settled
	client *agentwire.Client
	err    error
}

// greetTimeout is how long an agent may take to answer a hello.
const greetTimeout = 10 * time.Second

func newBox(m *Manager, st state, inst dayfly.Instance) *Box {
	return &Box{
		id: st.Sandbox.ID, m: m, inst: inst, st: st, processes: map[string]*attachment{},
		pausing: pausing{turn: make(chan struct{}, 1)},
	}
}

func (b *Box) state() state {
	b.mu.Lock()
	defer b.mu.Unlock()
	st := b.st
	st.Sandbox = st.Sandbox.Clone()
	return st
}

func (b *Box) renewed(lease dayfly.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.st.Sandbox.Lease = lease
}

func (b *Box) destroyed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.destroying = true
}

// greet makes the first session, before anybody else knows the box. Its errors are those of a start.
func (b *Box) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, greetTimeout)
	defer cancel()
	client, err := b.dial(ctx, b.m.Now().Boot-b.state().Sandbox.Lease.Born) // the agent's clock is late by what the start took
	if err != nil {
		return errors.New(err.Error()) // not the code: a start that fails is no sandbox that ended
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.agent = client
	return nil
}

// dial says hello to the agent; age is how old the lease is now if the agent shall know, or 0.
func (b *Box) dial(ctx context.Context, age time.Duration) (*agentwire.Client, error) {
	conn, err := b.inst.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDial, err)
	}
	kills := b.oomKills(ctx)
	client, err := agentwire.NewClientSince(ctx, conn, age)
	if err == nil {
		b.outlived(kills) // the agent has said hello
		client.Widen(b.inst.Dial)
	}
	return client, err
}

// session gives the session with the agent, made anew when the last one was lost. Only its making waits for the agent, on a
// context of its own and without the lock: an agent that hangs holds up nobody who does not need it. CodeGone: the machine
// has ended; CodeNotRunning: it is paused, and nothing is said to it.
func (b *Box) session(ctx context.Context) (*agentwire.Client, error) {
	b.mu.Lock()
	if b.pausing.resumed != nil {
		b.mu.Unlock()
		return nil, b.refusal()
	}
	if agent := b.agent; agent != nil {
		select {
		case <-agent.Done(): // lost; its own goroutines end by themselves
			b.agent = nil
		default:
			b.mu.Unlock()
			return agent, nil
		}
	}
	d := b.dialing
	if d == nil {
		if b.released {
			b.mu.Unlock()
			return nil, b.ended(errReleased)
		}
		d = &dialing{done: make(chan struct{})}
		b.dialing = d
		b.m.background(func() { b.redial(d) })
	}
	b.mu.Unlock()
	select {
	case <-d.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to the agent of %s: %w", b.id, ctx.Err())
	case <-b.m.life.Done():
		return nil, b.ended(errReleased)
	}
	if d.err != nil && b.paused() { // it could not answer the hello
		return nil, b.refusal()
	}
	return d.client, b.explain(d.err)
}

// refusal is why a paused machine is not asked.
func (b *Box) refusal() error {
	if !b.lives() {
		return gone(b.id)
	}
	return errPaused(b.id)
}

var errReleased = errors.New("the sandbox was let go of")

func (b *Box) redial(d *dialing) {
	ctx, cancel := context.WithTimeout(b.m.life, greetTimeout)
	defer cancel()
	client, err := b.dial(ctx, 0)
	if err != nil && !errors.Is(err, errDial) {
		err = fmt.Errorf("%w: %w", agentwire.ErrLost, err)
	}
	b.mu.Lock()
	b.dialing = nil
	late := b.released && client != nil
	if late {
		d.err = fmt.Errorf("%w: %w", agentwire.ErrLost, errReleased)
	} else {
		d.client, d.err, b.agent = client, err, client
	}
	b.mu.Unlock()
	if late {
		_ = client.Close()
	}
	close(d.done)
}

// explain turns an error of a call into the machine into what the caller should know: that the machine has ended, if so.
// CodeGone from the agent itself is about a dropped process record, not about the machine.
func (b *Box) explain(err error) error {
	if errors.Is(err, agentwire.ErrLost) || errors.Is(err, errDial) {
		return b.ended(err)
	}
	return err
}

// ended waits a moment for the end of a machine whose session broke: sessions mostly break because it died.
func (b *Box) ended(cause error) error {
	late := time.NewTimer(endedWait)
	defer late.Stop()
	select {
	case <-b.inst.Done():
		return gone(b.id).WithCause(cause)
	case <-b.m.life.Done():
	case <-late.C:
	}
	return dayfly.Errorf(dayfly.CodeUnavailable, "the connection to the sandbox's agent broke; the outcome is not known").
		WithHint("the process may still run: look it up by its id").WithRetryAfter(endedWait).WithCause(cause)
}

// endedWait is how long a broken session waits for the news that its machine has ended.
const endedWait = time.Second

// errDial marks a failed dial of a machine that should be alive.
var errDial = errors.New("dial the agent")

// watch waits for the machine's end and, unless it was asked for, tells the control plane. It ends with ctx too.
func (b *Box) watch(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-b.inst.Done():
	}
	b.mu.Lock()
	asked := b.destroying
	b.mu.Unlock()
	if asked {
		return
	}
	b.mu.Lock()
	lease := b.st.Sandbox.Lease
	b.mu.Unlock()
	e := b.m.endingUnder(b.id, lease)
	if e.Reason == dayfly.EndCrashed && b.outOfMemory() {
		e.Reason = dayfly.EndOOM
	}
	select {
	case b.m.endings <- e:
	case <-ctx.Done():
	}
}

// outOfMemory tells whether the machine ended for lack of memory, under a driver where that can end all of it.
func (b *Box) outOfMemory() bool {
	if b.m.oomEnds(b.st.Driver) != dayfly.OOMEndsSandbox {
		return false
	}
	machine, ok := b.inst.(interface{ OutOfMemory() bool })
	if !ok || !machine.OutOfMemory() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), oomLookTime)
	defer cancel()
	kills := b.oomKills(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	return kills < 0 || kills > b.oom.outlived
}

// release lets go of the session; the machine goes on.
func (b *Box) release() {
	b.mu.Lock()
	b.released = true
	for _, a := range b.processes {
		a.stop()
	}
	agent := b.agent
	b.agent = nil
	b.mu.Unlock()
	if agent != nil {
		_ = agent.Close()
	}
}

// endingUnder is ending for a machine that was watched and whose lease is known: one that emptied when the agent's own clock may
// have ended it, or that nobody saw end and whose deadline has passed, was ended by its lease.
func (m *Manager) endingUnder(id string, lease dayfly.Lease) control.Ending {
	now := m.Now()
	e, known := m.ending(id)
	if e.Reason != dayfly.EndCrashed || !lease.Due(now) || lease.BootID != now.BootID {
		return e
	}
	if known && e.Boot < lease.AgentEnds() {
		return e
	}
	if !known {
		e.At, e.Boot = now.WallAt(lease.Deadline), lease.Deadline
	}
	e.Reason = dayfly.EndLeaseExpired
	return e
}

// ending reads how a machine ended from what the enforcers wrote down. known is false when nobody saw it; then it ended by itself
// at the latest when it was found dead, or now.
func (m *Manager) ending(id string) (e control.Ending, known bool) {
	now := m.Now()
	e = control.Ending{ID: id, At: now.Wall, Boot: now.Boot, Reason: dayfly.EndCrashed}
	end, ok, err := m.opt.Leases.Ended(id)
	if err != nil {
		m.opt.Log.Warn("read end record", "sandbox", id, "error", err)
	}
	if !ok {
		return e, false
	}
	if end.Found {
		if end.BootID == now.BootID {
			e.At, e.Boot = now.WallAt(end.Boot), end.Boot
		}
		return e, false
	}
	if end.Expired {
		e.Reason = dayfly.EndLeaseExpired
	}
	if end.BootID == now.BootID {
		e.At, e.Boot = now.WallAt(end.Boot), end.Boot
	}
	return e, true
}
