package hostnet_test

import (
	"strings"
	"testing"
)

func TestInternet(t *testing.T) {
	w := newWorld(t)
	w.open()
	b := w.sandbox()
	got, err := get(b.ns, internet)
	must(t, err)
	if want := "outside saw " + hostPublic; got != want {
		t.Errorf("the public server answered %q, want %q", got, want)
	}
}

func TestClosed(t *testing.T) {
	w := newWorld(t)
	w.open()
	a, b := w.sandbox(), w.sandbox()
	w.serve(b.ns, "sandbox")
	for name, target := range closedTargets {
		t.Run(name, func(t *testing.T) {
			if got, err := get(w.host, target); err != nil || !strings.HasPrefix(got, "outside") {
				t.Fatalf("control from the host: %q, %v", got, err)
			}
			if got, err := get(a.ns, target); !refused(err) {
				t.Errorf("from the sandbox: %q, %v, want it refused at once", got, err)
			}
		})
	}
	for name, target := range map[string]string{
		"host's public address": hostPublic, "own gateway": w.gatewayOf(a), "other gateway": w.gatewayOf(b),
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := get(w.host, target); err != nil || !strings.HasPrefix(got, "host") {
				t.Fatalf("control from the host: %q, %v", got, err)
			}
			if got, err := get(a.ns, target); !refused(err) {
				t.Errorf("from the sandbox: %q, %v, want it refused at once", got, err)
			}
		})
	}
}

func TestDNS(t *testing.T) {
	w := newWorld(t)
	w.open()
	b := w.sandbox()
	for _, transport := range []string{"udp", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			got, from, err := lookup(b.ns, transport, w.gatewayOf(b))
			must(t, err)
			if got != internet || from != hostPublic {
				t.Errorf("ok.test resolved to %s, asked by %s; want %s by %s", got, from, internet, hostPublic)
			}
			if _, _, err := lookup(b.ns, transport, resolver); err == nil {
				t.Error("the upstream's own address is reachable: only the gateway's port 53 is exempt")
			}
		})
	}
}
