package node

import (
	"context"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
)

// Renew implements control.Node.
func (m *Manager) Renew(ctx context.Context, id string, lease dayfly.Lease) error {
	b := m.box(id)
	if b == nil {
		return gone(id)
	}
	if err := m.opt.Leases.Alive(); err != nil {
		return err
	}
	if err := m.opt.Leases.Renew(ctx, id, lease); err != nil {
		if dayfly.ErrorCode(err) == dayfly.CodeGone {
			return gone(id).WithCause(err)
		}
		return err
	}
	failpoint.Hit("node.renew.settled")
	select {
	case <-b.inst.Done():
		return gone(id)
	default:
	}
	// The agent's clock is the third and last; it reads the grant again before it fires, so this file is all it needs.
	if err := m.writeGrant(lease, id); err != nil {
		m.opt.Log.Error("tell the agent of a longer lease", "sandbox", id, "error", err)
	}
	failpoint.Hit("node.renew.granted")
	b.renewed(lease)
	return nil
}

// Expire implements control.Node.
func (m *Manager) Expire(ctx context.Context, id string) (dayfly.Lease, bool, error) {
	lease, ended, err := m.opt.Leases.End(ctx, id)
	if dayfly.ErrorCode(err) == dayfly.CodeNotFound { // no lease file: nothing may live
		letGo, err := m.hold(ctx, id)
		if err != nil {
			return lease, false, err
		}
		defer letGo()
		return lease, true, m.kill(ctx, id)
	}
	return lease, ended, err
}
