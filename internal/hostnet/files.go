package hostnet

import (
	"fmt"
	"strings"
)

// Files are what a sandbox needs in /etc to find names, path → content, to be shown with mode 0644. Without internet its own
// name resolves to a loopback address and no resolver is named. slot is ignored then.
func (n *Network) Files(id string, slot int, internet bool) map[string][]byte {
	if !internet {
		return LoopbackFiles(id)
	}
	n.mu.Lock()
	servers := max(1, len(n.upstreams.addrs))
	n.mu.Unlock()
	var resolv strings.Builder
	base := n.block.Masked().Addr()
	for _, suffix := range resolverSuffixes[:servers] {
		fmt.Fprintf(&resolv, "nameserver %s\n", offset(base, uint32(slot)<<(32-slotBits)+uint32(suffix)))
	}
	return etc(id, address(n.block, slot).String(), resolv.String())
}

// LoopbackFiles are the Files of a sandbox without a network.
func LoopbackFiles(id string) map[string][]byte {
	return etc(id, "127.0.1.1", "# this sandbox has no network\n")
}

// etc names IPv4 addresses only: there is no IPv6 inside, and a localhost of two families splits servers from clients.
func etc(id, address, resolv string) map[string][]byte {
	return map[string][]byte{
		"/etc/hostname":    []byte(id + "\n"),
		"/etc/hosts":       []byte("127.0.0.1 localhost\n" + address + " " + id + "\n"),
		"/etc/resolv.conf": []byte(resolv),
	}
}
