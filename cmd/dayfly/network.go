package main

import (
	"context"
	"fmt"
	"net/netip"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/hostnet"
)

// runRoot is the host-wide directory of everything that must not outlive a boot.
const runRoot = "/run/dayfly"

// network adapts hostnet to what the node asks for.
type network struct{ *hostnet.Network }

// List implements node.Network.
func (n network) List(ctx context.Context) ([]string, error) {
	found, err := n.Network.List(ctx)
	return networkOwners(found), err
}

// Reclaim implements node.Network.
func (n network) Reclaim(ctx context.Context, id string) error { return n.Network.Reclaim(ctx, id) }

func networkOwners(found []hostnet.Found) []string {
	var ids []string
	for _, f := range found {
		if f.ID != "" {
			ids = append(ids, f.ID)
		}
	}
	return ids
}

// networkOptions are hostnet's options for a block of addresses.
func networkOptions(cfg config, installation string, block int) (hostnet.Options, error) {
	o := hostnet.Options{Installation: installation, Block: block, StateDir: runRoot}
	if cfg.Network.Range != "" {
		r, err := netip.ParsePrefix(cfg.Network.Range)
		if err != nil {
			return o, fmt.Errorf("network.range %q is not a CIDR like %s", cfg.Network.Range, hostnet.RangeDefault)
		}
		o.Range = r.Masked()
	}
	allow, err := cfg.allowPrivate()
	o.AllowPrivate = allow
	return o, err
}

// networkFree tells whether a block's addresses collide with a route of the host.
func networkFree(o hostnet.Options) (bool, error) {
	err := hostnet.CheckBlock(o)
	if dayfly.ErrorCode(err) == dayfly.CodeConflict {
		return false, nil
	}
	return err == nil, err
}
