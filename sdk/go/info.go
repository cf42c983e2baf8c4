package dayfly

import "time"

// Status is what a server last saw of a sandbox.
type Status string

// The statuses. Deleted and failed are final.
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

// Info is what the server told of a sandbox at one moment.
type Info struct {
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Status   Status            `json:"status"`
	Labels   map[string]string `json:"labels"`
	EnvNames []string          `json:"env_names"` // values are never shown
	Machine
	Life
	Replayed bool `json:"replayed,omitempty"` // an earlier create with the same idempotency key made it
}

// Machine is what a sandbox consists of.
type Machine struct {
	Size      string `json:"size"`
	VCPU      int    `json:"vcpu"`
	MemoryMB  int64  `json:"memory_mb"`
	DiskMB    int64  `json:"disk_mb"`
	Image     string `json:"image"`
	Isolation string `json:"isolation"`
	Node      string `json:"node"`
}

// Life is when a sandbox began and ends. Nil means not yet.
type Life struct {
	CreatedAt *time.Time `json:"created_at"`
	ReadyAt   *time.Time `json:"ready_at"`
	// ExpiresAt is computed here, from RemainingMS when the answer came, so that a wrong clock on either side moves nothing.
	ExpiresAt     *time.Time `json:"expires_at"`
	RemainingMS   int64      `json:"remaining_ms"` // of the lease, when the answer came
	CeilingAt     *time.Time `json:"ceiling_at"`
	EndedAt       *time.Time `json:"ended_at"`
	EndReason     string     `json:"end_reason"`
	BilledSeconds int64      `json:"billed_seconds"`

	asOf time.Time // when the answer came; monotonic
}

// AsOf is when the answer came that this information is from.
func (l Life) AsOf() time.Time { return l.asOf }

// Remaining is what is left of the lease now, by this process's monotonic clock; never negative.
func (l Life) Remaining() time.Duration {
	if l.EndedAt != nil || l.asOf.IsZero() {
		return 0
	}
	return max(0, time.Duration(l.RemainingMS)*time.Millisecond-time.Since(l.asOf))
}

// received stamps an answer that just came.
func (i *Info) received() {
	i.asOf = time.Now()
	if i.EndedAt == nil && !i.Status.Ended() {
		at := i.asOf.Add(time.Duration(i.RemainingMS) * time.Millisecond).Round(0).UTC().Truncate(time.Millisecond)
		i.ExpiresAt = &at
	}
}
