package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
	"dayfly.dev/dayfly/internal/failpoint"
)

// recoverParallel is how many machines are taken hold of, or cleared away, at once.
const recoverParallel = 8

// Recover implements control.Node. A machine with a valid lease file is kept, with or without a record; one without is
// destroyed. Both sides must be readable: "could not look" ends the start instead of destroying anything.
func (m *Manager) Recover(ctx context.Context, known []dayfly.Sandbox) (control.Recovery, error) {
	ids, err := m.everything(ctx)
	if err != nil {
		return control.Recovery{}, err
	}
	records := make(map[string]dayfly.Sandbox, len(known))
	for _, sb := range known {
		records[sb.ID] = sb
		ids[sb.ID] = true
	}
	for id := range ids { // slots first, so that none is given away while its old machine is cleared
		if st, err := m.readState(id); err == nil {
			_ = m.opt.Slots.Mark(st.Slot)
		}
	}
	failpoint.Hit("node.recover.marked")
	var mu sync.Mutex
	var found control.Recovery
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(recoverParallel)
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		g.Go(func() error {
			sb, alive, err := m.recoverOne(ctx, id)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if alive {
				found.Running = append(found.Running, sb)
				return nil
			}
			if rec, ok := records[id]; ok {
				found.Ended = append(found.Ended, m.lost(rec))
			}
			return m.clearDead(ctx, id)
		})
	}
	return found, g.Wait()
}

// everything lists the ids of all host objects of this installation, whoever made them.
func (m *Manager) everything(ctx context.Context) (map[string]bool, error) {
	ids := map[string]bool{}
	sources := []func() ([]string, error){
		m.opt.Leases.List, m.listStates, m.listRunDirs,
		func() ([]string, error) { return m.opt.Pool.List(ctx) },
		func() ([]string, error) { return m.opt.Network.List(ctx) },
	}
	for _, d := range m.drivers {
		sources = append(sources, func() ([]string, error) { return d.List(ctx) })
	}
	var errs []error
	for _, list := range sources {
		found, err := list()
		errs = append(errs, err)
		for _, id := range found {
			if dayfly.ValidID(dayfly.PrefixSandbox, id) {
				ids[id] = true
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("look at the host: %w", err)
	}
	return ids, nil
}

// recoverOne takes hold of a machine if it lives under a valid lease.
func (m *Manager) recoverOne(ctx context.Context, id string) (dayfly.Sandbox, bool, error) {
	lease, err := m.opt.Leases.Read(id)
	if dayfly.ErrorCode(err) == dayfly.CodeNotFound {
		return dayfly.Sandbox{}, false, nil
	}
	st, stateErr := m.readState(id)
	if err != nil { // unreadable is not absent: the warden holds the last deadline it knew; go on with the one on record
		m.opt.Log.Error("lease file cannot be read; the warden keeps the last one it knew", "sandbox", id, "error", err)
		lease = st.Sandbox.Lease
	}
	if stateErr != nil || st.Instance == nil || lease.Due(m.Now()) {
		return dayfly.Sandbox{}, false, nil
	}
	driver, ok := m.drivers[st.Driver]
	if !ok {
		return dayfly.Sandbox{}, false, nil
	}
	inst, err := driver.Recover(ctx, id, st.Instance)
	if dayfly.ErrorCode(err) == dayfly.CodeGone {
		return dayfly.Sandbox{}, false, nil
	}
	if err != nil {
		return dayfly.Sandbox{}, false, fmt.Errorf("recover %s: %w", id, err)
	}
	failpoint.Hit("node.recover.held")
	st.Sandbox.Lease = lease
	b := newBox(m, st, inst)
	m.setBox(b)
	m.work.Go(func() { b.watch(m.life) })
	if err := b.readopt(ctx); err != nil {
		m.opt.Log.Error("list commands of a recovered sandbox", "sandbox", id, "error", err)
	}
	sb := st.Sandbox.Clone()
	sb.Status, sb.Wanted, sb.Driver = dayfly.StatusRunning, dayfly.StatusRunning, st.Driver
	if sb.Times.ReadyAt.IsZero() {
		sb.Times.ReadyAt = sb.Times.CreatedAt
	}
	return sb, true, nil
}

// lost tells how a recorded sandbox that no longer runs ended.
func (m *Manager) lost(rec dayfly.Sandbox) control.Ending {
	if rec.Status == dayfly.StatusProvisioning {
		return control.Ending{ID: rec.ID, At: m.Now().Wall, Reason: dayfly.EndStartupFailed}
	}
	now := m.Now()
	if rec.Lease.BootID != now.BootID {
		e := control.Ending{ID: rec.ID, At: now.Wall, Reason: dayfly.EndHostLost}
		if at, ok := m.opt.Leases.LastSeen(); ok {
			e.At = at
		}
		return e
	}
	e := m.ending(rec.ID)
	if e.Reason == dayfly.EndCrashed && rec.Lease.Due(now) { // nobody wrote it down, but its time was over
		e.Reason, e.At = dayfly.EndLeaseExpired, now.WallAt(rec.Lease.Deadline)
	}
	return e
}

// clearDead removes what a machine without a valid lease left, and the machine itself.
func (m *Manager) clearDead(ctx context.Context, id string) error {
	letGo := m.hold(id)
	defer letGo()
	if err := m.reclaimDrivers(ctx, id); err != nil {
		return err
	}
	failpoint.Hit("node.recover.reclaimed")
	return m.clear(ctx, id)
}

// Sweep implements control.Node: everything on the host that neither a live machine nor work under way owns goes. The host
// is listed first and ownership asked after, so an object made in between is never taken for a leftover.
func (m *Manager) Sweep(ctx context.Context, _ dayfly.Instant) error {
	ids, err := m.everything(ctx)
	if err != nil {
		return err
	}
	var errs []error
	failpoint.Hit("node.sweep.listed")
	for id := range ids {
		if m.owned(id) {
			continue
		}
		m.opt.Log.Warn("removing what no sandbox owns", "sandbox", id)
		errs = append(errs, m.clearDead(ctx, id))
	}
	return errors.Join(errs...)
}
