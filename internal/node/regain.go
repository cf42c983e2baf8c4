package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"dayfly.dev/dayfly"
)

// regain finds what lives under a valid lease and is not as it should be: nothing here holds it, so it is taken hold of as a start
// does, or it has no record. It gives both, for the control plane to adopt. A machine that is being ended is left to that. One that
// cannot be looked at is taken out of held: unreadable is not dead.
func (m *Manager) regain(ctx context.Context, held holdings, records map[string]dayfly.Sandbox) ([]dayfly.Sandbox, error) {
	var running []dayfly.Sandbox
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(held)) {
		rec, recorded := records[id]
		if recorded && !rec.Status.Up() || !slices.Contains(held[id], KindMachine) || !slices.Contains(held[id], kindLease) {
			continue
		}
		sb, lives, err := m.regainOne(ctx, id, rec, recorded)
		if err != nil {
			delete(held, id)
			errs = append(errs, fmt.Errorf("look at %s: %w", id, err))
		}
		if lives {
			running = append(running, sb)
		}
	}
	return running, errors.Join(errs...)
}

// regainOne tells whether the control plane should look at a machine: it lives, and was held by nobody or has no record.
func (m *Manager) regainOne(ctx context.Context, id string, rec dayfly.Sandbox, recorded bool) (dayfly.Sandbox, bool, error) {
	if b := m.box(id); b != nil {
		if recorded || !m.idle(id) || !b.lives() {
			return dayfly.Sandbox{}, false, nil
		}
		lease, err := m.opt.Leases.Read(id)
		return b.record(), err == nil && !lease.Due(m.Now()), nil
	}
	if !m.idle(id) {
		return dayfly.Sandbox{}, false, nil
	}
	letGo, err := m.hold(ctx, id)
	if err != nil {
		return dayfly.Sandbox{}, false, err
	}
	defer letGo()
	st, err := m.readState(id)
	if err != nil || m.box(id) != nil || !m.claimSlot(id, st.Slot) {
		return dayfly.Sandbox{}, false, nil // nothing to reach it by, or nothing to do
	}
	sb, v, err := m.recoverOne(ctx, id, rec)
	if v.alive {
		m.opt.Log.Warn("took hold of a machine that lives under a valid lease", "sandbox", id, "recorded", recorded)
	}
	return sb, v.alive, err
}

// idle tells that no work on an id is under way.
func (m *Manager) idle(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.busy[id] == nil
}

// claimSlot keeps the slot of a machine for it, unless another one that lives has the same.
func (m *Manager) claimSlot(id string, slot int) bool {
	m.mu.Lock()
	boxes := slices.Collect(maps.Values(m.boxes))
	m.mu.Unlock()
	for _, b := range boxes {
		if b.id != id && b.state().Slot == slot {
			return false
		}
	}
	_ = m.opt.Slots.Mark(slot) // or it is marked already, by whoever found the state file before
	return true
}

// lives tells that the machine has not ended, and that nobody asked for it.
func (b *Box) lives() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.inst.Done():
		return false
	default:
		return !b.destroying
	}
}

// record is the sandbox's record as the host tells it.
func (b *Box) record() dayfly.Sandbox {
	st := b.state()
	sb := st.Sandbox
	sb.Status, sb.Wanted, sb.Driver = dayfly.StatusRunning, dayfly.StatusRunning, st.Driver
	if b.paused() {
		sb.Status = dayfly.StatusPaused
	}
	if sb.Times.ReadyAt.IsZero() {
		sb.Times.ReadyAt, sb.Times.ReadyBoot = sb.Times.CreatedAt, sb.Lease.Born
	}
	return sb
}
