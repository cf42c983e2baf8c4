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

	mu       sync.Mutex
	next     time.Duration   // boot time of the earliest deadline known; 0 means none
	expiring map[string]bool // ids that are being ended: each once at a time
}

const (
	reaperRetry = time.Second     // when a reap that could not be done is tried again
	reaperLook  = 5 * time.Second // between looks at the clock: timers stand still while the host is suspended, leases do not
)

func newReaper(p *Plane) *Reaper {
	return &Reaper{plane: p, wake: make(chan struct{}, 1), expiring: map[string]bool{}}
}

// due tells the reaper of a lease, so that it is awake at its deadline.
func (r *Reaper) due(l dayfly.Lease) { r.at(l.Deadline) }

func (r *Reaper) at(boot time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == 0 || boot < r.next {
		r.next = boot
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// again has the reaper look soon.
func (r *Reaper) again() { r.at(r.plane.Now().Boot + reaperRetry) }

// run reconciles at each deadline until ctx ends.
func (r *Reaper) run(ctx context.Context) {
	r.reconcile(ctx)
	timer := time.NewTimer(reaperLook)
	defer timer.Stop()
	for {
		wait := reaperLook
		r.mu.Lock()
		next := r.next
		r.mu.Unlock()
		if next != 0 {
			wait = min(wait, max(0, next-r.plane.Now().Boot))
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-timer.C:
			if next != 0 && r.plane.Now().Boot >= next {
				r.reconcile(ctx)
			}
		}
	}
}

func (r *Reaper) reconcile(ctx context.Context) {
	if err := r.Reconcile(ctx, r.plane.Now()); err != nil && ctx.Err() == nil {
		r.plane.log.Error("reap", "error", err)
		r.again()
	}
}

// Reconcile ends every live sandbox whose lease is due at now and remembers the next deadline. It also goes on with what was
// left half done: teardowns, and creations that nobody works on.
func (r *Reaper) Reconcile(ctx context.Context, now dayfly.Instant) error {
	r.mu.Lock()
	r.next = 0
	r.mu.Unlock()
	live, err := r.plane.store.LiveSandboxes(ctx)
	if err != nil {
		return err
	}
	for _, sb := range live {
		switch {
		case sb.Status == dayfly.StatusDeleting:
			r.plane.tearDown(sb.ID)
		case sb.Status == dayfly.StatusProvisioning:
			if r.plane.launching(sb.ID) == nil {
				r.giveUp(sb.ID)
			} // else its launch has no more time than its lease
		case sb.Lease.Due(now):
			r.expire(ctx, sb.ID)
		default:
			r.due(sb.Lease)
		}
	}
	return nil
}

// giveUp ends a creation that nobody works on: its record could not be written when it failed. One that became running since
// it was read is left alone.
func (r *Reaper) giveUp(id string) {
	moved, err := r.plane.move(dayfly.ActorReaper, id, func(_ dayfly.Instant, sb *dayfly.Sandbox) bool {
		if sb.Status != dayfly.StatusProvisioning {
			return false
		}
		sb.Wanted, sb.Status, sb.End = dayfly.StatusDeleted, dayfly.StatusDeleting, dayfly.EndStartupFailed
		return true
	})
	if err != nil {
		r.plane.log.Error("give up a creation that nobody works on", "sandbox", id, "error", err)
		r.again()
		return
	}
	if moved.Status == dayfly.StatusDeleting {
		r.plane.tearDown(id)
	}
}

// expire ends one due machine in the background; the lease file has the last word.
func (r *Reaper) expire(ctx context.Context, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.expiring[id] {
		return
	}
	r.expiring[id] = r.plane.background(func() {
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.expiring, id)
		}()
		ctx, cancel := context.WithTimeout(ctx, teardownTimeout)
		defer cancel()
		if err := r.expireOne(ctx, id); err != nil && r.plane.life.Err() == nil {
			r.plane.log.Error("end a due sandbox", "sandbox", id, "error", err)
			r.again()
		}
	})
}

func (r *Reaper) expireOne(ctx context.Context, id string) error {
	lease, ended, err := r.plane.node.Expire(ctx, id)
	switch {
	case err != nil:
		return err
	case ended:
		_, err = r.plane.end(dayfly.ActorReaper, id, dayfly.EndLeaseExpired)
	default: // extended, and the record does not know
		_, err = r.plane.recordLease(dayfly.ActorHost, id, lease)
	}
	return err
}
