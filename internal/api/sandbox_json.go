package api

import (
	"time"

	"dayfly.dev/dayfly"
)

// sandboxJSON is a sandbox as clients see it.
type sandboxJSON struct {
	ID            string            `json:"id"`
	Status        dayfly.Status     `json:"status"`
	Size          string            `json:"size"`
	VCPU          int               `json:"vcpu"`
	MemoryMB      int64             `json:"memory_mb"`
	DiskMB        int64             `json:"disk_mb"`
	Image         string            `json:"image"`
	Isolation     dayfly.Isolation  `json:"isolation"`
	Node          *string           `json:"node"`
	Labels        map[string]string `json:"labels"`
	EnvNames      []string          `json:"env_names"`
	Name          *string           `json:"name"`
	CreatedAt     string            `json:"created_at"`
	ReadyAt       *string           `json:"ready_at"`
	ExpiresAt     string            `json:"expires_at"`
	RemainingMS   int64             `json:"remaining_ms"`
	CeilingAt     string            `json:"ceiling_at"`
	EndedAt       *string           `json:"ended_at"`
	EndReason     *string           `json:"end_reason"`
	BilledSeconds int64             `json:"billed_seconds"`
	URLs          map[string]string `json:"urls"`
}

// createdJSON is the answer to a create.
type createdJSON struct {
	sandboxJSON
	Replayed bool `json:"replayed,omitempty"`
}

// extendedJSON is the answer to an extend.
type extendedJSON struct {
	sandboxJSON
	Clamped bool `json:"clamped"`
}

// showSandboxAt translates a record as it is at now.
func showSandboxAt(sb dayfly.Sandbox, now dayfly.Instant) sandboxJSON {
	expires, remaining := expiry(sb, now)
	out := sandboxJSON{
		ID: sb.ID, Status: sb.Status, Size: sb.Spec.Size,
		VCPU: sb.Spec.Limits.VCPU, MemoryMB: sb.Spec.Limits.MemoryBytes >> 20, DiskMB: sb.Spec.Limits.DiskBytes >> 20,
		Image: sb.Spec.Image, Isolation: sb.Driver, Node: orNull(sb.Node),
		Labels: sb.Labels, EnvNames: sb.EnvNames, Name: orNull(sb.Name),
		CreatedAt: stamp(sb.Times.CreatedAt), ReadyAt: stampOrNull(sb.Times.ReadyAt),
		ExpiresAt: stamp(expires), RemainingMS: remaining.Milliseconds(), CeilingAt: stamp(ceiling(sb, now)),
		EndReason:     orNull(string(sb.End)),
		BilledSeconds: int64(sb.Billed(now) / time.Second),
		URLs:          map[string]string{},
	}
	if sb.Status.Ended() { // before, it is a guess
		out.EndedAt = stampOrNull(sb.Times.EndedAt)
	}
	if out.Isolation == "" {
		out.Isolation = sb.Spec.Isolation
	}
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	if out.EnvNames == nil {
		out.EnvNames = []string{}
	}
	return out
}

// clockJitter is how far two readings of the wall clock and the boot clock may be apart by chance.
const clockJitter = time.Second

// expiry is when the lease ends and how much of it remains. After the end it is when the last lease would have ended.
func expiry(sb dayfly.Sandbox, now dayfly.Instant) (time.Time, time.Duration) {
	remaining := sb.Lease.Remaining(now)
	if sb.Status.Ended() {
		remaining = 0
	}
	if remaining == 0 {
		return sb.Times.CreatedAt.Add(sb.Lease.Granted()), 0
	}
	at := now.Wall.Add(remaining)
	if top := ceiling(sb, now); sb.Lease.Deadline == sb.Lease.Ceiling && at.Sub(top).Abs() < clockJitter {
		at = top // so that "at the ceiling" is seen as equal
	}
	return at, remaining
}

// ceiling is beyond what no extend moves the lease. The wall clock may have been set since the sandbox was made; as long as that
// matters, the time is told by the clock of now.
func ceiling(sb dayfly.Sandbox, now dayfly.Instant) time.Time {
	at := sb.Times.CreatedAt.Add(sb.Lease.Ceiling - sb.Lease.Born)
	if top := now.WallAt(sb.Lease.Ceiling); !sb.Status.Ended() && sb.Lease.BootID == now.BootID && top.Sub(at).Abs() >= clockJitter {
		return top
	}
	return at
}

// stampLayout is RFC 3339 with milliseconds.
const stampLayout = "2006-01-02T15:04:05.000Z"

func stamp(t time.Time) string { return t.UTC().Format(stampLayout) }

func stampOrNull(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	s := stamp(t)
	return &s
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
