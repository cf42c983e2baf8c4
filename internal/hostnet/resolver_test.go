package hostnet_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"dayfly.dev/dayfly/internal/hostnet"
)

func mustPrefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestSecondResolver(t *testing.T) {
	w := newWorld(t)
	w.writeResolv("nameserver 203.0.113.99\nnameserver " + resolver + "\n") // nobody is at the first
	n := w.open()
	b := w.sandbox()
	servers := nameServers(n.Files(b.id, b.slot, true))
	if len(servers) != 2 || servers[0] != w.gatewayOf(b) {
		t.Fatalf("resolv.conf names %v, want the gateway and a second", servers)
	}
	if _, _, err := lookup(b.ns, "udp", servers[0]); err == nil {
		t.Error("control: the first resolver answers")
	}
	if got, _, err := lookup(b.ns, "udp", servers[1]); err != nil || got != internet {
		t.Errorf("the second resolver: %q, %v", got, err)
	}
}

func TestResolvConfChanges(t *testing.T) {
	w := newWorld(t)
	w.writeResolv("nameserver 203.0.113.99\n")
	w.open()
	b := w.sandbox()
	if _, _, err := lookup(b.ns, "udp", w.gatewayOf(b)); err == nil {
		t.Fatal("control: the old resolver answers")
	}
	for name, change := range map[string]func(){
		"replaced":      func() { w.writeResolv("nameserver " + resolver + "\n") },
		"written anew":  func() { must(t, os.WriteFile(w.resolv, []byte("nameserver "+resolver+"\n"), 0o644)) },
		"now a symlink": func() { linkTo(t, w.resolv, "nameserver "+resolver+"\n") },
	} {
		t.Run(name, func(t *testing.T) {
			w.writeResolv("nameserver 203.0.113.99\n")
			eventually(t, "the old resolver", func() bool { return strings.Contains(w.nft("list", "ruleset"), "203.0.113.99") })
			change()
			eventually(t, "the new resolver", func() bool { return strings.Contains(w.nft("list", "ruleset"), ": "+resolver) })
			if got, _, err := lookup(b.ns, "udp", w.gatewayOf(b)); err != nil || got != internet {
				t.Errorf("after the change: %q, %v", got, err)
			}
		})
	}
}

func linkTo(t *testing.T, path, text string) {
	t.Helper()
	target := filepath.Join(t.TempDir(), "stub.conf")
	must(t, os.WriteFile(target, []byte(text), 0o644))
	must(t, os.Symlink(target, path+".link"))
	must(t, os.Rename(path+".link", path))
}

func TestSystemdStub(t *testing.T) {
	w := newWorld(t)
	w.writeResolv("nameserver 127.0.0.53\noptions edns0\n")
	w.options.SystemdResolvConf = filepath.Join(t.TempDir(), "resolv.conf")
	must(t, os.WriteFile(w.options.SystemdResolvConf, []byte("nameserver "+resolver+"\n"), 0o644))
	w.open()
	b := w.sandbox()
	if got, _, err := lookup(b.ns, "udp", w.gatewayOf(b)); err != nil || got != internet {
		t.Errorf("behind systemd's stub: %q, %v", got, err)
	}
}

// TestLoopbackResolver: the only resolver listens on the host's loopback and, like real ones, answers local clients only.
func TestLoopbackResolver(t *testing.T) {
	w := newWorld(t)
	w.writeResolv("nameserver 127.0.0.1\n")
	w.serveDNS(w.host, "127.0.0.1", "203.0.113.11")
	w.nft("add table ip filter; add chain ip filter INPUT { type filter hook input priority 0; policy drop; }; " +
		"add rule ip filter INPUT iifname lo accept; add rule ip filter INPUT ct state established,related accept")
	n := w.open()
	b := w.sandbox()
	for _, transport := range []string{"udp", "tcp"} {
		got, from, err := lookup(b.ns, transport, w.gatewayOf(b))
		if err != nil || got != "203.0.113.11" || from != "127.0.0.1" {
			t.Errorf("%s: %q asked by %q, %v", transport, got, from, err)
		}
	}
	if len(n.ForeignRules()) != 1 {
		t.Errorf("ForeignRules() = %v, want the one for DNS", n.ForeignRules())
	}
	for _, target := range []string{"127.0.0.1", hostPublic, w.gatewayOf(b)} {
		if target == "127.0.0.1" { // through the gateway, as a hostile sandbox would: its own loopback is in the way
			continue
		}
		if _, err := get(b.ns, target); !refused(err) {
			t.Errorf("another port of %s: %v, want it refused", target, err)
		}
	}
	w.writeResolv("nameserver " + resolver + "\n")
	eventually(t, "the new resolver", func() bool { return strings.Contains(w.nft("list", "ruleset"), ": "+resolver) })
	eventually(t, "loopback is shut", func() bool { return len(n.ForeignRules()) == 0 })
	if got, _, err := lookup(b.ns, "udp", w.gatewayOf(b)); err != nil || got != internet {
		t.Errorf("after the change: %q, %v", got, err)
	}
}

