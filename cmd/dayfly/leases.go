package main

import (
	"dayfly.dev/dayfly/internal/node"
	"dayfly.dev/dayfly/internal/warden"
)

// leases adapts the warden's guard to the node's words.
type leases struct{ *warden.Guard }

// Ended implements node.Leases.
func (l leases) Ended(id string) (node.LeaseEnd, bool, error) {
	e, ok, err := l.Guard.Ended(id)
	return node.LeaseEnd{BootID: e.BootID, Boot: e.Boot, Expired: e.Cause == warden.CauseLeaseExpired, Found: e.Cause == warden.CauseFound}, ok, err
}
