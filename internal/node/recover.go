package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
	"dayfly.dev/dayfly/internal/failpoint"
)

// recoverParallel is how many machines are taken hold of, or cleared away, at once.
const recoverParallel = 8

// Recover implements control.Node. A machine with a valid lease file is kept, with or without a record; one without is
// destroyed. Both sides must be readable: "could not look" ends the start instead of destroying anything. What cannot be
// removed at once keeps nobody from starting: it is told as ending, or left to the sweep.
func (m *Manager) Recover(ctx context.Context, known []dayfly.Sandbox, note func(control.Ending) error) (control.Recovery, error) {
	held, err := m.everything(ctx)
	if err != nil {
		return control.Recovery{}, err
	}
	records := byID(known)
	for id := range records {
		if _, there := held[id]; !there {
			held[id] = nil // a record alone is something to judge
		}
	}
	for id := range held { // slots first, so that none is given away while its old machine is cleared
		if st, err := m.readState(id); err == nil {
			if err := m.opt.Slots.Mark(st.Slot); err != nil {
				m.opt.Log.Error("keep the slot of a sandbox", "sandbox", id, "error", err)
			}
		}
	}
	if err := m.removeTemps(); err != nil {
		m.opt.Log.Error("remove half-written state files", "error", err)
	}
	failpoint.Hit("node.recover.marked")
	found, dead, err := m.judge(ctx, held, records)
	if err != nil || found.Stopped != "" {
		return found, err
	}
	err = m.clearAll(ctx, clearing{dead, held, records, note}, &found)
	return found, err
}

