package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// doctor runs `dayfly doctor` and gives what it says of each check.
func doctor(t *testing.T, s *host.Server, args ...string) map[string]string {
	t.Helper()
	out := s.Dayfly(t.Context(), append([]string{"doctor", "-o", "json"}, args...)...)
	var said struct {
		Checks []struct{ Check, Verdict, Detail string }
	}
	if err := json.Unmarshal([]byte(out.Stdout), &said); err != nil {
		t.Fatalf("doctor: %v: %s%s", err, out.Stdout, out.Stderr)
	}
	found := map[string]string{}
	for _, c := range said.Checks {
		found[c.Check] = c.Verdict + ": " + c.Detail
	}
	return found
}

// TestDoctorTriesTheServersSettings: it speaks of the drivers as a server with these settings would have them, and leaves nothing.
func TestDoctorTriesTheServersSettings(t *testing.T) {
	s, _ := shared(t)
	if said := doctor(t, s, "--isolation-auto", "strongest")["driver gvisor"]; !strings.HasPrefix(said, "ok: works") {
		t.Skip(said)
	}
	runsc := builtIn(t, s)
	noexec := t.TempDir()
	if err := unix.Mount("dayfly-test", noexec, "tmpfs", unix.MS_NOEXEC, "size=200m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left, err := os.ReadDir(noexec); err != nil || len(left) > 0 {
			t.Errorf("left in the data directory: %v, %v", left, err)
		}
		if err := unix.Unmount(noexec, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for _, tt := range []struct {
		name, check, want string
		args              []string
	}{
		{"what auto is", "isolation auto", "means linux here, because", []string{"--isolation-auto", "linux"}},
		{"auto that cannot be", "isolation auto", "isolation.auto says gvisor, which does not work", []string{"--isolation-auto", "gvisor", "--gvisor-runsc-path", "/missing"}},
		{"a runsc that is there", "driver gvisor", "ok: works; it uses " + runsc + ", version ", []string{"--gvisor-runsc-path", runsc}},
		{"a runsc that is not", "driver gvisor", "/missing (gvisor.runsc_path) does not exist", []string{"--gvisor-runsc-path", "/missing"}},
		{"a data directory that cannot execute", "driver gvisor", "mounted noexec", []string{"--data", filepath.Join(noexec, "data")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if said := doctor(t, s, tt.args...)[tt.check]; !strings.Contains(said, tt.want) {
				t.Errorf("%s: %q, want %q", tt.check, said, tt.want)
			}
		})
	}
}

// builtIn gives the gVisor that a server has unpacked for itself.
func builtIn(t *testing.T, s *host.Server) string {
	t.Helper()
	if out := s.Dayfly(t.Context(), "run", "--isolation", gvisor, "--", "true"); out.Code != 0 { // unpacked when first needed
		t.Fatalf("run: exit %d: %s", out.Code, out.Stderr)
	}
	found, err := filepath.Glob(filepath.Join(s.Data, "helpers", "dayfly-gvisor-*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("helpers: %v, %v", found, err)
	}
	return found[0]
}

// TestAServerWithARunscOfTheOperators uses it, records that, and refuses sandboxes of gVisor's when it cannot.
func TestAServerWithARunscOfTheOperators(t *testing.T) {
	base, _ := shared(t)
	if said := doctor(t, base, "--isolation-auto", "strongest")["driver gvisor"]; !strings.HasPrefix(said, "ok: works") {
		t.Skip(said)
	}
	runsc := filepath.Join(t.TempDir(), "runsc")
	content, err := os.ReadFile(builtIn(t, base))
	if err == nil {
		err = os.WriteFile(runsc, content, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	s, c := own(t, "--gvisor-runsc-path", runsc)
	b, err := c.Create(t.Context(), sdk.CreateOptions{Isolation: gvisor})
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, b, "uname -r"); !strings.Contains(got, "gvisor") {
		t.Errorf("its kernel is %q", got)
	}
	if !strings.Contains(s.LogTail(), "it uses "+runsc+", version ") {
		t.Errorf("the log does not tell of it:\n%s", s.LogTail())
	}
	if err := os.WriteFile(runsc+".bad", []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(runsc+".bad", runsc); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(t.Context(), sdk.CreateOptions{Isolation: gvisor}); err == nil {
		t.Error("a sandbox is made with a runsc that fails")
	} else {
		t.Log(err)
	}
	if got := sh(t, b, "echo alive"); got != "alive" {
		t.Errorf("the sandbox before it says %q", got)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	c = again(t, s)
	_, err = c.Create(t.Context(), sdk.CreateOptions{Isolation: gvisor})
	wantCode(t, "a create after a restart", err, sdk.CodeInvalid)
	if l, err := c.Create(t.Context(), sdk.CreateOptions{Isolation: linux}); err != nil {
		t.Errorf("linux: %v", err)
	} else if got := sh(t, l, "echo ok"); got != "ok" {
		t.Errorf("linux says %q", got)
	}
}
