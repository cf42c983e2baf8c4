package warden

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

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

// killing begins a mark's content once the enforcer has found the machine alive after its deadline: whoever finds it must finish,
// whatever the lease says. The boot time of that moment follows.
const killing = "killing"

// killUsual is how long a kill takes at most on a host that is not hung up. An enforcer that took longer may have been stopped
// in between, so it dates the end to the last moment that it knows the machine alive, not to the one when it woke.
const killUsual = 250 * time.Millisecond

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
	begun, alive := e.takeMark(id)
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
	s := sight{begun: begun, alive: alive}
	if err := e.kill(ctx, id, lease, &s); err != nil {
		return OutcomeFailed, fmt.Errorf("end %s: %w", id, err)
	}
	failpoint.Hit("warden.end.killed")
	err = e.record(id, lease, s)
	failpoint.Hit("warden.end.recorded")
	e.dropMark(id)
	return OutcomeEnded, err
}

// sight is what an enforcer knows of a machine whose lease is over.
type sight struct {
	begun  bool          // somebody, perhaps dead by now, saw it alive and began to kill it
	alive  time.Duration // boot time of the last moment at which it was seen alive, or 0
	killed bool          // this call saw it alive and killed it
}

// kill kills, and before that writes down that it will, if anything lives. What does not live needs no decision, and a mark that
// tells of one would make a crash pass for a lease that ended.
func (e *Enforcer) kill(ctx context.Context, id string, lease Lease, s *sight) error {
	groups, err := lease.groups()
	if err != nil {
		return err
	}
	now := e.clock.Now().Boot
	for _, g := range groups {
		populated, err := g.Populated()
		s.killed = s.killed || populated || err != nil
	}
	if s.killed {
		s.alive = now
		content := killing + " " + strconv.FormatInt(int64(now), 10)
		_ = os.WriteFile(e.dir.mark(id, e.name), []byte(content), fileMode) // best effort, as in takeMark
	}
	failpoint.Hit("warden.end.decided")
	for _, g := range groups {
		if err := g.Kill(ctx); err != nil {
			return err
		}
	}
	return nil
}

// decision reads a mark's content: whether its maker had begun to kill, and when it saw the machine alive, or 0.
func decision(content string) (begun bool, alive time.Duration) {
	rest, begun := strings.CutPrefix(content, killing)
	if n, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64); begun && err == nil && n > 0 {
		alive = time.Duration(n)
	}
	return begun, alive
}

// record writes the end down. When a machine of an earlier boot died, nobody here knows. Of one that was found dead it is known
// only if an enforcer, this or another one, had begun to kill it.
func (e *Enforcer) record(id string, lease Lease, s sight) error {
	now := e.clock.Now()
	if !s.killed && lease.Lease.BootID != now.BootID {
		return nil
	}
	end := End{BootID: now.BootID, Boot: now.Boot, Cause: CauseLeaseExpired, Killed: s.killed}
	if begun, alive := e.dir.decided(id, e.name); begun && !s.begun && !s.killed {
		s.begun, s.alive = true, alive
	}
	switch {
	case s.killed:
		end.Boot = endAt(now.Boot, s.alive)
	case !s.begun:
		end.Cause = CauseFound
	case s.alive > 0:
		end.Boot = min(now.Boot, s.alive)
	case lease.Lease.Deadline > 0: // a mark of an earlier version: it was alive at its deadline
		end.Boot = min(now.Boot, lease.Lease.Deadline)
	}
	_, err := e.dir.RecordEnd(id, end)
	return err
}

// endAt dates an end that was seen at now, of a machine that was last seen alive at alive.
func endAt(now, alive time.Duration) time.Duration {
	if now-alive > killUsual {
		return alive
	}
	return now
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

// takeMark makes this enforcer's mark; begun tells that one was there and that its maker had decided to kill what it saw alive at
// alive, or 0. A mark that cannot be made (a full disk) must not keep a machine alive: the lease is the guarantee, so that is no
// error.
func (e *Enforcer) takeMark(id string) (begun bool, alive time.Duration) {
	f, err := os.OpenFile(e.dir.mark(id, e.name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err == nil {
		_ = f.Close()
		return false, 0
	}
	if !errors.Is(err, fs.ErrExist) {
		return false, 0
	}
	b, err := readRegular(e.dir.mark(id, e.name), endMaxBytes)
	if err != nil {
		return true, 0 // one that cannot be read is finished
	}
	return decision(string(b))
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
