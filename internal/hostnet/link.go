package hostnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	peerName      = "eth0"
	loopbackIndex = 1 // in every namespace
)

// Settings of the host's end, by their numbers in IFLA_INET_CONF (linux/ip.h, one-based).
const (
	confForwarding      = 1
	confProxyARP        = 3
	confAcceptRedirects = 4
	confSendRedirects   = 6
	confReversePath     = 8
	confSourceRoute     = 9
	confARPAnnounce     = 18
	confARPIgnore       = 19
	confRouteLocalnet   = 26

	addressModeNone = 1 // IN6_ADDR_GEN_MODE_NONE
)

// pair is the veth pair of one sandbox.
type pair struct {
	name          string
	id            string
	gateway       netip.Addr // the host's end
	address       netip.Addr // the sandbox's end
	mtu           uint32
	routeLocalnet bool
}

// create makes the pair with its peer born inside the sandbox, in the fewest calls. The calling thread is locked and in the
// host's namespace when it comes; it may return in the sandbox's. On an error the link may exist: remove it by name.
func (p pair) create(h *host, sandbox *os.File) error {
	outside, err := openRTNL()
	if err != nil {
		return err
	}
	defer outside.close()
	if err := enter(sandbox); err != nil {
		return err
	}
	inside, err := openRTNL()
	if err != nil {
		return err
	}
	defer inside.close()
	if err := setSysctl("net/ipv6/conf/all/disable_ipv6", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err // without IPv6 in the kernel there is nothing to turn off; "all" counts for interfaces that come later too
	}
	index, err := p.createLinks(outside, sandbox)
	if err != nil {
		return err
	}
	if err := p.configureInside(inside); err != nil {
		return err
	}
	if err := enter(h.ns); err != nil {
		return err
	}
	err = setSysctl("net/ipv6/conf/"+p.name+"/disable_ipv6", "1")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := p.configureOutside(outside, index); err != nil {
		return err
	}
	// The inner end came up first and learns of its carrier from a kernel worker; being asked makes it look now (kernel 6.7),
	// else the first packet may be lost and TCP would wait a second to send it again.
	_, errs := inside.do(getLink(peerName))
	return named("wait for "+peerName+" inside", errs)
}

func (p pair) createLinks(outside *rtnl, sandbox *os.File) (int, error) {
	answers, errs := outside.do(p.newLink(int(sandbox.Fd())), getLink(p.name))
	if errors.Is(errs[0], unix.EEXIST) { // a leftover with the same name
		if _, errs = outside.do(deleteLink(p.name)); errs[0] != nil && !errors.Is(errs[0], unix.ENODEV) {
			return 0, fmt.Errorf("remove leftover link %s: %w", p.name, errs[0])
		}
		answers, errs = outside.do(p.newLink(int(sandbox.Fd())), getLink(p.name))
	}
	if errs[0] != nil {
		return 0, fmt.Errorf("create link %s: %w", p.name, errs[0])
	}
	if errs[1] != nil {
		return 0, fmt.Errorf("find link %s: %w", p.name, errs[1])
	}
	return linkIndex(answers[1])
}

// newLink asks for both ends at once, the inner one in its namespace from birth. Neither can be up before both exist.
func (p pair) newLink(sandboxFD int) *nl.NetlinkRequest {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	peer := data.AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	peer.AddChild(nameAttr(peerName))
	peer.AddChild(numberAttr(unix.IFLA_MTU, p.mtu))
	peer.AddChild(numberAttr(unix.IFLA_NET_NS_FD, uint32(sandboxFD)))
	return request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, nl.NewIfInfomsg(unix.AF_UNSPEC),
		nameAttr(p.name), numberAttr(unix.IFLA_MTU, p.mtu), info)
}

