package dayfly

import (
	"maps"
	"time"
)

// Status is what was last seen of a sandbox: provisioning → running ⇄ paused → deleting → deleted, and failed.
type Status string

// The statuses. Deleted and failed are terminal.
const (
	StatusProvisioning Status = "provisioning"
	StatusRunning      Status = "running"
	StatusPaused       Status = "paused"
	StatusDeleting     Status = "deleting"
	StatusDeleted      Status = "deleted"
	StatusFailed       Status = "failed"
)

// Ended tells whether a sandbox of this status is gone for good.
func (s Status) Ended() bool { return s == StatusDeleted || s == StatusFailed }

// Up tells whether a sandbox of this status has a machine that shall go on: running or paused.
func (s Status) Up() bool { return s == StatusRunning || s == StatusPaused }

// Valid tells whether s is one of the statuses.
func (s Status) Valid() bool { _, ok := moves[s]; return ok }

// moves lists, for each status, where a sandbox may go from there.
var moves = map[Status][]Status{
	StatusProvisioning: {StatusRunning, StatusDeleting, StatusDeleted, StatusFailed},
	StatusRunning:      {StatusPaused, StatusDeleting, StatusDeleted, StatusFailed},
	StatusPaused:       {StatusRunning, StatusDeleting, StatusDeleted, StatusFailed},
	StatusDeleting:     {StatusDeleted, StatusFailed},
	StatusDeleted:      nil,
	StatusFailed:       nil,
}

// CanMove tells whether a sandbox may go from one status to another. Staying is not a move.
func CanMove(from, to Status) bool {
	for _, s := range moves[from] {
		if s == to {
			return true
		}
	}
	return false
}

// EndReason tells why a sandbox ended.
type EndReason string

// The end reasons.
const (
	EndRequested     EndReason = "requested"
	EndLeaseExpired  EndReason = "lease_expired"
	EndStartupFailed EndReason = "startup_failed"
	EndOOM           EndReason = "oom"
	EndCrashed       EndReason = "crashed"
	EndHostLost      EndReason = "host_lost"
	EndReconciled    EndReason = "reconciled"
	EndShutdown      EndReason = "shutdown"
)

// Status gives the terminal status that a sandbox with this end reason has.
func (r EndReason) Status() Status {
	if r == EndStartupFailed || r == EndCrashed || r == EndOOM {
		return StatusFailed
	}
	return StatusDeleted
}

// Isolation names a driver, or leaves the choice to the node.
type Isolation string

// The isolations. IsolationFake exists in tests only: it isolates nothing.
const (
	IsolationAuto   Isolation = "auto"
	IsolationLinux  Isolation = "linux"
	IsolationGVisor Isolation = "gvisor"
	IsolationFake   Isolation = "fake"
)

// Limits are what a sandbox may use at most. They are enforced by the host; they are not reservations.
type Limits struct {
	VCPU        int   // whole virtual CPUs
	MemoryBytes int64 // resident memory of all its processes; there is no swap
	DiskBytes   int64 // what it may write to its root file system
	PIDs        int   // processes and threads at once; 0 means PIDsDefault
}

// PIDsDefault is the process limit of a sandbox unless the operator sets another.
const PIDsDefault = 2048

// Network says what a sandbox may reach.
type Network struct {
	Internet bool // false closes all but loopback
}

// SandboxSpec is what an account asked for, with every default filled in. It never changes after creation.
type SandboxSpec struct {
	Size      string // the named size that filled the limits, or "custom"
	Limits    Limits
	Image     string // name of the image, as it was then
	ImageID   string // which image that was
	Isolation Isolation
	Timeout   time.Duration // of the first lease
	Network   Network
	Env       map[string]string // write-only: values are shown in no answer and stored in no database
}

// Sandbox is the record of one machine.
type Sandbox struct {
	ID      string
	Account string
	Rev     int64 // grows with each stored change; writes compare it
	Name    string
	Labels  map[string]string
	Spec    SandboxSpec
	Node    string
	Driver  Isolation // what it got; empty until it runs

	Wanted   Status // StatusRunning or StatusDeleted: what the account wants
	Status   Status // what was last seen
	Lease    Lease
	Times    SandboxTimes
	End      EndReason // empty until it ended or is ending
	EnvNames []string  // sorted
}

// SandboxTimes are wall-clock stamps for people, and the same moments on the clock of the lease, for bills. Zero means not yet.
type SandboxTimes struct {
	CreatedAt time.Time
	ReadyAt   time.Time
	EndedAt   time.Time // while it is deleting: when that was asked for

	ReadyBoot time.Duration // CLOCK_BOOTTIME of the lease's boot
	EndedBoot time.Duration
}

// StampReady stamps the moment at which the sandbox first accepted commands.
func (s *Sandbox) StampReady(now Instant) {
	s.Times.ReadyAt, s.Times.ReadyBoot = now.Wall.UTC(), now.Boot
}

// StampEnded stamps the sandbox's end. at is by the clocks of the lease's boot; one of another boot tells the time by its wall
// clock only, and then no more is billed than the lease granted.
func (s *Sandbox) StampEnded(at Instant) {
	t := &s.Times
	t.EndedAt, t.EndedBoot = at.Wall.UTC(), at.Boot
	if at.BootID != s.Lease.BootID {
		t.EndedBoot = min(t.ReadyBoot+max(0, t.EndedAt.Sub(t.ReadyAt)), max(t.ReadyBoot, s.Lease.Deadline))
	}
}

// Clone returns a deep copy, so that a caller may change it freely.
func (s Sandbox) Clone() Sandbox {
	s.Labels = maps.Clone(s.Labels)
	s.Spec.Env = maps.Clone(s.Spec.Env)
	s.EnvNames = append([]string(nil), s.EnvNames...)
	return s
}

// Billed is the billable life of the sandbox at now: from ready to ended, to the second, provisioning free. No step of the wall
// clock changes it.
func (s Sandbox) Billed(now Instant) time.Duration {
	if s.Times.ReadyAt.IsZero() {
		return 0
	}
	if s.Times.EndedAt.IsZero() {
		s.StampEnded(now)
	}
	return max(0, s.Times.EndedBoot-s.Times.ReadyBoot).Truncate(time.Second)
}
