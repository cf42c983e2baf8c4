package hostnet_test

import (
	"encoding/binary"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// framer sends frames of any form out of a sandbox, as its root can where packet sockets are allowed.
type framer struct {
	t        *testing.T
	fd       int
	eth0     netlink.Link
	own, far net.HardwareAddr
}

func newFramer(t *testing.T, w *world, b box) framer {
	t.Helper()
	handle := handleAt(t, b.ns)
	eth0, err := handle.LinkByName("eth0")
	must(t, err)
	if got, err := get(b.ns, internet); err != nil { // the control, which also makes the gateway's hardware address known
		t.Fatalf("control: %q, %v", got, err)
	}
	f := framer{t: t, fd: -1, eth0: eth0, own: eth0.Attrs().HardwareAddr}
	near, err := handle.NeighList(eth0.Attrs().Index, unix.AF_INET)
	must(t, err)
	for _, n := range near {
		if n.IP.String() == w.gatewayOf(b) {
			f.far = n.HardwareAddr
		}
	}
	if f.far == nil {
		t.Fatalf("the gateway has no hardware address: %v", near)
	}
	must(t, in(b.ns, func() (err error) {
		f.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	t.Cleanup(func() { _ = unix.Close(f.fd) })
	return f
}

// send sends a frame: hardware destination, what stands between the addresses and the content (a type, or tags and a type), and
// the content.
func (f framer) send(to net.HardwareAddr, kind []byte, content []byte) {
	f.t.Helper()
	frame := append(append(append(append([]byte{}, to...), f.own...), kind...), content...)
	must(f.t, unix.Sendto(f.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: f.eth0.Attrs().Index, Halen: 6}))
}

// datagram is an IPv4 packet with a UDP datagram for the public server, with options in its head.
func datagram(source, text string, options ...byte) []byte {
	const udpHead, port, lifetime = 8, 9999, 64
	head := make([]byte, 20, 60)
	head = append(head, options...)
	head[0] = 4<<4 | byte(len(head)/4)
	binary.BigEndian.PutUint16(head[2:], uint16(len(head)+udpHead+len(text)))
	head[8], head[9] = lifetime, unix.IPPROTO_UDP
	copy(head[12:], net.ParseIP(source).To4())
	copy(head[16:], net.ParseIP(internet).To4())
	sum := uint32(0)
	for i := 0; i < len(head); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(head[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(head[10:], ^uint16(sum))
	udp := make([]byte, udpHead)
	binary.BigEndian.PutUint16(udp, port)
	binary.BigEndian.PutUint16(udp[2:], port)
	binary.BigEndian.PutUint16(udp[4:], uint16(udpHead+len(text)))
	return append(append(head, udp...), text...)
}

// claim is an ARP packet that says that an address is at this hardware address. A request asks the gateway at the same time.
func claim(own net.HardwareAddr, operation uint16, address, target string) []byte {
	b := []byte{0, 1, 8, 0, 6, 4}
	b = binary.BigEndian.AppendUint16(b, operation)
	b = append(append(b, own...), net.ParseIP(address).To4()...)
	return append(append(b, 0, 0, 0, 0, 0, 0), net.ParseIP(target).To4()...)
}

// TestFrames plays a hostile root inside that writes its frames itself: forged sources in frames that the rules might not look
// into, and claims to be others.
func TestFrames(t *testing.T) {
	w := newWorld(t)
	w.open()
	a, b := w.sandbox(), w.sandbox()
	// The kernel's own check of the way back is off, so that the rules alone are tested.
	must(t, in(w.host, func() error {
		return exec.Command("sh", "-c", "for i in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $i; done").Run()
	}))
	f := newFramer(t, w, a)
	arrived := w.countPackets()
	everybody := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	ip4, vlan, service := []byte{8, 0}, []byte{0x81, 0, 0, 0}, []byte{0x88, 0xa8, 0, 0}
	other, own := w.addressOfBox(b), w.addressOfBox(a)
	looseRoute := []byte{1, 131, 7, 4, 172, 20, 0, 9}
	for _, tt := range []struct {
		name    string
		to      net.HardwareAddr
		kind    []byte
		content []byte
	}{
		{"forged source", f.far, ip4, datagram(other, "forged")},
		{"forged source to everybody", everybody, ip4, datagram(other, "forged")},
		{"source of loopback", f.far, ip4, datagram("127.0.0.1", "forged")},
		{"source of the host", f.far, ip4, datagram(hostPublic, "forged")},
		{"source of nobody", f.far, ip4, datagram("0.0.0.0", "forged")},
		{"source of a group", f.far, ip4, datagram("224.0.0.1", "forged")},
		{"forged source in a VLAN", f.far, append(vlan, ip4...), datagram(other, "forged")},
		{"forged source in two VLANs", f.far, append(append(service, vlan...), ip4...), datagram(other, "forged")},
		{"a route of its own choice", f.far, ip4, datagram(own, "forged", looseRoute...)},
		{"too short", f.far, ip4, datagram(other, "forged")[:12]},
		{"no packet at all", f.far, ip4, []byte(strings.Repeat("\xff", 64))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f.send(tt.to, tt.kind, tt.content)
			f.send(f.far, ip4, datagram(own, "own")) // the control
			if got := arrived(); got != "own" {      // they went in order
				t.Errorf("a packet %q arrived outside first", got)
			}
		})
	}
	t.Run("claims to be others", func(t *testing.T) {
		const request, reply = 1, 2
		arp := []byte{8, 6}
		for _, address := range []string{other, w.gatewayOf(b), w.gatewayOf(a), router, hostPublic, internet} {
			for _, operation := range []uint16{request, reply} {
				f.send(everybody, arp, claim(f.own, operation, address, address))
				f.send(f.far, arp, claim(f.own, operation, address, w.gatewayOf(a)))
			}
		}
		for range 3 {
			if got, err := get(b.ns, internet); err != nil || !strings.HasPrefix(got, "outside") {
				t.Fatalf("the neighbour's connection after them: %q, %v", got, err)
			}
		}
		if got, err := get(w.host, internet); err != nil || !strings.HasPrefix(got, "outside") {
			t.Errorf("the host's connection after them: %q, %v", got, err)
		}
	})
}
