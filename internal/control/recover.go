package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
)

// recover makes records and host agree after a start of the server. The host's truth wins: what runs with a valid lease
// is kept or adopted, what does not run is closed with the time the host saw.
func (p *Plane) recover(ctx context.Context) error {
	known, err := p.store.LiveSandboxes(ctx)
	if err != nil {
		return fmt.Errorf("read live sandboxes: %w", err)
	}
	failpoint.Hit("control.recover.begin")
	found, err := p.node.Recover(ctx, known)
	if err != nil {
		return fmt.Errorf("recover the node: %w", err)
	}
	failpoint.Hit("control.recover.found")
	p.meterRecovery(known, found)
	for _, sb := range found.Running {
		if err := p.adopt(ctx, sb); err != nil {
			return err
		}
	}
	failpoint.Hit("control.recover.adopted")
	for _, ended := range found.Ended {
		if err := p.closeRecord(ended); err != nil {
			return err
		}
	}
	failpoint.Hit("control.recover.closed")
	for _, ended := range found.Ending {
		if _, err := p.end(dayfly.ActorReconciler, ended.ID, ended.Reason); err != nil && dayfly.ErrorCode(err) != dayfly.CodeNotFound {
			return fmt.Errorf("record that %s is ending: %w", ended.ID, err)
		}
	}
	failpoint.Hit("control.recover.done")
	p.log.Info("recovered", "running", len(found.Running), "ended", len(found.Ended), "ending", len(found.Ending))
	return nil
}

// adopt takes a running machine's record from the store, or rebuilds it from the host's.
func (p *Plane) adopt(ctx context.Context, sb dayfly.Sandbox) error {
	stored, err := p.store.AdoptSandbox(dayfly.WithActor(ctx, dayfly.ActorReconciler), sb)
	if err != nil {
		return fmt.Errorf("adopt %s: %w", sb.ID, err)
	}
	if stored.Status == dayfly.StatusDeleting || stored.Status.Ended() {
		p.teardown(sb.ID) // its end was asked for before the restart
		return nil
	}
	moved, err := p.move(dayfly.ActorReconciler, sb.ID, func(now dayfly.Instant, rec *dayfly.Sandbox) bool {
		if rec.Status == dayfly.StatusRunning && rec.Lease == sb.Lease {
			return false
		}
		if rec.Status == dayfly.StatusProvisioning {
			rec.Status, rec.Times.ReadyAt = dayfly.StatusRunning, now.Wall.UTC()
		}
		rec.Lease, rec.Driver = sb.Lease, sb.Driver
		return true
	})
	if err != nil {
		return fmt.Errorf("record %s as running: %w", sb.ID, err)
	}
	p.reaper.due(moved.Lease)
	return nil
}

// sweep has the node remove leftovers and the store forget what is old, until ctx ends. It looks at all live records too, for
// what the reaper was not told of.
func (p *Plane) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if err := p.Sweep(ctx, p.Now()); err != nil && ctx.Err() == nil {
			p.log.Error("sweep", "error", err)
		}
		p.reaper.reconcile(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Sweep is one bounded pass: leftovers of dead machines, images that lost their name, ended records past EndedKept, idempotency
// keys past their time. It does every step and joins the errors.
func (p *Plane) Sweep(ctx context.Context, now dayfly.Instant) error {
	var errs []error
	step := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	step("sweep the node", p.node.Sweep(ctx, now))
	failpoint.Hit("control.sweep.node")
	step("sweep images", p.sweepImages(ctx))
	_, err := p.store.PurgeSandboxes(ctx, now.Wall.Add(-EndedKept), purgeBatch)
	step("purge sandboxes", err)
	_, err = p.store.PurgeRequests(ctx, now.Wall.Add(-dayfly.RequestKept), purgeBatch)
	step("purge requests", err)
	step("purge events", p.purgeEvents(ctx, now))
	return errors.Join(errs...)
}
