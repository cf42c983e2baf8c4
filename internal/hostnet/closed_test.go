package hostnet_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestAllowPrivate(t *testing.T) {
	w := newWorld(t)
	w.options.AllowPrivate = []netip.Prefix{
		netip.MustParsePrefix("172.20.0.0/24"), netip.MustParsePrefix("172.20.0.8/29"), netip.MustParsePrefix("10.0.0.0/8"),
	}
	w.open()
	a, b := w.sandbox(), w.sandbox()
	w.serve(b.ns, "sandbox")
	for _, target := range []string{"172.20.0.9", resolver} {
		if got, err := get(a.ns, target); err != nil || !strings.HasPrefix(got, "outside") {
			t.Errorf("opened %s: %q, %v", target, got, err)
		}
	}
	for name, target := range map[string]string{
		"not opened": "192.168.77.2", "host": hostPublic, "gateway": w.gatewayOf(a), "sandbox inside an opened range": w.addressOfBox(b),
	} {
		if got, err := get(a.ns, target); !refused(err) {
			t.Errorf("%s %s: %q, %v, want it refused", name, target, got, err)
		}
	}
}

func TestSandboxesApart(t *testing.T) {
	w := newWorld(t)
	w.open()
	other := *w
	other.options.Installation, other.options.Block = dayfly.NewInstallation(), w.options.Block+1
	other.open()
	a, b, c := w.sandbox(), w.sandbox(), other.sandbox()
	for name, target := range map[string]struct {
		box     box
		address string
	}{"same installation": {b, w.addressOfBox(b)}, "other installation": {c, other.addressOfBox(c)}} {
		t.Run(name, func(t *testing.T) {
			w.serve(target.box.ns, "sandbox")
			if got, err := get(target.box.ns, target.address); err != nil || !strings.HasPrefix(got, "sandbox") {
				t.Fatalf("control from itself: %q, %v", got, err)
			}
			if got, err := get(a.ns, target.address); !refused(err) {
				t.Errorf("from another sandbox: %q, %v, want it refused", got, err)
			}
		})
	}
}

func TestInbound(t *testing.T) {
	w := newWorld(t)
	w.open()
	b := w.sandbox()
	w.serve(b.ns, "sandbox")
	target := w.addressOfBox(b)
	if _, err := get(b.ns, target); err != nil {
		t.Fatalf("control from itself: %v", err)
	}
	must(t, handleAt(t, w.outside).RouteAdd(&netlink.Route{Dst: prefix(t, "10.212.0.0/14"), Gw: net.ParseIP(hostPublic)}))
	if got, err := get(w.outside, w.gatewayOf(b)); err != nil || !strings.HasPrefix(got, "host") {
		t.Fatalf("control: the route from outside: %q, %v", got, err)
	}
	if got, err := get(w.outside, target); err == nil {
		t.Errorf("from outside: %q, want silence", got)
	}
	if got, err := get(w.host, target); !refused(err) {
		t.Errorf("from the host: %q, %v, want it refused", got, err)
	}
}

// TestSpoofing plays a hostile root inside that gives itself other addresses.
func TestSpoofing(t *testing.T) {
	w := newWorld(t)
	w.open()
	a, b := w.sandbox(), w.sandbox()
	handle := handleAt(t, a.ns)
	// The kernel's own check of the way back is off, so that the rules alone are tested.
	must(t, in(w.host, func() error {
		return exec.Command("sh", "-c", "for i in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $i; done").Run()
	}))
	arrived := w.countPackets()
	eth0, err := handle.LinkByName("eth0")
	must(t, err)
	for name, source := range map[string]string{
		"another sandbox's": w.addressOfBox(b), "public": "203.0.113.200", "host's": hostPublic, "free in the same slot": w.addressOf(a.slot, 3),
	} {
		t.Run(name, func(t *testing.T) {
			addr, err := netlink.ParseAddr(source + "/32")
			must(t, err)
			must(t, handle.AddrAdd(eth0, addr))
			if got, err := getFrom(a, w.addressOfBox(a), internet); err != nil {
				t.Fatalf("control with its own address: %q, %v", got, err)
			}
			if got, err := getFrom(a, source, internet); err == nil {
				t.Errorf("with a forged source: %q, want silence", got)
			}
			sendFrom(t, a, source, "forged")
			sendFrom(t, a, w.addressOfBox(a), "own")
			if got := arrived(); got != "own" { // they went in order
				t.Errorf("a packet %q arrived outside first", got)
			}
		})
	}
}

