package node

import (
	"context"
	"errors"
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
	processes  map[string]*attachment
	destroying bool
}

// greetTimeout is how long an agent may take to answer the first hello.
const greetTimeout = 10 * time.Second

func newBox(m *Manager, st state, inst dayfly.Instance) *Box {
	return &Box{id: st.Sandbox.ID, m: m, inst: inst, st: st, processes: map[string]*attachment{}}
}

// connect makes sure there is a session with the agent. CodeGone: the machine has ended.
func (b *Box) connect(ctx context.Context) error {
	_, err := b.session(ctx)
	return err
}

// session gives the session with the agent, made anew when the last one was lost.
func (b *Box) session(ctx context.Context) (*agentwire.Client, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.agent != nil {
		select {
		case <-b.agent.Done():
			_ = b.agent.Close()
			b.agent = nil
		default:
			return b.agent, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, greetTimeout)
	defer cancel()
	conn, err := b.inst.Dial(ctx)
	if err != nil {
		return nil, b.explain(err)
	}
	client, err := agentwire.NewClient(ctx, conn)
	if err != nil {
		return nil, b.explain(err)
	}
	b.agent = client
	return client, nil
}

// explain turns an error of a call into the machine into what the caller should know: that the machine has ended, if so.
func (b *Box) explain(err error) error {
	if err == nil {
		return nil
	}
	if dayfly.ErrorCode(err) == dayfly.CodeGone && dayfly.AsError(err).Details["sandbox"] == nil && !errors.Is(err, agentwire.ErrLost) {
		return err // a dropped process record, not the machine
	}
	if errors.Is(err, agentwire.ErrLost) || dayfly.ErrorCode(err) == dayfly.CodeGone || errors.Is(err, errDial) {
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
	case <-late.C:
		return dayfly.Errorf(dayfly.CodeUnavailable, "the connection to the sandbox's agent broke; the outcome is not known").
			WithHint("the process may still run: look it up by its id").WithCause(cause)
	}
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
	select {
	case b.m.endings <- b.m.ending(b.id):
	case <-ctx.Done():
	}
}

// release lets go of the session; the machine goes on.
func (b *Box) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.processes {
		a.stop()
	}
	if b.agent != nil {
		_ = b.agent.Close()
		b.agent = nil
	}
}

// ending reads how a machine ended from what the enforcers wrote down, else it ended now by itself.
func (m *Manager) ending(id string) control.Ending {
	now := m.Now()
	end, ok, err := m.opt.Leases.Ended(id)
	if err != nil {
		m.opt.Log.Warn("read end record", "sandbox", id, "error", err)
	}
	e := control.Ending{ID: id, At: now.Wall, Reason: dayfly.EndCrashed}
	if !ok {
		return e
	}
	if end.Expired {
		e.Reason = dayfly.EndLeaseExpired
	}
	if end.BootID == now.BootID {
		e.At = now.WallAt(end.Boot)
	}
	return e
}
