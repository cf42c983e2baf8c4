package dayfly

import "time"

// Instant is one reading of a host's clocks. Decisions take it as an argument and never read a clock themselves.
type Instant struct {
	Wall   time.Time     // for people only; a step of it changes no decision
	Boot   time.Duration // CLOCK_BOOTTIME: time since boot, suspended time included
	BootID string        // /proc/sys/kernel/random/boot_id; Boot values compare only within one boot
}

// Limits of a lease.
const (
	LeaseDefault = 15 * time.Minute
	LeaseMin     = 5 * time.Second
	LeaseCeiling = 24 * time.Hour // total life of a sandbox, from its acceptance; the operator may lower it
)

// AgentLate is how late the clock inside a machine is by design: the host, which is the authority, shall be first.
const AgentLate = 2 * time.Second

// Lease is the promise that a sandbox ends: all times are CLOCK_BOOTTIME of the boot BootID on the sandbox's host.
type Lease struct {
	BootID   string
	Born     time.Duration // when the creation was accepted
	Deadline time.Duration // when the host ends the sandbox
	Ceiling  time.Duration // no extend moves Deadline beyond
}

// NewLease grants d from now, cut to max (0 means LeaseCeiling).
func NewLease(now Instant, d, max time.Duration) Lease {
	if max <= 0 || max > LeaseCeiling {
		max = LeaseCeiling
	}
	return Lease{BootID: now.BootID, Born: now.Boot, Deadline: now.Boot + min(d, max), Ceiling: now.Boot + max}
}

// Remaining is the time left at now: never negative, and 0 for a lease of another boot.
func (l Lease) Remaining(now Instant) time.Duration {
	if l.BootID != now.BootID {
		return 0
	}
	return max(0, l.Deadline-now.Boot)
}

// Due tells whether the lease has ended at now. A lease of another boot has ended.
func (l Lease) Due(now Instant) bool { return l.Remaining(now) == 0 }

// Extend moves the deadline by d, cut to the ceiling; clamped tells that it was cut.
// It never shortens a lease. At the ceiling it answers CodeLeaseCeiling, after the end CodeGone.
func (l Lease) Extend(now Instant, d time.Duration) (extended Lease, clamped bool, err error) {
	if l.Due(now) {
		return l, false, Errorf(CodeGone, "the sandbox's lease has ended")
	}
	if l.Deadline >= l.Ceiling {
		return l, false, Errorf(CodeLeaseCeiling, "the lease already reaches its ceiling of %s in all", l.Ceiling-l.Born).
			WithHint("create a new sandbox for further work")
	}
	extended = l
	extended.Deadline = l.Deadline + d
	if extended.Deadline > l.Ceiling || extended.Deadline < l.Deadline { // the latter: overflow
		extended.Deadline, clamped = l.Ceiling, true
	}
	return extended, clamped, nil
}

// Granted is the whole life that the lease grants, counted from birth. It only grows. The agent's own clock runs on it.
func (l Lease) Granted() time.Duration { return l.Deadline - l.Born }

// AgentEnds is when, at the earliest, the clock inside the machine ends it if nobody else does: it counts whole seconds.
func (l Lease) AgentEnds() time.Duration {
	return l.Born + l.Granted().Truncate(time.Second) + AgentLate
}

// WallAt translates a boot time to wall clock as now sees it. It is meaningless for another boot than now's.
func (now Instant) WallAt(boot time.Duration) time.Time { return now.Wall.Add(boot - now.Boot) }
