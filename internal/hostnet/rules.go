package hostnet

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	tablePrefix   = "dayfly_"
	setSandboxes  = "sandboxes"
	setAllowed    = "allowed"
	setPrivate    = "private"
	mapUpstreams  = "upstreams"
	setFlows      = "flows"
	chainFrom     = "from_sandbox"
	chainOut      = "forward_out"
	chainIn       = "forward_in"
	chainLocalIn  = "local_in"
	chainLocalOut = "local_out"
	chainRefuse   = "refuse"

	priorityBeforeNAT = -150 // after connection tracking, before any translation
	socketBufferBytes = 8 << 20
)

// private lists every range that is not the public internet. Documentation ranges are missing on purpose: they are
// unroutable in the world and stand for public addresses in tests.
var private = [...]string{
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
}

// bigBuffers makes room for a whole table in one batch and for its acknowledgements.
func bigBuffers(c *netlink.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBufferBytes)
		if failed == nil {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBufferBytes)
		}
	})
	if err != nil {
		return err
	}
	return failed
}

// ruleset is the installation's table as it should be.
type ruleset struct {
	prefix  string // of our links
	block   netip.Prefix
	table   *nftables.Table
	boxes   *nftables.Set // interface . address of each sandbox
	allowed *nftables.Set
	private *nftables.Set
	flows   *nftables.Set // address of a sandbox, with the number of its flows
	dns     *nftables.Set // last two bits of the address asked → upstream
	rules   map[string]int
}

func newRuleset(installation string, block netip.Prefix) *ruleset {
	t := &nftables.Table{Name: tablePrefix + installation, Family: nftables.TableFamilyINet}
	boxKey := nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr)
	return &ruleset{
		prefix: installationPrefix(installation),
		block:  block,
		table:  t,
		// Ids are given here, unique within the table, because the library's own counter is shared and unguarded.
		boxes:   &nftables.Set{ID: 1, Table: t, Name: setSandboxes, KeyType: boxKey, Concatenation: true},
		allowed: &nftables.Set{ID: 2, Table: t, Name: setAllowed, KeyType: nftables.TypeIPAddr, Interval: true},
		private: &nftables.Set{ID: 3, Table: t, Name: setPrivate, KeyType: nftables.TypeIPAddr, Interval: true},
		dns: &nftables.Set{ID: 4, Table: t, Name: mapUpstreams, KeyType: nftables.TypeIPAddr, IsMap: true,
			DataType: nftables.TypeIPAddr},
		flows: &nftables.Set{ID: 5, Table: t, Name: setFlows, KeyType: nftables.TypeIPAddr, Dynamic: true, Size: Slots},
	}
}

// install replaces the whole table in one transaction: at no moment is there half of it. boxes are carried over.
func (r *ruleset) install(c *nftables.Conn, o Options, boxes []nftables.SetElement, upstreams []netip.Addr) error {
	c.AddTable(r.table)
	c.DelTable(r.table)
	c.AddTable(r.table)
	forbidden := []netip.Prefix{o.Range}
	for _, p := range private {
		forbidden = append(forbidden, netip.MustParsePrefix(p))
	}
	if err := r.addSets(c, forbidden, o.AllowPrivate, boxes, upstreams); err != nil {
		return fmt.Errorf("prepare table %s: %w", r.table.Name, err)
	}
	r.rules = make(map[string]int)
	r.addRegularChains(c, o.FlowsMax)
	r.addBaseChains(c)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("install table %s: %w", r.table.Name, err)
	}
	return nil
}

func (r *ruleset) addSets(c *nftables.Conn, forbidden, allowed []netip.Prefix, boxes []nftables.SetElement, upstreams []netip.Addr) error {
	if err := c.AddSet(r.boxes, nil); err != nil {
		return err
	}
	for len(boxes) > 0 { // one attribute holds 64 KiB at most
		n := min(len(boxes), elementsPerMessage)
		if err := c.SetAddElements(r.boxes, boxes[:n]); err != nil {
			return err
		}
		boxes = boxes[n:]
	}
	if err := c.AddSet(r.allowed, intervals(allowed)); err != nil {
		return err
	}
	if err := c.AddSet(r.private, intervals(forbidden)); err != nil {
		return err
	}
	if err := c.AddSet(r.flows, nil); err != nil {
		return err
	}
	return c.AddSet(r.dns, upstreamElements(upstreams))
}

