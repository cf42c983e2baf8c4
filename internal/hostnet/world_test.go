package hostnet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/hostnet"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	hostPublic = "198.51.100.2" // the host's own address
	router     = "198.51.100.1"
	internet   = "203.0.113.10" // a public server
	resolver   = "10.99.0.2"    // the host's upstream resolver, on a private address
	hostV6     = "fd00:1::1"
	outsideV6  = "fd00:1::2"

	dialWait = 500 * time.Millisecond // for a connection that is dropped silently; refusals come at once
)

// closedTargets are served like the public server, reachable from the host, and must not be from a sandbox.
var closedTargets = map[string]string{
	"10/8":      resolver,
	"172.16/12": "172.20.0.9",
	"192.168":   "192.168.77.2",
	"100.64/10": "100.64.1.1",
	"metadata":  "169.254.169.254",
	"198.18/15": "198.18.0.9",
	"192.0.0":   "192.0.0.8",
}

// world is a whole host with its surroundings, made of network namespaces that hang together by links of their own.
type world struct {
	t        testing.TB
	host     *os.File
	outside  *os.File
	state    string
	resolv   string
	options  hostnet.Options
	net      *hostnet.Network
	queries  chan string // names that the upstream resolver was asked for
	boxCount int
}

type box struct {
	id   string
	slot int
	ns   *os.File
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
}

func newWorld(t testing.TB) *world {
	t.Helper()
	needRoot(t)
	if t, ok := t.(*testing.T); ok {
		t.Parallel() // every world is on its own
	}
	dir := t.TempDir()
	w := &world{t: t, host: newNS(t), outside: newNS(t), state: filepath.Join(dir, "state"),
		resolv: filepath.Join(dir, "resolv.conf"), queries: make(chan string, 1000)}
	w.writeResolv("nameserver " + resolver + "\n")
	w.options = hostnet.Options{
		Installation: dayfly.NewInstallation(), Block: 3, ResolvConf: w.resolv,
		SystemdResolvConf: filepath.Join(dir, "none"), StateDir: w.state, Netns: w.host,
	}
	for _, ns := range []*os.File{w.host, w.outside} { // new namespaces copy the machine's own setting
		must(t, in(ns, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0) }))
	}
	hostLink, outsideLink := w.link(w.host, "up0", w.outside, "down0")
	w.configure(w.host, hostLink, hostPublic+"/24", hostV6+"/64")
	addresses := []string{router + "/24", internet + "/32", outsideV6 + "/64"}
	for _, a := range closedTargets {
		addresses = append(addresses, a+"/32")
	}
	w.configure(w.outside, outsideLink, addresses...)
	must(t, handleAt(t, w.host).RouteAdd(&netlink.Route{LinkIndex: hostLink, Gw: net.ParseIP(router)}))
	w.serve(w.outside, "outside")
	w.serve(w.host, "host")
	w.serveDNS(w.outside, resolver, internet)
	return w
}

// open starts the network under test and takes it away again at the end, checking that nothing of it stays.
func (w *world) open() *hostnet.Network {
	w.t.Helper()
	n, err := hostnet.Open(context.Background(), w.options)
	must(w.t, err)
	w.net = n
	w.t.Cleanup(func() {
		must(w.t, n.Close())
		must(w.t, hostnet.Remove(context.Background(), w.options))
		w.checkClean()
	})
	return n
}

func (w *world) checkClean() {
	w.t.Helper()
	if rules := w.nft("list", "ruleset"); strings.Contains(rules, w.options.Installation) {
		w.t.Errorf("rules are left after Remove:\n%s", rules)
	}
	links, err := handleAt(w.t, w.host).LinkList()
	must(w.t, err)
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, "df"+w.options.Installation) {
			w.t.Errorf("link %s is left after Remove", l.Attrs().Name)
		}
	}
}

func (w *world) writeResolv(text string) {
	w.t.Helper()
	must(w.t, os.WriteFile(w.resolv+".new", []byte(text), 0o644))
	must(w.t, os.Rename(w.resolv+".new", w.resolv))
}

// sandbox makes a namespace with loopback up and attaches it to the next slot.
func (w *world) sandbox() box {
	w.t.Helper()
	b := w.detached()
	must(w.t, w.net.Attach(context.Background(), b.slot, b.id, b.ns))
	return b
}

func (w *world) detached() box {
	w.t.Helper()
	return box{id: dayfly.NewID(dayfly.PrefixSandbox), slot: w.nextSlot(), ns: newNS(w.t)}
}

// nextSlot gives slots in turn, as the node does.
func (w *world) nextSlot() int {
	w.boxCount++
	return w.boxCount % hostnet.Slots
}

// link makes a veth pair between two namespaces and returns the indexes of its ends.
func (w *world) link(a *os.File, aName string, b *os.File, bName string) (int, int) {
	w.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = aName
	handle := handleAt(w.t, a)
	must(w.t, handle.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: bName, PeerNamespace: netlink.NsFd(b.Fd())}))
	aEnd, err := handle.LinkByName(aName)
	must(w.t, err)
	bEnd, err := handleAt(w.t, b).LinkByName(bName)
	must(w.t, err)
	return aEnd.Attrs().Index, bEnd.Attrs().Index
}

