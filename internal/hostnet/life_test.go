package hostnet_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/hostnet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	eventuallyWait = 30 * time.Second // for what follows a kernel event in another goroutine
	eventuallyStep = 5 * time.Millisecond
)

// eventually tries until ok: the kernel tells the network under test of changes, not the test.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(eventuallyWait); !ok(); time.Sleep(eventuallyStep) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, eventuallyWait)
		}
	}
}

func TestForeignDrop(t *testing.T) {
	for name, rules := range map[string]string{
		"policy": "add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }",
		"rule in a called chain": "add table inet fw; add chain inet fw deny; add rule inet fw deny reject; " +
			"add chain inet fw pass { type filter hook forward priority 10; }; add rule inet fw pass jump deny",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.nft(rules)
			clean := w.nft("list", "ruleset")
			if got, err := get(w.host, internet); err != nil {
				t.Fatalf("control: %q, %v", got, err)
			}
			n := w.open()
			b := w.sandbox()
			if got, err := get(b.ns, internet); err != nil {
				t.Errorf("with a foreign drop: %q, %v", got, err)
			}
			if got := n.ForeignRules(); len(got) != 2 {
				t.Errorf("ForeignRules() = %v, want two", got)
			}
			held, err := hostnet.Holds(context.Background(), w.options)
			must(t, err)
			if len(held.Foreign) != 2 || held.Table != "inet dayfly_"+w.options.Installation || held.ForwardWas != "0" {
				t.Errorf("Holds() = %+v", held)
			}
			if got, err := get(b.ns, "192.168.77.2"); !refused(err) {
				t.Errorf("closed address with a foreign accept of ours: %q, %v", got, err)
			}
			mark := "dayfly " + w.options.Installation
			for range 3 { // a reload of the other firewall
				w.nft("delete table " + strings.Fields(rules)[2] + " " + strings.TrimSuffix(strings.Fields(rules)[3], ";") + "; " + rules)
				eventually(t, "rules come back", func() bool { return strings.Count(w.nft("list", "ruleset"), mark) == 2 })
			}
			if got, err := get(b.ns, internet); err != nil {
				t.Errorf("after the reload: %q, %v", got, err)
			}
			must(t, n.Close())
			must(t, hostnet.Remove(context.Background(), w.options))
			if held, err := hostnet.Holds(context.Background(), w.options); err != nil || held.Table != "" || held.Foreign != nil {
				t.Errorf("after Remove Holds() = %+v, %v", held, err)
			}
			if got := w.nft("list", "ruleset"); got != clean {
				t.Errorf("after Remove the other firewall is\n%s\nwant\n%s", got, clean)
			}
		})
	}
}

// TestForeignDropBlocks is the control of TestForeignDrop: without our rule the drop really closes.
func TestForeignDropBlocks(t *testing.T) {
	w := newWorld(t)
	n := w.open()
	b := w.sandbox()
	if _, err := get(b.ns, internet); err != nil {
		t.Fatal(err)
	}
	must(t, n.Close())
	w.nft("add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }")
	if got, err := get(b.ns, internet); err == nil {
		t.Errorf("a foreign drop does not close: %q", got)
	}
}

func TestFlushedTableComesBack(t *testing.T) {
	w := newWorld(t)
	w.open()
	b := w.sandbox()
	table := "dayfly_" + w.options.Installation
	for name, change := range map[string]string{
		"whole ruleset": "flush ruleset", "rules": "flush table inet " + table, "one chain": "flush chain inet " + table + " from_sandbox",
	} {
		t.Run(name, func(t *testing.T) {
			want := w.nft("list", "table", "inet", table)
			w.nft(change)
			eventually(t, "the table is whole again", func() bool {
				return normal(w.nftQuiet("list", "table", "inet", table)) == normal(want)
			})
			if _, err := get(b.ns, internet); err != nil {
				t.Errorf("internet: %v", err)
			}
			if _, err := get(b.ns, hostPublic); !refused(err) {
				t.Errorf("host: %v, want it refused", err)
			}
		})
	}
}