func getFrom(b box, source, target string) (text string, err error) {
	err = in(b.ns, func() error {
		d := net.Dialer{Timeout: dialWait, LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
		c, err := d.Dial("tcp4", target+":80")
		if err != nil {
			return err
		}
		buf := make([]byte, 100)
		n, _ := c.Read(buf)
		text = string(buf[:n])
		return c.Close()
	})
	return text, err
}

// countPackets listens on the public server and returns a function that waits for the next packet's text.
func (w *world) countPackets() func() string {
	w.t.Helper()
	var c net.PacketConn
	must(w.t, in(w.outside, func() (err error) {
		c, err = net.ListenPacket("udp4", internet+":9999")
		return err
	}))
	w.t.Cleanup(func() { _ = c.Close() })
	return func() string {
		buf := make([]byte, 100)
		_ = c.SetDeadline(time.Now().Add(dialWait))
		n, _, _ := c.ReadFrom(buf)
		return string(buf[:n])
	}
}

func sendFrom(t *testing.T, b box, source, text string) {
	t.Helper()
	must(t, in(b.ns, func() error {
		c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(source)}, &net.UDPAddr{IP: net.ParseIP(internet), Port: 9999})
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte(text))
		return err
	}))
}

// TestIPv6 plays a hostile root inside that turns IPv6 on again.
func TestIPv6(t *testing.T) {
	w := newWorld(t)
	w.open()
	b := w.sandbox()
	if got, err := get(w.host, outsideV6); err != nil || !strings.HasPrefix(got, "outside") {
		t.Fatalf("control from the host: %q, %v", got, err)
	}
	if got := w.sysctl(b.ns, "net/ipv6/conf/eth0/disable_ipv6"); got != "1" {
		t.Errorf("disable_ipv6 inside is %s", got)
	}
	must(t, in(b.ns, func() error {
		out, err := exec.Command("sh", "-c", `echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6 &&
			ip -6 addr add fd00:1::66/64 dev eth0 nodad && ip -6 route add default dev eth0`).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
	for _, target := range []string{outsideV6, hostV6, "fe80::1%eth0"} {
		if got, err := get(b.ns, target); err == nil {
			t.Errorf("%s answered %q", target, got)
		}
	}
	must(t, in(w.host, func() error { // and not with IPv6 turned on again on the host's end either
		out, err := exec.Command("sh", "-c", `for i in /proc/sys/net/ipv6/conf/df*; do echo 0 > $i/disable_ipv6; done
			echo 1 > /proc/sys/net/ipv6/conf/all/forwarding; ip -6 addr add fd00:9::1/64 dev df`+w.options.Installation+`001`+b.id[len(b.id)-4:]+` nodad`).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
	must(t, in(b.ns, func() error {
		return exec.Command("sh", "-c", "ip -6 addr add fd00:9::2/64 dev eth0 nodad; ip -6 route replace default via fd00:9::1").Run()
	}))
	for _, target := range []string{outsideV6, hostV6, "fd00:9::1"} {
		if got, err := get(b.ns, target); err == nil {
			t.Errorf("%s answered %q although every IPv6 packet must be dropped", target, got)
		}
	}
}

// TestForeignTranslation: another program publishes a private server on the host's address, as container engines do.
func TestForeignTranslation(t *testing.T) {
	w := newWorld(t)
	w.open()
	b := w.sandbox()
	w.nft("add table ip engine; add chain ip engine pre { type nat hook prerouting priority -110; };" +
		"add rule ip engine pre ip daddr 203.0.113.50 dnat to 172.20.0.9")
	defer w.nft("delete table ip engine")
	if got, err := get(b.ns, "203.0.113.50"); !refused(err) {
		t.Errorf("a public address that leads to a private one: %q, %v, want it refused", got, err)
	}
}

func TestDetachCuts(t *testing.T) {
	w := newWorld(t)
	n := w.open()
	b, other := w.sandbox(), w.sandbox()
	arrived := w.countPackets()
	if _, err := get(b.ns, internet); err != nil {
		t.Fatalf("control before: %v", err)
	}
	must(t, n.Detach(context.Background(), b.slot, b.id))
	must(t, n.Detach(context.Background(), b.slot, b.id)) // again
	sendFrom(t, b, w.addressOfBox(b), "detached")
	sendFrom(t, other, w.addressOfBox(other), "attached")
	if got := arrived(); got != "attached" {
		t.Errorf("a packet %q arrived outside first", got)
	}
	if got, err := get(b.ns, internet); err == nil {
		t.Errorf("after Detach: %q", got)
	}
	if _, err := get(other.ns, internet); err != nil {
		t.Errorf("another sandbox was cut too: %v", err)
	}
}

// TestReuse: what an ended sandbox's peer still sends must not reach the next owner of its address.
func TestReuse(t *testing.T) {
	w := newWorld(t)
	n := w.open()
	const port = 4444
	var peer *net.UDPConn
	must(t, in(w.outside, func() (err error) {
		peer, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(internet), Port: port})
		return err
	}))
	defer peer.Close()
	listen := func(b box) *net.UDPConn {
		var c *net.UDPConn
		must(t, in(b.ns, func() (err error) {
			c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(w.addressOfBox(b)), Port: port})
			return err
		}))
		return c
	}
	old := w.sandbox()
	c := listen(old)
	_, err := c.WriteToUDP([]byte("hello"), &net.UDPAddr{IP: net.ParseIP(internet), Port: port})
	must(t, err)
	buf := make([]byte, 100)
	must(t, peer.SetDeadline(time.Now().Add(dialWait)))
	_, from, err := peer.ReadFromUDP(buf)
	must(t, err)
	_, err = peer.WriteToUDP([]byte("control"), from)
	must(t, err)
	must(t, c.SetDeadline(time.Now().Add(dialWait)))
	if _, _, err := c.ReadFromUDP(buf); err != nil {
		t.Fatalf("control: the flow's answer to the first owner: %v", err)
	}
	_ = c.Close()
	must(t, n.Detach(context.Background(), old.slot, old.id))
	next := w.detached()
	next.slot = old.slot
	must(t, n.Attach(context.Background(), next.slot, next.id, next.ns))
	c = listen(next)
	defer c.Close()
	_, err = peer.WriteToUDP([]byte("for the first owner"), from)
	must(t, err)
	must(t, c.SetDeadline(time.Now().Add(dialWait)))
	if size, _, err := c.ReadFromUDP(buf); err == nil {
		t.Errorf("the next owner received %q", buf[:size])
	}
	if _, err := get(next.ns, internet); err != nil {
		t.Errorf("the next owner has no network: %v", err)
	}
}

// TestLeftoverSlot: an owner of the slot that was never detached is replaced, its dying link changes nothing.
func TestLeftoverSlot(t *testing.T) {
	w := newWorld(t)
	n := w.open()
	old := w.sandbox()
	next := w.detached()
	next.slot = old.slot
	must(t, n.Attach(context.Background(), next.slot, next.id, next.ns))
	if got, err := get(next.ns, internet); err != nil {
		t.Errorf("the new owner: %q, %v", got, err)
	}
	if _, _, err := lookup(next.ns, "udp", w.gatewayOf(next)); err != nil {
		t.Errorf("the new owner's names: %v", err)
	}
	arrived := w.countPackets()
	sendFrom(t, old, w.addressOfBox(old), "old owner")
	sendFrom(t, next, w.addressOfBox(next), "new owner")
	if got := arrived(); got != "new owner" {
		t.Errorf("a packet of the %q arrived outside first", got)
	}
}

func TestUDPRefusal(t *testing.T) {
	w := newWorld(t)
	w.open()
	b := w.sandbox()
	must(t, in(b.ns, func() error {
		c, err := net.DialTimeout("udp4", "192.168.77.2:9", dialWait)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		if err := c.SetDeadline(time.Now().Add(dialWait)); err != nil {
			return err
		}
		if _, err := c.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), unix.EHOSTUNREACH.Error()) {
			t.Errorf("a closed address answered %v, want %v at once", err, unix.EHOSTUNREACH)
		}
		return nil
	}))
}

func prefix(t *testing.T, s string) *net.IPNet {
	t.Helper()
	_, p, err := net.ParseCIDR(s)
	must(t, err)
	return p
}
