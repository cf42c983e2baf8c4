package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
	"dayfly.dev/dayfly/internal/failpoint"
)

// Steps of a teardown that are a driver's.
const (
	stepKill    = "end processes"
	stepRemains = "remove the machine's remains" // every process has ended
)

// Destroy implements control.Node.
func (m *Manager) Destroy(ctx context.Context, id string) (control.Ending, error) {
	if !dayfly.ValidID(dayfly.PrefixSandbox, id) {
		return control.Ending{}, fmt.Errorf("destroy %.40q: not a sandbox id", id)
	}
	letGo, err := m.hold(ctx, id)
	if err != nil {
		return control.Ending{}, err
	}
	defer letGo()
	failpoint.Hit("node.destroy.begin")
	watched := m.box(id) != nil || m.hasProcess(ctx, id)
	killErr := m.kill(ctx, id)
	if killErr != nil && !m.dead(id) {
		return control.Ending{}, &control.StepError{Step: stepKill, Err: killErr}
	}
	failpoint.Hit("node.destroy.killed")
	ended, known := m.ending(id)
	if !known && !watched { // it was dead before, and whoever found that has dated it
		ended.At, ended.Boot = time.Time{}, 0
	}
	return ended, m.clearAfter(ctx, id, nil /* find out its state */, killErr)
}

// dead tells whether a machine that this node holds has no process left, though something else of it may be.
func (m *Manager) dead(id string) bool {
	b := m.box(id)
	if b == nil {
		return false
	}
	select {
	case <-b.inst.Done():
		return true
	default:
		return false
	}
}

// kill ends every process of a machine, whether this node knows it or not. It never talks to the agent, which may hang.
func (m *Manager) kill(ctx context.Context, id string) error {
	b := m.box(id)
	if b == nil {
		return m.reclaimDrivers(ctx, id)
	}
	b.destroyed()
	if err := b.inst.Destroy(ctx); err != nil {
		return fmt.Errorf("destroy instance of %s: %w", id, err)
	}
	b.release()
	return nil
}

func (m *Manager) reclaimDrivers(ctx context.Context, id string) error {
	var errs []error
	for name, d := range m.drivers {
		if err := d.Reclaim(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("reclaim %s from driver %s: %w", id, name, err))
		}
	}
	return errors.Join(errs...)
}

// clear removes what a dead machine leaves: permission and interface, disk, run directory, files. The lease and
// state files go last, so that whatever is left by a crash in between still has an owner that the sweep knows.
// Until nothing is left it keeps its slot too. known is its state, or nil. Whoever calls it holds the id.
func (m *Manager) clear(ctx context.Context, id string, known *state) error {
	return m.clearAfter(ctx, id, known, nil)
}

// clearAfter is clear when a step before it may have failed: with what, or nil. Then the machine keeps lease, state and slot.
// control.ErrLeftover: the machine has no process, address or disk any more.
func (m *Manager) clearAfter(ctx context.Context, id string, known *state, before error) error {
	if known == nil {
		known = m.stateOf(id)
	}
	var errs []error
	if before != nil {
		errs = append(errs, &control.StepError{Step: stepRemains, Err: before})
	}
	step := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", id, &control.StepError{Step: what, Err: err}))
		}
	}
	switch {
	case known != nil && known.Attached:
		step("detach network", m.opt.Network.Detach(ctx, known.Slot, id))
	case known == nil:
		step("reclaim network", m.opt.Network.Reclaim(ctx, id))
	}
	failpoint.Hit("node.destroy.network")
	step("remove disk", m.opt.Pool.Remove(ctx, id))
	failpoint.Hit("node.destroy.disk")
	gone := len(errs) == 0 || len(errs) == 1 && before != nil // no process, address or disk
	step("remove run directory", os.RemoveAll(m.runDir(id)))
	failpoint.Hit("node.destroy.rundir")
	if len(errs) > 0 {
		if gone {
			errs = append(errs, control.ErrLeftover)
		}
		return errors.Join(errs...)
	}
	if step("remove lease", m.opt.Leases.Remove(id)); len(errs) == 0 {
		failpoint.Hit("node.destroy.lease")
		step("remove state", m.removeState(id)) // it knows the slot
	}
	failpoint.Hit("node.destroy.state")
	if len(errs) == 0 {
		m.cleared(id)
		m.dropBox(id)
		if known != nil {
			m.opt.Slots.Free(known.Slot)
		}
	} else {
		errs = append(errs, control.ErrLeftover)
	}
	return errors.Join(errs...)
}

// stateOf gives what this node knows of a machine, or nil.
func (m *Manager) stateOf(id string) *state {
	if b := m.box(id); b != nil {
		st := b.state()
		return &st
	}
	if st, err := m.readState(id); err == nil {
		return &st
	}
	return nil
}
