package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

func TestTwoInstallationsOnOneHost(t *testing.T) {
	t.Parallel()
	first, c1 := own(t)
	second, c2 := own(t)
	const each = 3
	addresses, uids := map[string]string{}, map[string]string{}
	var last *sdk.Sandbox
	for i, c := range []*sdk.Client{c1, c2} {
		s := []*host.Server{first, second}[i]
		for range each {
			last = box(t, c, sdk.CreateOptions{Name: "same-name-" + fmt.Sprint(len(addresses)%each)})
			addr := sh(t, last, "hostname -I")
			if who, taken := addresses[addr]; taken || addr == "" {
				t.Errorf("%s and %s both have address %q", last.ID, who, addr)
			}
			addresses[addr] = last.ID
			for _, uid := range hostUIDs(t, s, last.ID) {
				if who, taken := uids[uid]; taken && who != last.ID {
					t.Errorf("%s and %s both run as host uid range %s", last.ID, who, uid)
				}
				uids[uid] = last.ID
			}
		}
	}
	if len(uids) != 2*each {
		t.Errorf("%d uid ranges for %d sandboxes: %v", len(uids), 2*each, uids)
	}
	if out := first.Dayfly(t.Context(), "down", "--destroy"); out.Code != 0 {
		t.Fatalf("down --destroy: %s", out.Stderr)
	}
	if left, err := first.Left(); err != nil || len(onlyKernel(first, left)) > 0 {
		t.Errorf("left of the destroyed one: %v (%v)", left, err)
	}
	if got := sh(t, last, "echo ok; ip route 2>/dev/null | head -1 >/dev/null; hostname -I"); !strings.HasPrefix(got, "ok") {
		t.Errorf("the other installation says %q", got)
	}
	box(t, c2, sdk.CreateOptions{})
	if out := second.Dayfly(t.Context(), "audit"); out.Code != 0 {
		t.Errorf("audit of the other one: %s", out.Stdout)
	}
}

// onlyKernel leaves out what a data directory keeps: its files.
func onlyKernel(s *host.Server, left []string) []string {
	var out []string
	for _, l := range left {
		if l != "file "+s.Data {
			out = append(out, l)
		}
	}
	return out
}

// hostUIDs are the uid ranges on the host that the processes of a sandbox are mapped to.
func hostUIDs(t *testing.T, s *host.Server, id string) []string {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	seen := map[string]bool{}
	var out []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || !strings.Contains(string(b), "/dayfly-"+s.Installation+"/"+id) {
			continue
		}
		m, err := os.ReadFile(filepath.Join(filepath.Dir(f), "uid_map"))
		if fields := strings.Fields(string(m)); err == nil && len(fields) == 3 && !seen[fields[1]] {
			seen[fields[1]] = true
			out = append(out, fields[1])
		}
	}
	if len(out) == 0 {
		t.Errorf("%s has no process on the host", id)
	}
	return out
}

func TestASecondServerOnOneDataDirectoryRefuses(t *testing.T) {
	s, c := shared(t)
	out := s.Dayfly(t.Context(), "server", "--listen", "127.0.0.1:0")
	if out.Code != 1 || !strings.Contains(out.Stderr, "another server already uses the data directory "+s.Data) || !strings.Contains(out.Stderr, "hint:") {
		t.Errorf("exit %d: %s", out.Code, out.Stderr)
	}
	out = s.Dayfly(t.Context(), "server", "--listen", strings.TrimPrefix(s.URL, "http://"))
	if out.Code != 1 || !strings.Contains(out.Stderr, "--listen") {
		t.Errorf("a taken address: exit %d: %s", out.Code, out.Stderr)
	}
	pid := s.PID
	if err := s.Up(t.Context()); err != nil || s.PID != pid {
		t.Errorf("up is not idempotent: %d then %d (%v)", pid, s.PID, err)
	}
	if err := c.Healthy(t.Context()); err != nil {
		t.Errorf("the first server: %v", err)
	}
}