// intervals turns prefixes into the elements of an interval set: first address, and the one after the last.
func intervals(prefixes []netip.Prefix) []nftables.SetElement {
	var elements []nftables.SetElement
	for i, p := range prefixes {
		if contained(p, prefixes[:i], prefixes[i+1:]) {
			continue
		}
		from := p.Addr().As4()
		elements = append(elements, nftables.SetElement{Key: from[:]})
		if end := offset(p.Addr(), 1<<(32-p.Bits())); p.Addr().Less(end) { // else it reaches the end of all addresses
			after := end.As4()
			elements = append(elements, nftables.SetElement{Key: after[:], IntervalEnd: true})
		}
	}
	return elements
}

// contained tells whether another prefix covers p. Of equal ones the first stays.
func contained(p netip.Prefix, before, after []netip.Prefix) bool {
	for _, q := range before {
		if q.Bits() <= p.Bits() && q.Contains(p.Addr()) {
			return true
		}
	}
	for _, q := range after {
		if q.Bits() < p.Bits() && q.Contains(p.Addr()) {
			return true
		}
	}
	return false
}

// add appends a rule and counts it, so that a check can tell whether somebody took rules away.
func (r *ruleset) add(c *nftables.Conn, chain *nftables.Chain, parts ...match) {
	c.AddRule(&nftables.Rule{Table: r.table, Chain: chain, Exprs: join(parts...)})
	r.rules[chain.Name]++
}