// judge takes hold of what lives and gives the verdicts on everything else. It removes nothing.
func (m *Manager) judge(ctx context.Context, held holdings, records map[string]dayfly.Sandbox) (control.Recovery, map[string]verdict, error) {
	var mu sync.Mutex
	var found control.Recovery
	dead := map[string]verdict{}
	living, doomed := 0, 0
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(recoverParallel)
	for _, id := range slices.Sorted(maps.Keys(held)) {
		g.Go(func() error {
			sb, v, err := m.recoverOne(ctx, id, records[id])
			if err != nil {
				return err
			}
			valid := v.alive
			if !v.alive {
				if valid, err = m.livesUnderLease(held, id); err != nil {
					return err
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if valid {
				living++
			}
			if v.alive {
				found.Running = append(found.Running, sb)
				return nil
			}
			dead[id] = v
			if valid {
				doomed++
			}
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return found, nil, err
	}
	if found.Stopped = m.brake(doomed, living, false); found.Stopped != "" {
		m.opt.Log.Error("most machines cannot be reached; nothing is removed", "why", found.Stopped)
	}
	return found, dead, nil
}

// clearing is what clearAll works on.
type clearing struct {
	dead    map[string]verdict
	held    holdings
	records map[string]dayfly.Sandbox
	note    func(control.Ending) error
}

// clearAll removes what is left of the dead ones: of all that are recorded, and of sweepMax others.
func (m *Manager) clearAll(ctx context.Context, c clearing, found *control.Recovery) error {
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(recoverParallel)
	others := 0
	for _, id := range slices.Sorted(maps.Keys(c.dead)) {
		rec, recorded := c.records[id]
		if !recorded {
			if others++; others > sweepMax {
				continue // the sweep goes on
			}
		}
		g.Go(func() error {
			var ended control.Ending
			if recorded {
				ended = m.lost(rec, c.dead[id])
				if err := c.note(ended); err != nil {
					return fmt.Errorf("record the end of %s: %w", id, err)
				}
				failpoint.Hit("node.recover.noted")
			}
			why := m.whyOrphan(id)
			err := m.clearDead(ctx, id)
			if err != nil {
				m.opt.Log.Error("clear away a dead sandbox; it is tried again", "sandbox", id, "error", err)
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case recorded && err == nil:
				found.Ended = append(found.Ended, ended)
			case recorded:
				found.Ending = append(found.Ending, ended)
			default:
				found.Findings = append(found.Findings, m.findings(id, c.held[id], why, err)...)
			}
			return ctx.Err()
		})
	}
	return g.Wait()
}

// verdict is what a start finds of one machine.
type verdict struct {
	alive bool             // it lives, under a valid lease
	why   dayfly.EndReason // else why it is ended or did end, or empty: nobody here knows
	lives bool             // it is to be ended, and had a process when it was looked at
	due   dayfly.Lease     // by its file, if that is over; or the zero value
}

// recoverOne takes hold of a machine if it lives under a valid lease. rec is its record, or the zero value.
func (m *Manager) recoverOne(ctx context.Context, id string, rec dayfly.Sandbox) (dayfly.Sandbox, verdict, error) {
	now := m.Now()
	lease, leaseErr := m.opt.Leases.Read(id)
	switch {
	case dayfly.ErrorCode(leaseErr) == dayfly.CodeNotFound:
		return dayfly.Sandbox{}, verdict{why: dayfly.EndReconciled}, nil
	case leaseErr == nil && lease.Due(now):
		return dayfly.Sandbox{}, verdict{why: dayfly.EndLeaseExpired, due: lease, lives: m.hasProcess(ctx, id)}, nil
	}
	st, err := m.readState(id)
	switch {
	case dayfly.ErrorCode(err) == dayfly.CodeNotFound, err == nil && st.Instance == nil: // the create had not come that far
		return dayfly.Sandbox{}, verdict{}, nil
	case errors.Is(err, errGarbage):
		m.opt.Log.Error("state file is damaged; its sandbox cannot be reached any more and is ended", "sandbox", id, "error", err)
		return dayfly.Sandbox{}, verdict{why: dayfly.EndReconciled}, nil
	case err != nil:
		return dayfly.Sandbox{}, verdict{}, err
	}
	if leaseErr != nil { // unreadable is not absent
		lease = m.lastKnown(id, st, rec, leaseErr)
	}
	if lease.BootID != now.BootID { // nothing survives a boot
		return dayfly.Sandbox{}, verdict{}, nil
	}
	b, err := m.takeHold(ctx, st, lease)
	if dayfly.ErrorCode(err) == dayfly.CodeGone {
		return dayfly.Sandbox{}, verdict{}, nil
	}
	if err != nil {
		return dayfly.Sandbox{}, verdict{}, fmt.Errorf("recover %s: %w", id, err)
	}
	return b.record(), verdict{alive: true}, nil
}

// takeHold makes a box of a machine that lives. CodeGone: it does not.
func (m *Manager) takeHold(ctx context.Context, st state, lease dayfly.Lease) (*Box, error) {
	driver, ok := m.drivers[st.Driver]
	if !ok {
		return nil, fmt.Errorf("this server has no driver %q, which made it", st.Driver)
	}
	inst, err := driver.Recover(ctx, st.Sandbox.ID, st.Instance)
	if err != nil {
		return nil, err
	}
	st.Sandbox.Lease = lease
	if err := m.writeGrant(lease, st.Sandbox.ID); err != nil { // an extend may have been cut off before it
		m.opt.Log.Error("tell the agent of its lease", "sandbox", st.Sandbox.ID, "error", err)
	}
	failpoint.Hit("node.recover.held")
	b := newBox(m, st, inst)
	if p, can := inst.(dayfly.Pauser); can {
		if err := b.seePaused(p); err != nil {
			return nil, err
		}
	}
	m.setBox(b)
	m.background(func() { b.watch(m.life) })
	if b.paused() {
		b.readAtResume()
	} else {
		b.readoptSoon()
	}
	return b, nil
}

// lastKnown is the lease of a machine whose lease file cannot be read. The record's is what its account was promised, so the
// file is written anew from it; without a record the warden goes on with the last one that it knew.
func (m *Manager) lastKnown(id string, st state, rec dayfly.Sandbox, cause error) dayfly.Lease {
	m.opt.Log.Error("lease file cannot be read; going on with the last lease known", "sandbox", id, "error", cause)
	lease := st.Sandbox.Lease
	if rec.ID != id || rec.Lease.BootID != lease.BootID || rec.Lease.Deadline < lease.Deadline {
		return lease
	}
	if err := m.opt.Leases.Write(id, rec.Lease); err != nil {
		m.opt.Log.Error("write a lease file anew", "sandbox", id, "error", err)
	}
	return rec.Lease
}

// lost tells how a recorded sandbox that no longer runs, or shall not, ended.
func (m *Manager) lost(rec dayfly.Sandbox, v verdict) control.Ending {
	e := m.lostTo(rec, v)
	m.blameMemory(&e, rec.Driver)
	return e
}

// lostTo is lost for whom lack of memory is a crash.
func (m *Manager) lostTo(rec dayfly.Sandbox, v verdict) control.Ending {
	now := m.Now()
	e := control.Ending{ID: rec.ID, At: now.Wall, Boot: now.Boot}
	if rec.Status == dayfly.StatusProvisioning {
		e.Reason = dayfly.EndStartupFailed
		return e
	}
	if rec.Lease.BootID != now.BootID {
		e.Reason = dayfly.EndHostLost
		if at, ok := m.opt.Leases.LastSeen(); ok {
			e.At, e.Boot = at, 0 // of no clock of this boot
		}
		return e
	}
	seen, ok := m.ending(rec.ID)
	if ok {
		if seen.Reason == dayfly.EndCrashed && rec.Lease.Due(now) && seen.Boot >= rec.Lease.AgentEnds() {
			seen.Reason = dayfly.EndLeaseExpired // by the agent's clock, which knew nothing of an extend that was never answered
		}
		return seen
	}
	return m.unseen(rec, v, seen.Boot)
}

// unseen tells how a machine ended that nobody saw end; found is when it was found dead, or now. It is dated to the last moment at
// which somebody is known to have watched it, so that nobody is billed for a time in which nothing ran. Its lease ended it only
// if a clock was there to do so: that of an enforcer, or the agent's own, which is late; what died sooner died by itself.
func (m *Manager) unseen(rec dayfly.Sandbox, v verdict, found time.Duration) control.Ending {
	now := m.Now()
	e := control.Ending{ID: rec.ID, At: now.Wall, Boot: now.Boot, Reason: v.why}
	lease := rec.Lease // what its account was promised; a later lease file is an extend that was never answered
	if !lease.Due(now) && v.due.BootID == now.BootID {
		lease = v.due
	}
	watched := m.watchedUntil(rec, found)
	switch {
	case rec.Status == dayfly.StatusDeleting: // it has its reason, and the time when it was asked for
		e.At, e.Boot = time.Time{}, 0
		return e
	case lease.Due(now) && (v.lives || watched >= lease.Deadline):
		e.Reason, e.Boot = dayfly.EndLeaseExpired, lease.Deadline
	case lease.Due(now) && found >= lease.AgentEnds():
		e.Reason, e.Boot = dayfly.EndLeaseExpired, watched
	case v.why == dayfly.EndReconciled: // ended now
	default:
		e.Reason, e.Boot = dayfly.EndCrashed, watched
	}
	e.At = now.WallAt(e.Boot)
	return e
}

// watchedUntil is the last moment of this boot at which somebody is known to have watched a machine that was found dead at found.
func (m *Manager) watchedUntil(rec dayfly.Sandbox, found time.Duration) time.Duration {
	since, ok := m.opt.Leases.Unwatched()
	if !ok {
		return found
	}
	now := m.Now()
	return min(found, max(now.Boot+since.Sub(now.Wall), rec.Times.ReadyBoot))
}

// clearDead removes what a machine without a valid lease left, and the machine itself, unless it turns out to be owned.
func (m *Manager) clearDead(ctx context.Context, id string) error {
	letGo, err := m.hold(ctx, id)
	if err != nil {
		return err
	}
	defer letGo()
	if m.box(id) != nil {
		return nil
	}
	if err := m.reclaimDrivers(ctx, id); err != nil {
		return err
	}
	failpoint.Hit("node.recover.reclaimed")
	return m.clear(ctx, id, nil /* find out its state */)
}
