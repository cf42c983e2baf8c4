package warden

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/clock"
	"dayfly.dev/dayfly/internal/failpoint"
)

// The names of the enforcers. Each process that ends machines at their deadline has its own.
const (
	EnforcerWarden = "warden"
	EnforcerServer = "server"
)

// killing is a mark's content once the enforcer has decided: whoever finds it must finish, whatever the lease says.
const killing = "killing"

// Outcome is what became of an attempt to end a machine at its deadline.
type Outcome string

// The outcomes.
const (
	OutcomeEnded   Outcome = "ended"   // no process of it lives
	OutcomeNotDue  Outcome = "not_due" // its lease was renewed in time
	OutcomeMissing Outcome = "missing" // it has no lease, and none was known
	OutcomeFailed  Outcome = "failed"  // it may live, the mark stays, try again
)

// Enforcer ends machines at their deadline. At most one process may use a name on a directory at a time; within it, calls
// for one id wait for each other.
type Enforcer struct {
	dir   *Dir
	name  string
	clock clock.Clock

	mu   sync.Mutex
	busy map[string]chan struct{} // closed when the call that works on the id returns
}

// NewEnforcer makes the enforcer of this name.
func NewEnforcer(dir *Dir, name string, c clock.Clock) *Enforcer {
	return &Enforcer{dir: dir, name: name, clock: c, busy: map[string]chan struct{}{}}
}

// End ends the machine of id if its lease is due at now: it marks the id as its own, reads the lease again, and only then
// kills and records the end, or else takes the mark back. known is what the caller last knew of the lease: it counts when
// the file is missing or unreadable, or is nil. It blocks until the machine is dead, at most until ctx ends.
//
// It also finishes what an earlier call, or an earlier process of the same name, left behind. An error beside OutcomeEnded
// means that the machine is dead but its end could not be written down.
func (e *Enforcer) End(ctx context.Context, id string, now dayfly.Instant, known *Lease) (Outcome, error) {
	release, err := e.acquire(ctx, id)
	if err != nil {
		return OutcomeFailed, err
	}
	defer release()
	begun := e.takeMark(id)
	failpoint.Hit("warden.end.marked")
	lease, readErr := e.dir.ReadLease(id)
	switch {
	case readErr == nil:
	case known != nil:
		lease = *known
	case dayfly.ErrorCode(readErr) == dayfly.CodeNotFound && !begun:
		e.dropMark(id)
		return OutcomeMissing, nil
	case !begun:
		e.dropMark(id)
		return OutcomeFailed, readErr
	default:
		lease = Lease{ID: id}
	}
	if !begun && !lease.Lease.Due(now) {
		e.dropMark(id)
		return OutcomeNotDue, nil
	}
	failpoint.Hit("warden.end.due")
	killed, err := e.kill(ctx, id, lease)
	if err != nil {
		return OutcomeFailed, fmt.Errorf("end %s: %w", id, err)
	}
	failpoint.Hit("warden.end.killed")
	err = e.record(id, lease, killed)
	failpoint.Hit("warden.end.recorded")
	e.dropMark(id)
	return OutcomeEnded, err
}

// kill writes the decision down and kills; killed tells whether anything lived.
func (e *Enforcer) kill(ctx context.Context, id string, lease Lease) (killed bool, err error) {
	groups, err := lease.groups()
	if err != nil {
		return false, err
	}
	_ = os.WriteFile(e.dir.mark(id, e.name), []byte(killing), fileMode) // best effort, as in takeMark
	failpoint.Hit("warden.end.decided")
	for _, g := range groups {
		populated, err := g.Populated()
		killed = killed || populated || err != nil
		if err := g.Kill(ctx); err != nil {
			return killed, err
		}
	}
	return killed, nil
}

// record writes the end down. When a machine of an earlier boot died, nobody here knows. One that was found dead, and not by
// the hand of another enforcer that is just about to write it down, died while nobody watched: it is dated to its deadline,
// not to the moment when somebody came to look.
func (e *Enforcer) record(id string, lease Lease, killed bool) error {
	now := e.clock.Now()
	if !killed && lease.Lease.BootID != now.BootID {
		return nil
	}
	at := now.Boot
	if !killed && lease.Lease.Deadline > 0 && !e.dir.decided(id, e.name) {
		at = min(at, lease.Lease.Deadline)
	}
	_, err := e.dir.RecordEnd(id, End{BootID: now.BootID, Boot: at, Cause: CauseLeaseExpired, Killed: killed})
	return err
}

// groups are the control groups to kill: the one that the lease names or, without a readable lease, all of that id.
func (l Lease) groups() ([]*cgroup.Group, error) {
	if l.Cgroup.V2 != "" {
		g, err := l.group()
		return []*cgroup.Group{g}, err
	}
	h, err := cgroup.Detect("/")
	if err != nil {
		return nil, err
	}
	return h.Find(l.ID)
}

// acquire makes calls for one id wait for each other.
func (e *Enforcer) acquire(ctx context.Context, id string) (release func(), err error) {
	for {
		e.mu.Lock()
		other := e.busy[id]
		if other == nil {
			mine := make(chan struct{})
			e.busy[id] = mine
			e.mu.Unlock()
			return func() {
				e.mu.Lock()
				delete(e.busy, id)
				e.mu.Unlock()
				close(mine)
			}, nil
		}
		e.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// takeMark makes this enforcer's mark; begun tells that one was there and that its maker had decided to kill. A mark that
// cannot be made (a full disk) must not keep a machine alive: the lease is the guarantee, so that is no error.
func (e *Enforcer) takeMark(id string) (begun bool) {
	f, err := os.OpenFile(e.dir.mark(id, e.name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err == nil {
		_ = f.Close()
		return false
	}
	if !errors.Is(err, fs.ErrExist) {
		return false
	}
	b, err := readRegular(e.dir.mark(id, e.name), endMaxBytes)
	return err != nil || string(b) == killing // one that cannot be read is finished
}

func (e *Enforcer) dropMark(id string) { _ = os.Remove(e.dir.mark(id, e.name)) }

// Marked gives the ids that a mark of this enforcer is on: what a dead process of the same name left to be finished.
func (e *Enforcer) Marked() ([]string, error) {
	names, err := e.dir.names()
	if err != nil {
		return nil, fmt.Errorf("look for own marks: %w", err)
	}
	var ids []string
	for _, n := range names {
		if id, ok := cutSuffixID(n, markInfix+e.name); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