var counted = regexp.MustCompile(`^[0-9.]+ ct count over [0-9]+$`)

// normal makes two listings comparable: the order of set elements is the kernel's own, and so are the counts of flows.
func normal(listing string) string {
	lines := strings.FieldsFunc(listing, func(r rune) bool { return strings.ContainsRune("\n,{}", r) })
	for i := range lines {
		lines[i] = strings.TrimSpace(strings.Replace(lines[i], "elements =", "", 1))
	}
	lines = slices.DeleteFunc(lines, func(l string) bool { return l == "" || counted.MatchString(l) })
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestRestart(t *testing.T) {
	w := newWorld(t)
	n := w.open()
	b := w.sandbox()
	gone := w.sandbox()
	must(t, n.Close())
	if _, err := get(b.ns, internet); err != nil {
		t.Errorf("with no server: %v", err)
	}
	if _, _, err := lookup(b.ns, "udp", w.gatewayOf(b)); err != nil {
		t.Errorf("names with no server: %v", err)
	}
	n, err := hostnet.Open(context.Background(), w.options)
	must(t, err)
	defer n.Close()
	if _, err := get(b.ns, internet); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	found, err := n.List(context.Background())
	must(t, err)
	if len(found) != 2 || found[0].ID != b.id || found[1].ID != gone.id {
		t.Errorf("List() = %+v, want %s and %s", found, b.id, gone.id)
	}
	must(t, n.Reclaim(context.Background(), gone.id))
	must(t, n.Reclaim(context.Background(), gone.id))
	found, err = hostnet.List(context.Background(), w.options)
	must(t, err)
	if len(found) != 1 || found[0].ID != b.id || found[0].Slot != b.slot || !found[0].Permitted || found[0].Link == "" {
		t.Errorf("after Reclaim the host holds %+v, want %s alone", found, b.id)
	}
	if _, err := get(b.ns, internet); err != nil {
		t.Errorf("the survivor after Reclaim: %v", err)
	}
}

func TestFailedAttachLeavesNothing(t *testing.T) {
	w := newWorld(t)
	n := w.open()
	taken := w.detached()
	must(t, handleAt(t, taken.ns).LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth1"}))
	file, err := os.Open(filepath.Join(w.resolv))
	must(t, err)
	defer file.Close()
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, try := range map[string]func() error{
		"eth0 exists":     func() error { return n.Attach(context.Background(), 7, taken.id, taken.ns) },
		"not a namespace": func() error { return n.Attach(context.Background(), 8, taken.id, file) },
		"cancelled":       func() error { return n.Attach(cancelled, 9, taken.id, taken.ns) },
		"slot too high":   func() error { return n.Attach(context.Background(), hostnet.Slots, taken.id, taken.ns) },
		"negative slot":   func() error { return n.Attach(context.Background(), -1, taken.id, taken.ns) },
		"bad id":          func() error { return n.Attach(context.Background(), 10, "../x", taken.ns) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := try(); err == nil {
				t.Error("Attach succeeded")
			}
			found, err := hostnet.List(context.Background(), w.options)
			must(t, err)
			if len(found) != 0 {
				t.Errorf("left behind: %+v", found)
			}
		})
	}
	good := w.detached()
	must(t, n.Attach(context.Background(), 7, good.id, good.ns))
	if _, err := get(good.ns, internet); err != nil {
		t.Errorf("the same slot afterwards: %v", err)
	}
}

// TestParallel is bug 119: thirty workers come and go on slots of their own; at the end each live one has exactly its rules.
func TestParallel(t *testing.T) {
	const workers, rounds = 30, 4
	w := newWorld(t)
	n := w.open()
	ctx := context.Background()
	var mu sync.Mutex
	var live []box
	var wg sync.WaitGroup
	for i := range workers {
		boxes := make([]box, rounds)
		for j := range boxes {
			boxes[j] = box{id: dayfly.NewID(dayfly.PrefixSandbox), slot: i*rounds + j, ns: newNS(t)}
		}
		wg.Go(func() {
			for j, b := range boxes {
				if err := n.Attach(ctx, b.slot, b.id, b.ns); err != nil {
					t.Error(err)
				}
				if j == rounds-1 && i%2 == 0 {
					mu.Lock()
					live = append(live, b)
					mu.Unlock()
					return
				}
				if err := n.Detach(ctx, b.slot, b.id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	eventually(t, "links of detached sandboxes go", func() bool {
		found, err := hostnet.List(ctx, w.options)
		must(t, err)
		return len(found) == len(live)
	})
	found, err := hostnet.List(ctx, w.options)
	must(t, err)
	for _, b := range live {
		i := slices.IndexFunc(found, func(f hostnet.Found) bool { return f.ID == b.id })
		if i < 0 || !found[i].Permitted || found[i].Link == "" || found[i].Slot != b.slot {
			t.Errorf("%s: wrong in %+v", b.id, found)
		}
		if _, err := get(b.ns, internet); err != nil {
			t.Errorf("%s allowed: %v", b.id, err)
		}
		if _, err := get(b.ns, resolver); !refused(err) {
			t.Errorf("%s closed: %v", b.id, err)
		}
	}
}

func TestForwardingIsPutBack(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	if got := w.sysctl(w.host, "net/ipv4/ip_forward"); got != "0" {
		t.Fatalf("ip_forward at start is %s", got)
	}
	second := w.options
	second.Installation, second.Block = dayfly.NewInstallation(), w.options.Block+1
	a, err := hostnet.Open(ctx, w.options)
	must(t, err)
	b, err := hostnet.Open(ctx, second)
	must(t, err)
	must(t, errors.Join(a.Close(), b.Close()))
	for _, step := range []struct {
		options hostnet.Options
		want    string
	}{{w.options, "1"}, {w.options, "1"}, {second, "0"}, {second, "0"}} {
		must(t, hostnet.Remove(ctx, step.options))
		if got := w.sysctl(w.host, "net/ipv4/ip_forward"); got != step.want {
			t.Errorf("ip_forward after Remove is %s, want %s", got, step.want)
		}
	}
	if _, err := os.Stat(w.state); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state directory is left: %v", err)
	}
	if got := w.nft("list", "ruleset"); got != "" {
		t.Errorf("rules are left:\n%s", got)
	}
}

func TestRemoveUnderLiveSandboxes(t *testing.T) {
	w := newWorld(t)
	n := w.open()
	b := w.sandbox()
	must(t, n.Close())
	must(t, hostnet.Remove(context.Background(), w.options))
	w.checkClean()
	if got, err := get(b.ns, internet); err == nil {
		t.Errorf("still reachable: %q", got)
	}
}

func TestOverlap(t *testing.T) {
	for name, route := range map[string]string{"same": "10.212.192.0/18", "inside": "10.212.200.0/24", "around": "10.208.0.0/12"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			must(t, handleAt(t, w.host).RouteAdd(&netlink.Route{Dst: prefix(t, route), Gw: net.ParseIP(router)}))
			_, err := hostnet.Open(context.Background(), w.options)
			if dayfly.ErrorCode(err) != dayfly.CodeConflict || dayfly.AsError(err).Hint == "" {
				t.Fatalf("Open() = %v, want a conflict with a hint", err)
			}
			if dayfly.ErrorCode(hostnet.CheckBlock(w.options)) != dayfly.CodeConflict {
				t.Error("CheckBlock does not see it")
			}
			free := w.options
			if free.Block = 4; name != "around" && hostnet.CheckBlock(free) != nil {
				t.Error("the next block is not free")
			}
			if got := w.nft("list", "ruleset"); got != "" {
				t.Errorf("a refused Open left rules:\n%s", got)
			}
		})
	}
}

func TestMTU(t *testing.T) {
	w := newWorld(t)
	up, err := handleAt(t, w.host).LinkByName("up0")
	must(t, err)
	must(t, handleAt(t, w.host).LinkSetMTU(up, 1400))
	w.open()
	b := w.sandbox()
	eth0, err := handleAt(t, b.ns).LinkByName("eth0")
	must(t, err)
	if eth0.Attrs().MTU != 1400 {
		t.Errorf("MTU inside is %d, want the host's 1400", eth0.Attrs().MTU)
	}
}

func TestSettings(t *testing.T) {
	w := newWorld(t)
	w.open()
	b := w.sandbox()
	links, err := hostnet.List(context.Background(), w.options)
	must(t, err)
	name := links[0].Link
	if len(name) != unix.IFNAMSIZ-1 {
		t.Errorf("link name %q has %d characters", name, len(name))
	}
	link, err := handleAt(t, w.host).LinkByName(name)
	must(t, err)
	if link.Attrs().Alias != b.id {
		t.Errorf("alias %q, want the sandbox id", link.Attrs().Alias)
	}
	for path, want := range map[string]string{
		"ipv4/conf/%s/rp_filter": "1", "ipv4/conf/%s/forwarding": "1", "ipv4/conf/%s/route_localnet": "0", "ipv4/conf/%s/arp_ignore": "1",
		"ipv4/conf/%s/accept_redirects": "0", "ipv4/conf/%s/accept_source_route": "0", "ipv6/conf/%s/disable_ipv6": "1",
	} {
		if got := w.sysctl(w.host, "net/"+fmt.Sprintf(path, name)); got != want {
			t.Errorf("%s = %s, want %s", path, got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	w := newWorld(t)
	w.nft("add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }")
	w.open()
	w.sandbox() // a running installation is no fault
	before := w.nft("list", "ruleset")
	findings, err := hostnet.Check(context.Background(), w.options)
	must(t, err)
	names := map[string]hostnet.Finding{}
	for _, f := range findings {
		names[f.Name] = f
		if !f.OK {
			t.Errorf("not well: %+v", f)
		}
	}
	if !strings.Contains(names["resolver"].Text, resolver) || !strings.Contains(names["other firewalls"].Text, "ip filter") {
		t.Errorf("findings do not name what is there: %+v", findings)
	}
	if w.nft("list", "ruleset") != before {
		t.Error("Check changed the firewall")
	}
	w.writeResolv("nameserver fd00::53\n")
	findings, err = hostnet.Check(context.Background(), w.options)
	must(t, err)
	if i := slices.IndexFunc(findings, func(f hostnet.Finding) bool { return !f.OK }); i < 0 || findings[i].Name != "resolver" || findings[i].Fix == "" {
		t.Errorf("a host without an IPv4 resolver: %+v", findings)
	}
}

func TestOptions(t *testing.T) {
	needRoot(t)
	good := hostnet.Options{Installation: "abc123"}
	for name, spoil := range map[string]func(*hostnet.Options){
		"installation":     func(o *hostnet.Options) { o.Installation = "../etc" },
		"block":            func(o *hostnet.Options) { o.Block = 16 },
		"range too small":  func(o *hostnet.Options) { o.Range = mustPrefix("10.0.0.0/19") },
		"range of IPv6":    func(o *hostnet.Options) { o.Range = mustPrefix("fd00::/18") },
		"range not masked": func(o *hostnet.Options) { o.Range = mustPrefix("10.1.2.3/14") },
		"negative flows":   func(o *hostnet.Options) { o.FlowsMax = -1 },
		"allow IPv6":       func(o *hostnet.Options) { o.AllowPrivate = append(o.AllowPrivate, mustPrefix("fd00::/8")) },
	} {
		t.Run(name, func(t *testing.T) {
			o := good
			spoil(&o)
			if _, err := hostnet.Open(context.Background(), o); dayfly.ErrorCode(err) != dayfly.CodeInvalid {
				t.Errorf("Open() = %v, want %s", err, dayfly.CodeInvalid)
			}
		})
	}
}
