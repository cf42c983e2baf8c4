package e2e_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/outside"
)

// connect is a command that tries a TCP connection and says how that went and whether it took longer than 2 s.
const connect = `python3 - "$@" <<'PY'
import socket, sys, time
for target in sys.argv[1:]:
    host, _, port = target.rpartition(":")
    began = time.monotonic()
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
        how = "open"
    except OSError as e:
        how = "closed " + (e.strerror or str(e))
    print(target, "slow" if time.monotonic() - began > 2 else "fast", how)
PY`

// reach tries each target from inside and gives what came of it.
func reach(t *testing.T, b *sdk.Sandbox, targets ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	text := sh(t, b, "set -- "+strings.Join(targets, " ")+"\n"+connect)
	for line := range strings.Lines(text) {
		target, how, _ := strings.Cut(strings.TrimSpace(line), " ")
		out[target] = how
	}
	if len(out) != len(targets) {
		t.Fatalf("%d of %d targets were tried: %s", len(out), len(targets), text)
	}
	return out
}

func TestTheDefaultPolicyFromInside(t *testing.T) {
	s, c := shared(t)
	w, err := outside.Start(t.Context(), outside.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	internet := strings.TrimPrefix(w.URL, "http://")
	listener, err := net.Listen("tcp4", "0.0.0.0:0") // on every address of the host
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())

	b, other := box(t, c, sdk.CreateOptions{}), box(t, c, sdk.CreateOptions{})
	sh(t, other, "nohup python3 -m http.server 8000 >/dev/null 2>&1 & until (echo > /dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done")
	gateway := sh(t, b, "awk '$2 == \"00000000\" {print $3}' /proc/net/route")
	closed := []string{
		sh(t, other, "hostname -I") + ":8000", "169.254.169.254:80", "10.0.0.1:80", "172.16.0.1:80", "192.168.0.1:80", "100.64.0.1:80",
		"127.0.0.1:" + port, hexAddr(t, gateway) + ":" + port, hexAddr(t, gateway) + ":22", strings.TrimPrefix(s.URL, "http://"),
	}
	for _, addr := range hostAddresses(t) {
		if conn, err := net.Dial("tcp", addr+":"+port); err != nil {
			t.Errorf("control: the host cannot reach itself at %s: %v", addr, err)
		} else {
			_ = conn.Close()
		}
		closed = append(closed, addr+":"+port)
	}
	got := reach(t, b, append(closed, internet)...)
	if got[internet] != "fast open" {
		t.Errorf("the internet (%s): %s", internet, got[internet])
	}
	if got := sh(t, b, "curl -sS -o /dev/null -w '%{http_code}' "+w.URL+"/git/shop.git/HEAD"); got != "200" {
		t.Errorf("HTTP outside answers %q", got)
	}
	for _, target := range closed {
		if !strings.HasPrefix(got[target], "fast closed") {
			t.Errorf("bug 28, bug 55: %s: %s", target, got[target])
		}
	}
	if got := sh(t, other, "echo > /dev/tcp/127.0.0.1/8000 && echo open"); got != "open" {
		t.Errorf("control: the neighbour's server is %q to itself", got)
	}
	if got, addr := sh(t, b, "hostname; getent ahostsv4 $(hostname) | head -1 | cut -d' ' -f1"), sh(t, b, "hostname -I"); got != b.ID+"\n"+addr {
		t.Errorf("bug 120: its own name and address: %q, it has %q", got, addr)
	}
	if got := sh(t, b, "cat /etc/resolv.conf"); got != "nameserver "+hexAddr(t, gateway) {
		t.Errorf("resolv.conf: %q, gateway %s", got, hexAddr(t, gateway))
	}
	if got := sh(t, b, "grep -v ' lo$' /proc/net/if_inet6 || true"); got != "" {
		t.Errorf("bug 10: IPv6 inside: %q", got)
	}
	if res := try(t, b, "curl -sS -6 -m 5 http://[2001:db8::1]/"); res.ExitCode == 0 {
		t.Error("bug 10: IPv6 passes")
	}
}

func TestWithoutInternetThereIsOnlyLoopback(t *testing.T) {
	_, c := shared(t)
	w, err := outside.Start(t.Context(), outside.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	b := box(t, c, sdk.CreateOptions{NoInternet: true})
	sh(t, b, "nohup python3 -m http.server 8000 >/dev/null 2>&1 & until (echo > /dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done")
	internet := strings.TrimPrefix(w.URL, "http://")
	got := reach(t, b, internet, "169.254.169.254:80", "127.0.0.1:8000", b.ID+":8000", "localhost:8000")
	for target, how := range got {
		local := target != internet && target != "169.254.169.254:80"
		if local && how != "fast open" || !local && !strings.HasPrefix(how, "fast closed") {
			t.Errorf("%s: %s", target, how)
		}
	}
	if got := sh(t, b, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"); got != "lo" {
		t.Errorf("interfaces: %q", got)
	}
}

// hexAddr reads an address of /proc/net/route.
func hexAddr(t *testing.T, hex string) string {
	t.Helper()
	var n uint32
	if _, err := fmt.Sscanf(hex, "%X", &n); err != nil {
		t.Fatalf("address %q: %v", hex, err)
	}
	return netip.AddrFrom4([4]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}).String()
}

// hostAddresses are the host's own IPv4 addresses, but loopback.
func hostAddresses(t *testing.T) []string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() && !strings.HasPrefix(a.String(), "10.2") {
			out = append(out, p.Addr().String())
		}
	}
	return out
}