func (w *world) configure(ns *os.File, index int, addresses ...string) {
	w.t.Helper()
	handle := handleAt(w.t, ns)
	link, err := handle.LinkByIndex(index)
	must(w.t, err)
	must(w.t, handle.LinkSetUp(link))
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a)
		must(w.t, err)
		addr.Flags = unix.IFA_F_NODAD
		must(w.t, handle.AddrAdd(link, addr))
	}
}

// serve answers on TCP port 80 of every address of ns with its name and the address that asked.
func (w *world) serve(ns *os.File, name string) {
	w.t.Helper()
	var l net.Listener
	must(w.t, in(ns, func() (err error) {
		l, err = net.Listen("tcp", ":80")
		return err
	}))
	w.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			from, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			fmt.Fprintf(c, "%s saw %s", name, from)
			_ = c.Close()
		}
	}()
}

// serveDNS answers every A query on address with answer, on both transports.
func (w *world) serveDNS(ns *os.File, address, answer string) {
	w.t.Helper()
	handler := dns.HandlerFunc(func(rw dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		from, _, _ := net.SplitHostPort(rw.RemoteAddr().String())
		m.Answer = []dns.RR{
			&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(answer)},
			&dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{from}},
		}
		w.queries <- q.Question[0].Name
		_ = rw.WriteMsg(m)
	})
	must(w.t, in(ns, func() error {
		packets, err := net.ListenPacket("udp", address+":53")
		if err != nil {
			return err
		}
		streams, err := net.Listen("tcp", address+":53")
		if err != nil {
			return err
		}
		udp, tcp := &dns.Server{PacketConn: packets, Handler: handler}, &dns.Server{Listener: streams, Handler: handler}
		go func() { _ = udp.ActivateAndServe() }()
		go func() { _ = tcp.ActivateAndServe() }()
		w.t.Cleanup(func() { _, _ = packets.Close(), streams.Close() })
		return nil
	}))
}

// get connects from ns and returns what the server said.
func get(ns *os.File, address string) (string, error) {
	return getWithin(ns, address, dialWait)
}

func getWithin(ns *os.File, address string, wait time.Duration) (text string, err error) {
	err = in(ns, func() error {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(address, "80"), wait)
		if err != nil {
			return err
		}
		defer c.Close()
		b, err := io.ReadAll(c)
		text = string(b)
		return err
	})
	return text, err
}

// lookup asks server for an A record from inside ns.
func lookup(ns *os.File, transport, server string) (address, seenFrom string, err error) {
	err = in(ns, func() error {
		q := new(dns.Msg).SetQuestion("ok.test.", dns.TypeA)
		client := &dns.Client{Net: transport, Timeout: dialWait}
		m, _, err := client.Exchange(q, net.JoinHostPort(server, "53"))
		if err != nil {
			return err
		}
		if len(m.Answer) != 2 {
			return fmt.Errorf("got %d answers", len(m.Answer))
		}
		address, seenFrom = m.Answer[0].(*dns.A).A.String(), m.Answer[1].(*dns.TXT).Txt[0]
		return nil
	})
	return address, seenFrom, err
}

func (w *world) nft(args ...string) string {
	w.t.Helper()
	var out []byte
	must(w.t, in(w.host, func() (err error) {
		out, err = exec.Command("nft", args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft %v: %w: %s", args, err, out)
		}
		return nil
	}))
	return string(out)
}

// nftQuiet is nft for what may not exist: then the answer is empty.
func (w *world) nftQuiet(args ...string) string {
	var out []byte
	_ = in(w.host, func() (err error) {
		out, err = exec.Command("nft", args...).Output()
		return err
	})
	return string(out)
}

func (w *world) sysctl(ns *os.File, path string) string {
	w.t.Helper()
	var text []byte
	must(w.t, in(ns, func() (err error) {
		text, err = os.ReadFile("/proc/sys/" + path)
		return err
	}))
	return strings.TrimSpace(string(text))
}

// gatewayOf and addressOf compute a slot's addresses independently of the code under test.
func (w *world) addressOf(slot, host int) string {
	base := netip.MustParsePrefix(hostnet.RangeDefault).Addr().As4()
	n := uint32(base[0])<<24 | uint32(base[1])<<16 | uint32(base[2])<<8 | uint32(base[3])
	n += uint32(w.options.Block)<<14 + uint32(slot)*4 + uint32(host)
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}).String()
}

func (w *world) gatewayOf(b box) string    { return w.addressOf(b.slot, 1) }
func (w *world) addressOfBox(b box) string { return w.addressOf(b.slot, 2) }
func refused(err error) bool               { return errors.Is(err, unix.ECONNREFUSED) }
func handleAt(t testing.TB, ns *os.File) *netlink.Handle {
	t.Helper()
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	must(t, err)
	t.Cleanup(h.Close)
	return h
}

// newNS makes a network namespace with loopback up that lives until the test ends.
func newNS(t testing.TB) *os.File {
	t.Helper()
	var ns *os.File
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies and leaves the namespace to ns
		result <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(lo); err != nil {
				return err
			}
			ns, err = os.Open("/proc/thread-self/ns/net")
			return err
		}()
	}()
	must(t, <-result)
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// in calls fn on a thread in ns that ends afterwards. Sockets that fn opens stay in ns.
func in(ns *os.File, fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- err
			return
		}
		result <- fn()
	}()
	return <-result
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