// addRegularChains adds the verdicts. Every path ends here in accept, drop or refuse.
func (r *ruleset) addRegularChains(c *nftables.Conn, flowsMax int) {
	chain := func(name string) *nftables.Chain { return c.AddChain(&nftables.Chain{Name: name, Table: r.table}) }
	refuse := chain(chainRefuse) // fails fast instead of hanging; the answer is the same whether or not something is there
	r.add(c, refuse, protocol(unix.IPPROTO_TCP), match{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	r.add(c, refuse, match{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}})

	from := chain(chainFrom) // what a sandbox sends, judged by the address that it used
	r.add(c, from, notIPv4(), drop())
	r.add(c, from, unknownSandbox(expr.MetaKeyIIFNAME, sourceOffset, r.boxes), drop())
	r.add(c, from, invalid(), drop()) // would leave untranslated
	r.add(c, from, established(), accept())
	r.add(c, from, tooManyFlows(r.flows, flowsMax), continueIn(chainRefuse))
	r.add(c, from, destinationIn(r.block), protocol(unix.IPPROTO_UDP), portDNS(), accept())
	r.add(c, from, destinationIn(r.block), protocol(unix.IPPROTO_TCP), portDNS(), accept())
	r.add(c, from, destinationLocal(), continueIn(chainRefuse))
	r.add(c, from, destinationInSet(r.allowed), accept())
	r.add(c, from, destinationInSet(r.private), continueIn(chainRefuse))

	out := chain(chainOut) // the same again by the address that it really goes to: other tables translate too
	r.add(c, out, notIPv4(), drop())
	r.add(c, out, toLinks(linkPrefix), continueIn(chainRefuse)) // any sandbox of any installation
	r.add(c, out, established(), accept())
	r.add(c, out, translatedDNS(), sentTo(r.block), accept())
	r.add(c, out, destinationInSet(r.allowed), accept())
	r.add(c, out, destinationInSet(r.private), continueIn(chainRefuse))

	in := chain(chainIn) // what others send to a sandbox
	r.add(c, in, notIPv4(), drop())
	r.add(c, in, unknownSandbox(expr.MetaKeyOIFNAME, destinationOffset, r.boxes), drop())
	r.add(c, in, established(), accept())
	r.add(c, in, drop())

	localIn := chain(chainLocalIn) // what reaches the host itself: DNS behind a loopback resolver
	r.add(c, localIn, notIPv4(), drop())
	r.add(c, localIn, translatedDNS(), sentTo(r.block), accept())
	r.add(c, localIn, continueIn(chainRefuse))

	localOut := chain(chainLocalOut) // what the host sends: answers and ICMP errors only
	r.add(c, localOut, notIPv4(), drop())
	r.add(c, localOut, established(), accept())
	r.add(c, localOut, continueIn(chainRefuse))
}

// addBaseChains hooks the verdicts into the kernel, for our links only: other traffic is never judged here.
func (r *ruleset) addBaseChains(c *nftables.Conn) {
	base := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority nftables.ChainPriority) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Name: name, Table: r.table, Type: kind, Hooknum: hook, Priority: &priority})
	}
	filter, nat := nftables.ChainTypeFilter, nftables.ChainTypeNAT
	prerouting := base("prerouting", filter, nftables.ChainHookPrerouting, priorityBeforeNAT)
	r.add(c, prerouting, fromLinks(r.prefix), continueIn(chainFrom))
	forward := base("forward", filter, nftables.ChainHookForward, *nftables.ChainPriorityFilter)
	r.add(c, forward, fromLinks(r.prefix), continueIn(chainOut))
	r.add(c, forward, toLinks(r.prefix), continueIn(chainIn))
	input := base("input", filter, nftables.ChainHookInput, *nftables.ChainPriorityFilter)
	r.add(c, input, fromLinks(r.prefix), continueIn(chainLocalIn))
	output := base("output", filter, nftables.ChainHookOutput, *nftables.ChainPriorityFilter)
	r.add(c, output, toLinks(r.prefix), continueIn(chainLocalOut))

	dns := base("dns", nat, nftables.ChainHookPrerouting, *nftables.ChainPriorityNATDest)
	for _, p := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		r.add(c, dns, fromLinks(r.prefix), ipv4(), destinationIn(r.block), protocol(p), portDNS(), match{
			loadAddress(reg1, destinationOffset),
			&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: addressBytes,
				Mask: []byte{0, 0, 0, 3}, Xor: make([]byte, addressBytes)},
			&expr.Lookup{SourceRegister: reg1, DestRegister: reg1, IsDestRegSet: true, SetName: r.dns.Name, SetID: r.dns.ID},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg1},
		})
	}
	loopback := base("dns_loopback", nat, nftables.ChainHookInput, *nftables.ChainPriorityNATSource)
	r.add(c, loopback, fromLinks(r.prefix), ipv4(), translatedDNS(), sentTo(r.block),
		destinationIn(netip.MustParsePrefix("127.0.0.0/8")), match{
			&expr.Immediate{Register: reg1, Data: []byte{127, 0, 0, 1}}, // stub resolvers answer local clients only
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg1},
		})
	masquerade := base("masquerade", nat, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource)
	r.add(c, masquerade, ipv4(), sourceIn(r.block), notToLinks(linkPrefix), match{&expr.Masq{}})
}

// whole tells whether the table in the kernel has every rule that install put there.
func (r *ruleset) whole(h *host, c *nftables.Conn) (bool, error) {
	if r.rules == nil {
		return false, nil
	}
	chains, err := c.ListChainsOfTableFamily(r.table.Family)
	if err != nil {
		return false, fmt.Errorf("list chains: %w", err)
	}
	found := 0
	for _, chain := range chains {
		if chain.Table.Name != r.table.Name {
			continue
		}
		rules, err := h.dumpRules(r.table, chain.Name)
		if err != nil {
			return false, err
		}
		if len(rules) != r.rules[chain.Name] {
			return false, nil
		}
		found++
	}
	return found == len(r.rules), nil
}

func comment(text string) []byte { return userdata.AppendString(nil, userdata.TypeComment, text) }

func upstreamElements(upstreams []netip.Addr) []nftables.SetElement {
	if len(upstreams) == 0 {
		return nil
	}
	var elements []nftables.SetElement
	for i, last := range resolverSuffixes {
		to := upstreams[min(i, len(upstreams)-1)].As4()
		elements = append(elements, nftables.SetElement{Key: binaryutil.BigEndian.PutUint32(uint32(last)), Val: to[:]})
	}
	return elements
}
