package hostnet

import (
	"bufio"
	"bytes"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
)

const (
	resolvConfBytes = 64 << 10 // read of a resolver configuration at most
	resolversMax    = 3        // as in every C library
)

// resolverSuffixes are the last bits of the addresses of a slot that answer DNS, in order of preference: the gateway, then
// the two that neither end uses. Each stands for one upstream, so a program's own resolver goes to the next when one is dead.
var resolverSuffixes = [resolversMax]byte{1, 3, 0}

// upstreams are the resolvers that the host itself uses.
type upstreams struct {
	addrs    []netip.Addr // up to resolversMax; none means that no usable one was found
	loopback bool         // they listen on the host's loopback only
}

func (u upstreams) equal(other upstreams) bool {
	return u.loopback == other.loopback && slices.Equal(u.addrs, other.addrs)
}

// findUpstreams reads the host's configuration: its own resolvers, or what systemd-resolved forwards to, or the resolver
// that listens on loopback.
func findUpstreams(o Options) upstreams {
	real, stubs := splitLoopback(readResolvConf(o.ResolvConf))
	if len(real) > 0 {
		return upstreams{addrs: real}
	}
	if behind, _ := splitLoopback(readResolvConf(o.SystemdResolvConf)); len(behind) > 0 {
		return upstreams{addrs: behind}
	}
	return upstreams{addrs: stubs, loopback: len(stubs) > 0}
}

func splitLoopback(all []netip.Addr) (real, stubs []netip.Addr) {
	for _, a := range all {
		if a.IsLoopback() {
			stubs = append(stubs, a)
		} else {
			real = append(real, a)
		}
	}
	return limit(real), limit(stubs)
}

func limit(a []netip.Addr) []netip.Addr { return a[:min(len(a), resolversMax)] }

func readResolvConf(path string) []netip.Addr {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, resolvConfBytes))
	if err != nil {
		return nil
	}
	return ParseResolvConf(text)
}

// ParseResolvConf gives the IPv4 name servers that a resolv.conf names, each once, in order. IPv6 ones are left out: an
// IPv4 packet cannot be translated to them.
func ParseResolvConf(text []byte) []netip.Addr {
	var found []netip.Addr
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, resolvConfBytes+1)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		a, err := netip.ParseAddr(fields[1])
		if err != nil {
			continue
		}
		a = a.Unmap()
		if !a.Is4() || a.IsMulticast() || slices.Contains(found, a) {
			continue
		}
		if a.IsUnspecified() {
			a = netip.AddrFrom4([4]byte{127, 0, 0, 1}) // this is what it means to every resolver
		}
		found = append(found, a)
	}
	return found
}
