package warden

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/clock"
	"dayfly.dev/dayfly/internal/reserve"
)

const (
	endedWait  = 2 * time.Second  // for an enforcer that is killing to write down the end
	startWait  = 10 * time.Second // for a warden to get ready
	ensureMax  = 3                // attempts to have a warden
	watchEvery = time.Second      // between looks at the heartbeat: a stopped process is no event
	aliveRetry = time.Second
)

// GuardOptions is what a Guard needs. All fields are required unless they say otherwise.
type GuardOptions struct {
	DataDir      string
	Installation string
	Host         cgroup.Host
	Exe          string   // binary to start the warden from
	Env          []string // of the warden, or nil; nothing of the caller's is inherited
	Build        string   // version of Exe: a warden of another one is replaced
	Clock        clock.Clock
	Log          *slog.Logger
}

// Guard is the node's hold on the lease guarantee of its host: it writes leases, is the second enforcer, and keeps a warden
// running.
type Guard struct {
	opt      GuardOptions
	dir      *Dir
	enforcer *Enforcer

	unwatched time.Duration // boot time of the last heartbeat before this guard, or 0
	watcher   int           // pid of the warden whose heartbeat that was

	mu sync.Mutex // held while a warden is being started
}

// NewGuard makes the lease directory. It starts nothing.
func NewGuard(o GuardOptions) (*Guard, error) {
	path, err := filepath.Abs(o.DataDir)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	o.DataDir = path
	dir, err := OpenDir(path)
	if err != nil {
		return nil, err
	}
	g := &Guard{opt: o, dir: dir, enforcer: NewEnforcer(dir, EnforcerServer, o.Clock)}
	if b, err := ReadHeartbeat(path); err == nil && b.BootID == o.Clock.Now().BootID {
		g.unwatched, g.watcher = b.Boot, b.PID
	}
	return g, nil
}

// Unwatched is when, in this boot, a warden of before this guard was last known alive; ok is false when none was, or when the
// one of then has watched ever since.
func (g *Guard) Unwatched() (since time.Time, ok bool) {
	if b, err := ReadHeartbeat(g.opt.DataDir); err == nil && g.watcher > 0 && b.PID == g.watcher && g.Alive() == nil {
		return time.Time{}, false
	}
	return g.opt.Clock.Now().WallAt(g.unwatched), g.unwatched > 0
}

// full adds what a lease file says beside the times.
func (g *Guard) full(id string, lease dayfly.Lease) (Lease, error) {
	group, err := g.opt.Host.Group(g.opt.Installation, id)
	if err != nil {
		return Lease{}, err
	}
	return Lease{ID: id, Installation: g.opt.Installation, Lease: lease, Cgroup: group.Paths()}, nil
}

// Write stores the lease of a machine that is about to be made.
func (g *Guard) Write(id string, lease dayfly.Lease) error {
	l, err := g.full(id, lease)
	if err != nil {
		return err
	}
	return g.dir.WriteLease(l)
}

// Renew stores a later lease and settles who won; see Dir.Renew.
func (g *Guard) Renew(ctx context.Context, id string, lease dayfly.Lease) error {
	l, err := g.full(id, lease)
	if err != nil {
		return err
	}
	return g.dir.Renew(ctx, l)
}

// End kills the machine if its lease is due and waits until no process lives; else it gives the lease as stored.
// CodeNotFound: it has none.
func (g *Guard) End(ctx context.Context, id string) (lease dayfly.Lease, ended bool, err error) {
	outcome, err := g.enforcer.End(ctx, id, g.opt.Clock.Now(), nil)
	if outcome == OutcomeFailed {
		return dayfly.Lease{}, false, err
	}
	if err != nil {
		g.opt.Log.Error("record end", "sandbox", id, "error", err)
	}
	lease, err = g.Read(id)
	if outcome == OutcomeEnded {
		return lease, true, nil
	}
	return lease, false, err
}

// Read reads a lease. CodeNotFound: there is no file; any other error means unreadable, not absent.
func (g *Guard) Read(id string) (dayfly.Lease, error) {
	l, err := g.dir.ReadLease(id)
	return l.Lease, err
}

// Ended reads how the machine ended, as the first who saw it wrote it down; ok is false when nobody did. While an enforcer
// is at it, it waits for the record, for at most 2 s.
func (g *Guard) Ended(id string) (End, bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), endedWait)
	defer cancel()
	if e, ok, err := g.dir.ReadEnd(id); ok || err != nil {
		return e, ok, err
	}
	if _, err := g.dir.waitMarks(ctx, id); err != nil {
		return End{}, false, err
	}
	return g.dir.ReadEnd(id)
}

// Remove removes all files of id. Its machine must be dead.
func (g *Guard) Remove(id string) error { return g.dir.RemoveLease(id) }

// List gives the ids of all lease files. An error means "could not look".
func (g *Guard) List() ([]string, error) { return g.dir.List() }

// Alive tells whether a warden watches: it holds its lock and its heartbeat is fresh. CodeUnavailable: none does.
func (g *Guard) Alive() error { return Alive(g.opt.DataDir, g.opt.Clock.Now()) }

// LastSeen is when a warden was last known alive in an earlier boot than this one, by the wall clock of then; ok is false when
// there was none.
func (g *Guard) LastSeen() (at time.Time, ok bool) {
	now := g.opt.Clock.Now()
	for _, path := range []string{heartbeatPath(g.opt.DataDir), lastBootPath(g.opt.DataDir)} { // the latter once a warden of this boot runs
		if b, err := readHeartbeat(path); err == nil && b.BootID != now.BootID {
			return b.Wall, true
		}
	}
	return time.Time{}, false
}

// Alive tells whether the warden of a data directory holds its lock and shows a heartbeat of this boot no older than
// HeartbeatFresh at now. CodeUnavailable: not.
func Alive(dataDir string, now dayfly.Instant) error {
	held, err := reserve.Held(lockPath(dataDir))
	if err == nil && !held {
		err = errNoHolder
	}
	var b Heartbeat
	if err == nil {
		b, err = ReadHeartbeat(dataDir)
	}
	if err == nil && (b.BootID != now.BootID || now.Boot-b.Boot > HeartbeatFresh) {
		err = errors.New("its heartbeat is old")
	}
	if err == nil && b.Place != "" && b.Place != place(dataDir) {
		err = errors.New("it looks at the place where the data directory was before")
	}
	if err == nil {
		return nil
	}
	return dayfly.Errorf(dayfly.CodeUnavailable, "no warden watches the leases of this host at the moment").
		WithHint("the server is starting one; try again").WithRetryAfter(aliveRetry).WithCause(err)
}