// configureInside gives the sandbox its loopback and its address, with the gateway as its only neighbour, and the default
// route. The way to the gateway is a route and no peer of the address: gVisor removes the address by its plain form when it
// takes it over.
func (p pair) configureInside(inside *rtnl) error {
	answers, errs := inside.do(getLink(peerName))
	if errs[0] != nil {
		return fmt.Errorf("find %s inside: %w", peerName, errs[0])
	}
	index, err := linkIndex(answers[0])
	if err != nil {
		return err
	}
	gateway := p.gateway.As4()
	route := routeHeader(0, unix.RT_SCOPE_UNIVERSE)
	_, errs = inside.do(
		request(unix.RTM_SETLINK, 0, upHeader(loopbackIndex)),
		request(unix.RTM_SETLINK, 0, upHeader(index)),
		newAddress(index, p.address, p.address),
		request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, routeHeader(32, unix.RT_SCOPE_LINK),
			nl.NewRtAttr(unix.RTA_DST, gateway[:]), numberAttr(unix.RTA_OIF, uint32(index))),
		request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, route,
			nl.NewRtAttr(unix.RTA_GATEWAY, gateway[:]), numberAttr(unix.RTA_OIF, uint32(index))))
	return named("configure "+peerName+" inside", errs)
}

// configureOutside closes the host's end against everything but routed IPv4, names its owner, and turns it up. The route
// replaces one of a leftover link that had the same address.
func (p pair) configureOutside(outside *rtnl, index int) error {
	to, from := p.address.As4(), p.gateway.As4()
	_, errs := outside.do(
		request(unix.RTM_SETLINK, 0, upHeader(index), nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(p.id)), p.settings()),
		newAddress(index, p.gateway, p.gateway),
		request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, routeHeader(32, unix.RT_SCOPE_LINK),
			nl.NewRtAttr(unix.RTA_DST, to[:]), nl.NewRtAttr(unix.RTA_PREFSRC, from[:]), numberAttr(unix.RTA_OIF, uint32(index))))
	return named("configure link "+p.name, errs)
}

func (p pair) settings() *nl.RtAttr {
	family := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	conf := family.AddRtAttr(unix.AF_INET, nil).AddRtAttr(unix.IFLA_INET_CONF, nil)
	for _, s := range []struct {
		number int
		value  uint32
	}{
		{confForwarding, 1},
		{confProxyARP, 0},
		{confAcceptRedirects, 0},
		{confSendRedirects, 0},
		{confReversePath, 1},
		{confSourceRoute, 0},
		{confARPAnnounce, 2},
		{confARPIgnore, 1}, // answer for this link's address alone, not for every address of the host
		{confRouteLocalnet, boolNumber(p.routeLocalnet)},
	} {
		conf.AddRtAttr(s.number, nl.Uint32Attr(s.value))
	}
	family.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, nl.Uint8Attr(addressModeNone))
	return family
}

func upHeader(index int) *nl.IfInfomsg {
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index, header.Flags, header.Change = int32(index), unix.IFF_UP, unix.IFF_UP
	return header
}

func boolNumber(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func newAddress(index int, local, peer netip.Addr) *nl.NetlinkRequest {
	header := nl.NewIfAddrmsg(unix.AF_INET)
	header.Index, header.Prefixlen = uint32(index), 32
	l, p := local.As4(), peer.As4()
	return request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, header,
		nl.NewRtAttr(unix.IFA_LOCAL, l[:]), nl.NewRtAttr(unix.IFA_ADDRESS, p[:]))
}

func routeHeader(bits, scope uint8) *nl.RtMsg {
	return &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Dst_len: bits, Table: unix.RT_TABLE_MAIN, Scope: scope,
		Protocol: unix.RTPROT_STATIC, Type: unix.RTN_UNICAST}}
}

// named joins what failed under the name of the step.
func named(step string, errs []error) error {
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	return nil
}

// setSysctl writes a network setting of the calling thread's namespace.
func setSysctl(path, value string) error {
	f, err := os.OpenFile("/proc/sys/"+path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open setting: %w", err)
	}
	defer f.Close()
	if _, err := f.WriteString(value); err != nil {
		return fmt.Errorf("set %s: %w", path, err)
	}
	return nil
}
