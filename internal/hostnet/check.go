package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"

	"dayfly.dev/dayfly"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Finding is one thing that a check of the host found.
type Finding struct {
	Name string
	OK   bool
	Text string // one sentence
	Fix  string // what to do, or empty
}

// Check tells whether this host can run the network, for doctor. It tries the whole table and a pair of links in a network
// namespace of its own that disappears with it, and changes nothing on the host. Only Netns, Range, Block, ResolvConf and
// SystemdResolvConf of the options matter.
func Check(ctx context.Context, options Options) ([]Finding, error) {
	options.Installation = "doctor"
	options, err := options.filled()
	if err != nil {
		return nil, err
	}
	h, err := openHost(options.Netns)
	if err != nil {
		return nil, err
	}
	defer h.close()
	findings := []Finding{checkKernel(options)}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	findings = append(findings, checkForeign(h)...)
	findings = append(findings, checkLegacy(h), checkResolvers(options), checkRoute(h), checkOverlap(h, options))
	return findings, nil
}

// checkKernel builds everything once on a thread that is thrown away together with its namespace.
func checkKernel(o Options) Finding {
	f := Finding{Name: "nftables and veth", OK: true, Text: "The kernel takes every rule and link that sandboxes need."}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		result <- tryAll(o)
	}()
	if err := <-result; err != nil {
		f.OK, f.Text = false, "Sandboxes can have no network: "+err.Error()+"."
		f.Fix = "use a kernel with nftables (inet family, NAT, fib, reject, connlimit) and veth, and run as root"
	}
	return f
}

func tryAll(o Options) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(bigBuffers))
	if err != nil {
		return fmt.Errorf("open nftables socket: %w", err)
	}
	defer conn.CloseLasting()
	if err := newRuleset(o.Installation, Block(o.Range, o.Block)).install(conn, o, nil, nil); err != nil {
		return err
	}
	if err := forgetConnections(netip.Addr{}, func(netip.Addr) bool { return false }); err != nil {
		return err
	}
	r, err := openRTNL()
	if err != nil {
		return err
	}
	defer r.close()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer own.Close()
	_, errs := r.do(pair{name: "dfdoctor", mtu: mtuFallback}.newLink(int(own.Fd())))
	return named("create veth pair", errs)
}

func checkForeign(h *host) []Finding {
	conn, err := h.nftables()
	if err == nil {
		defer conn.CloseLasting()
		var chains []*nftables.Chain
		if chains, err = dropChains(h, conn); err == nil {
			return describeForeign(chains)
		}
	}
	return []Finding{{Name: "other firewalls", Text: "The firewall could not be read: " + err.Error() + ".", Fix: "run as root"}}
}

func describeForeign(chains []*nftables.Chain) []Finding {
	var found []Finding
	for _, c := range chains {
		if *c.Hooknum == *nftables.ChainHookForward {
			found = append(found, Finding{Name: "other firewalls", OK: true, Text: fmt.Sprintf(
				"Table %s drops forwarded packets in chain %s: Dayfly keeps accept rules for its own links there.",
				tableName(c.Table), c.Name)})
		}
	}
	if found == nil {
		found = []Finding{{Name: "other firewalls", OK: true, Text: "No other table drops forwarded packets."}}
	}
	return found
}

// checkLegacy looks for the old packet filter, whose rules nftables neither shows nor changes.
func checkLegacy(h *host) Finding {
	f := Finding{Name: "legacy iptables", OK: true, Text: "The old iptables kernel tables are not in use."}
	var names []byte
	err := h.run(func() (err error) {
		names, err = os.ReadFile("/proc/thread-self/net/ip_tables_names")
		return err
	})
	if err == nil && strings.Contains(string(names), "filter") {
		f.Text = "The old iptables filter table is in use and may drop packets of sandboxes unseen."
		f.Fix = "switch to iptables-nft (update-alternatives --set iptables /usr/sbin/iptables-nft), or accept df+ in its FORWARD chain"
		f.OK = false
	}
	return f
}

func checkResolvers(o Options) Finding {
	up := findUpstreams(o)
	if len(up.addrs) == 0 {
		return Finding{Name: "resolver", Text: "The host names no IPv4 resolver, so names do not resolve inside sandboxes.",
			Fix: "name an IPv4 resolver in " + o.ResolvConf}
	}
	var names []string
	for _, a := range up.addrs {
		names = append(names, a.String())
	}
	return Finding{Name: "resolver", OK: true, Text: "Sandboxes resolve names through " + strings.Join(names, ", ") + "."}
}

func checkRoute(h *host) Finding {
	f := Finding{Name: "default route", Text: "The host has no IPv4 default route, so sandboxes reach no internet.",
		Fix: "add a default route"}
	routes, err := hostRoutes(h)
	if err != nil {
		f.Text = "Routes could not be read: " + err.Error() + "."
		return f
	}
	for _, r := range routes {
		if defaultRoute(r) {
			return Finding{Name: "default route", OK: true, Text: "The host has an IPv4 default route."}
		}
	}
	return f
}

func checkOverlap(h *host, o Options) Finding {
	if err := checkBlock(h, o, linkPrefix); err != nil { // a running installation's own links are no fault
		return Finding{Name: "network.range", Text: err.Error() + ".", Fix: dayfly.AsError(err).Hint}
	}
	return Finding{Name: "network.range", OK: true, Text: fmt.Sprintf("No route of the host overlaps %s.", Block(o.Range, o.Block))}
}

// CheckBlock tells whether the options' block is free of the host's own routes and addresses: CodeConflict when it is not,
// so that the caller can try the next one before it opens the network.
func CheckBlock(options Options) error {
	options, err := options.filled()
	if err != nil {
		return err
	}
	h, err := openHost(options.Netns)
	if err != nil {
		return err
	}
	defer h.close()
	return checkBlock(h, options, installationPrefix(options.Installation))
}

// checkBlock looks for overlaps, routes over links whose names begin with ours aside.
func checkBlock(h *host, o Options, ours string) error {
	links, err := linksNamed(h, ours) // first: one that goes meanwhile must not make its route look foreign
	if err != nil {
		return err
	}
	routes, err := hostRoutes(h)
	if err != nil {
		return err
	}
	mine := make(map[int]bool)
	for _, l := range links {
		mine[l.Attrs().Index] = true
	}
	block := Block(o.Range, o.Block)
	for _, r := range routes {
		if defaultRoute(r) || r.Dst == nil || mine[r.LinkIndex] {
			continue
		}
		bits, _ := r.Dst.Mask.Size()
		addr, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		if ok && bits > 0 && netip.PrefixFrom(addr, bits).Overlaps(block) {
			return dayfly.Errorf(dayfly.CodeConflict, "the sandbox addresses %s overlap the host's route %s", block, r.Dst).
				WithHint("choose another network.range, a prefix of /%d or shorter that no route of the host overlaps", blockBits)
		}
	}
	return nil
}

// hostRoutes are the IPv4 routes of all tables, among them one for each address.
func hostRoutes(h *host) ([]netlink.Route, error) {
	handle, err := h.netlink()
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	routes, err := handle.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return routes, nil
}

func defaultRoute(r netlink.Route) bool {
	if r.Type != unix.RTN_UNICAST || r.LinkIndex == 0 && len(r.MultiPath) == 0 {
		return false
	}
	if r.Dst == nil {
		return true
	}
	bits, _ := r.Dst.Mask.Size()
	return bits == 0
}
