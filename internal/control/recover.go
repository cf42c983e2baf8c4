package control

import (
	"context"
	"fmt"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
)

// recover makes records and host agree after a start of the server. The host's truth wins: what runs with a valid lease
// is kept or adopted, what does not run is closed with the time the host saw. It gives what was removed and nobody's.
func (p *Plane) recover(ctx context.Context) ([]Finding, error) {
	p.sweeping.Lock()
	defer p.sweeping.Unlock()
	known, err := p.store.LiveSandboxes(ctx)
	if err != nil {
		return nil, fmt.Errorf("read live sandboxes: %w", err)
	}
	failpoint.Hit("control.recover.begin")
	found, err := p.node.Recover(ctx, known, p.noteEnding)
	if err != nil {
		return nil, fmt.Errorf("recover the node: %w", err)
	}
	failpoint.Hit("control.recover.found")
	p.meterRecovery(known, found)
	p.tellFound(ctx, found.Findings)
	p.tellStopped(ctx, found.Stopped)
	for _, sb := range found.Running {
		if err := p.adopt(ctx, sb); err != nil {
			return nil, err
		}
	}
	failpoint.Hit("control.recover.adopted")
	for _, ended := range found.Ended {
		if err := p.closeRecord(ended); err != nil {
			return nil, err
		}
	}
	failpoint.Hit("control.recover.closed")
	for _, ended := range found.Ending {
		if _, err := p.endAs(dayfly.ActorReconciler, ended); err != nil && dayfly.ErrorCode(err) != dayfly.CodeNotFound {
			return nil, fmt.Errorf("record that %s is ending: %w", ended.ID, err)
		}
	}
	failpoint.Hit("control.recover.done")
	p.log.Info("recovered", "running", len(found.Running), "ended", len(found.Ended), "ending", len(found.Ending))
	return found.Findings, nil
}

// adopt takes a running machine's record from the store, or rebuilds it from the host's.
func (p *Plane) adopt(ctx context.Context, sb dayfly.Sandbox) error {
	stored, err := p.store.AdoptSandbox(dayfly.WithActor(ctx, dayfly.ActorReconciler), sb)
	if err != nil {
		return fmt.Errorf("adopt %s: %w", sb.ID, err)
	}
	if stored.Status == dayfly.StatusDeleting || stored.Status.Ended() {
		p.tearDown(sb.ID) // its end was asked for before the restart
		return nil
	}
	moved, err := p.move(dayfly.ActorReconciler, sb.ID, func(now dayfly.Instant, rec *dayfly.Sandbox) bool {
		if rec.Status.Up() && rec.Lease == sb.Lease {
			return false
		}
		if rec.Status == dayfly.StatusProvisioning {
			rec.Status = dayfly.StatusRunning
			rec.StampReady(now)
		}
		rec.Lease, rec.Driver = sb.Lease, sb.Driver
		return true
	})
	if err != nil {
		return fmt.Errorf("record %s as running: %w", sb.ID, err)
	}
	p.reaper.due(moved.Lease)
	return p.seePaused(ctx, moved) // what the host says
}
