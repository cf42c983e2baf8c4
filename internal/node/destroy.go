package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
	"dayfly.dev/dayfly/internal/failpoint"
)

// Destroy implements control.Node.
func (m *Manager) Destroy(ctx context.Context, id string) (control.Ending, error) {
	if !dayfly.ValidID(dayfly.PrefixSandbox, id) {
		return control.Ending{}, fmt.Errorf("destroy %.40q: not a sandbox id", id)
	}
	letGo := m.hold(id)
	defer letGo()
	failpoint.Hit("node.destroy.begin")
	if err := m.kill(ctx, id); err != nil {
		return control.Ending{}, err
	}
	failpoint.Hit("node.destroy.killed")
	ended := m.ending(id)
	return ended, m.clear(ctx, id)
}

// kill ends every process of a machine, whether this node knows it or not.
func (m *Manager) kill(ctx context.Context, id string) error {
	b := m.box(id)
	if b == nil {
		return m.reclaimDrivers(ctx, id)
	}
	b.mu.Lock()
	b.destroying = true
	b.mu.Unlock()
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

// clear removes what a dead machine leaves: permission and interface, disk, run directory, files. The lease file goes
// last, so that whatever is left by a crash in between still has an owner that the sweep knows.
func (m *Manager) clear(ctx context.Context, id string) error {
	st, stateErr := m.readState(id)
	b := m.box(id)
	if b != nil {
		st, stateErr = b.st, nil
	}
	var errs []error
	step := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s of %s: %w", what, id, err))
		}
	}
	if stateErr == nil && st.Attached {
		step("detach network", m.opt.Network.Detach(ctx, st.Slot, id))
	} else if stateErr != nil {
		step("reclaim network", m.opt.Network.Reclaim(ctx, id))
	}
	failpoint.Hit("node.destroy.network")
	step("remove disk", m.opt.Pool.Remove(ctx, id))
	failpoint.Hit("node.destroy.disk")
	step("remove run directory", os.RemoveAll(m.runDir(id)))
	failpoint.Hit("node.destroy.rundir")
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	step("remove state", m.removeState(id))
	failpoint.Hit("node.destroy.state")
	step("remove lease", m.opt.Leases.Remove(id))
	failpoint.Hit("node.destroy.lease")
	if len(errs) == 0 {
		m.dropBox(id)
		if stateErr == nil {
			m.opt.Slots.Free(st.Slot)
		}
	}
	return errors.Join(errs...)
}