func TestFiles(t *testing.T) {
	w := newWorld(t)
	n := w.open()
	b := w.sandbox()
	open := n.Files(b.id, b.slot, true)
	if got, want := string(open["/etc/resolv.conf"]), "nameserver "+w.gatewayOf(b)+"\n"; got != want {
		t.Errorf("resolv.conf %q, want %q", got, want)
	}
	if got, want := string(open["/etc/hosts"]), w.addressOfBox(b)+" "+b.id+"\n"; !strings.HasSuffix(got, want) || !strings.HasPrefix(got, "127.0.0.1 localhost\n") {
		t.Errorf("hosts %q, want localhost and %q", got, want)
	}
	closed := n.Files(b.id, b.slot, false)
	if got := nameServers(closed); len(got) != 0 {
		t.Errorf("without internet resolv.conf names %v", got)
	}
	if got := string(closed["/etc/hosts"]); !strings.Contains(got, "127.0.1.1 "+b.id+"\n") {
		t.Errorf("without internet hosts is %q", got)
	}
	for _, files := range []map[string][]byte{open, closed} {
		if got := string(files["/etc/hostname"]); got != b.id+"\n" {
			t.Errorf("hostname %q", got)
		}
	}
}

func nameServers(files map[string][]byte) []string {
	var all []string
	for _, a := range hostnet.ParseResolvConf(files["/etc/resolv.conf"]) {
		all = append(all, a.String())
	}
	return all
}

func TestParseResolvConf(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"plain", "nameserver 10.0.0.1\n", []string{"10.0.0.1"}},
		{"order and comments", "# x\nsearch a b\nnameserver 10.0.0.2\n; nameserver 1.1.1.1\nnameserver\t10.0.0.1 # y\n", []string{"10.0.0.2", "10.0.0.1"}},
		{"twice", "nameserver 10.0.0.2\nnameserver 10.0.0.2\n", []string{"10.0.0.2"}},
		{"IPv6 left out", "nameserver fd00::1\nnameserver fe80::1%eth0\nnameserver 10.0.0.1\n", []string{"10.0.0.1"}},
		{"mapped", "nameserver ::ffff:10.0.0.1\n", []string{"10.0.0.1"}},
		{"unspecified is loopback", "nameserver 0.0.0.0\n", []string{"127.0.0.1"}},
		{"rubbish", "nameserver\nnameserver x\nnameserverx 10.0.0.1\n\x00\n", nil},
		{"no newline at the end", "nameserver 10.0.0.1", []string{"10.0.0.1"}},
		{"Windows line ends", "nameserver 10.0.0.1\r\n", []string{"10.0.0.1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, a := range hostnet.ParseResolvConf([]byte(tt.text)) {
				got = append(got, a.String())
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add([]byte("nameserver 10.0.0.1\nnameserver ::1\n"))
	f.Add([]byte("nameserver 127.0.0.53 # stub"))
	f.Fuzz(func(t *testing.T, text []byte) {
		seen := map[netip.Addr]bool{}
		for _, a := range hostnet.ParseResolvConf(text) {
			if !a.Is4() || a.IsUnspecified() || a.IsMulticast() || seen[a] {
				t.Errorf("%v from %q", a, text)
			}
			seen[a] = true
		}
	})
}
