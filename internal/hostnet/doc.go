// Package hostnet connects sandboxes to the outside: one routed veth pair each, and one nftables table per installation
// whose rules are the same for all sandboxes. What differs per sandbox is a single set element (its interface and its address
// together): without it nothing passes in either direction, so a sandbox is closed until Attach has succeeded and from the
// moment Detach begins. Nothing here is on the data path: with the server dead, packets, NAT and DNS go on.
//
// It makes no network namespaces (drivers do), hands out no slots (the node reserves them), filters no domains and forwards
// no DNS itself: the kernel translates port 53 of the gateway address to the host's real resolvers (docs/adr/0003-dns.md).
//
// To open or close one more kind of traffic, add a rule in rules.go and, to world_test.go's world, a target that shows
// both sides: refused from a sandbox, reachable from the host.
package hostnet
