package control

import (
	"context"
	"sync"
	"time"

	"dayfly.dev/dayfly"
)

// Reaper ends what is due, from the records: one half of the guarantee. The warden is the other half; each is enough.
type Reaper struct {
	plane *Plane
	wake  chan struct{} // capacity 1: an earlier deadline than the armed one appeared

	mu   sync.Mutex
	next time.Duration // boot time of the earliest deadline known; 0 means none
}

// reaperRetry is when a reap that could not be done is tried again.
const reaperRetry = time.Second

func newReaper(p *Plane) *Reaper { return &Reaper{plane: p, wake: make(chan struct{}, 1)} }

// due tells the reaper of a lease, so that it is awake at its deadline.
func (r *Reaper) due(l dayfly.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == 0 || l.Deadline < r.next {
		r.next = l.Deadline
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// run reconciles at each deadline until ctx ends.
func (r *Reaper) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			if err := r.Reconcile(ctx, r.plane.Now()); err != nil && ctx.Err() == nil {
				r.plane.log.Error("reap", "error", err)
				r.due(dayfly.Lease{Deadline: r.plane.Now().Boot + reaperRetry})
			}
		case <-r.wake:
		}
		r.mu.Lock()
		next := r.next
		r.mu.Unlock()
		if next == 0 {
			timer.Stop()
			continue
		}
		timer.Reset(max(0, next-r.plane.Now().Boot))
	}
}

// Reconcile ends every live sandbox whose lease is due at now and remembers the next deadline.
func (r *Reaper) Reconcile(ctx context.Context, now dayfly.Instant) error {
	r.mu.Lock()
	r.next = 0
	r.mu.Unlock()
	live, err := r.plane.store.LiveSandboxes(ctx)
	if err != nil {
		return err
	}
	for _, sb := range live {
		if sb.Status == dayfly.StatusDeleting {
			r.plane.teardown(sb.ID)
			continue
		}
		if !sb.Lease.Due(now) {
			r.due(sb.Lease)
			continue
		}
		if sb.Status == dayfly.StatusProvisioning && r.plane.launching(sb.ID) {
			continue // its own time limit ends it
		}
		r.expire(ctx, sb)
	}
	return nil
}

// expire ends one due machine in the background; the lease file has the last word.
func (r *Reaper) expire(ctx context.Context, sb dayfly.Sandbox) {
	r.plane.work.Go(func() {
		lease, ended, err := r.plane.node.Expire(ctx, sb.ID)
		switch {
		case err != nil:
			r.plane.log.Error("end a due sandbox", "sandbox", sb.ID, "error", err)
			r.due(dayfly.Lease{Deadline: r.plane.Now().Boot + reaperRetry})
		case ended:
			if _, err := r.plane.end(sb.ID, dayfly.EndLeaseExpired); err != nil {
				r.plane.log.Error("record the end of a lease", "sandbox", sb.ID, "error", err)
			}
		default:
			if _, err := r.plane.recordLease(sb.ID, lease); err != nil {
				r.plane.log.Error("record a lease that the host extended", "sandbox", sb.ID, "error", err)
			}
		}
	})
}

func (p *Plane) launching(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.launches[id] != nil
}
