package e2e_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// plantEvery makes everything that a lost sandbox could leave.
func plantEvery(t *testing.T, s *host.Server, id string) *exec.Cmd {
	t.Helper()
	process := plantGroup(t, s.Installation, id)
	plantDisk(t, s, id)
	plantLink(t, "df"+s.Installation+"00z"+id[len(id)-4:], id)
	if err := os.MkdirAll(filepath.Join("/run/dayfly", s.Installation, id, "in"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join("state", id+".json"), filepath.Join("leases", id)} {
		if err := os.WriteFile(filepath.Join(s.Data, path), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return process
}

func plantLink(t *testing.T, name, alias string) {
	t.Helper()
	for _, args := range [][]string{{"link", "add", name, "type", "veth", "peer", "name", "px" + name[2:]}, {"link", "set", name, "alias", alias}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", name).Run() })
}

// plantForeign makes what looks like a sandbox's and is not of this installation, and gives a check that all of it is left.
func plantForeign(t *testing.T, s *host.Server) (untouched func()) {
	t.Helper()
	id := dayfly.NewID(dayfly.PrefixSandbox)
	stranger := plantGroup(t, "zzzzzz", id)
	plantLink(t, "dfzzzzzz00z000a", id)
	plantLink(t, "dfeth"+s.Installation, "") // not a name of ours
	paths := []string{
		filepath.Join("/run/dayfly/zzzzzz", id), filepath.Join("/run/dayfly", s.Installation, "notes"),
		filepath.Join(s.Data, "state", "notes"), "/sys/class/net/dfzzzzzz00z000a", "/sys/class/net/dfeth" + s.Installation,
	}
	for _, dir := range paths[:3] {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.RemoveAll("/run/dayfly/zzzzzz") })
	return func() {
		t.Helper()
		for _, path := range paths {
			if _, err := os.Stat(path); err != nil {
				t.Errorf("something foreign was touched: %v", err)
			}
		}
		if err := stranger.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("a foreign process was ended: %v", err)
		}
	}
}

// TestAuditFixReclaimsEveryKind: with the server up or down everything of a lost sandbox goes, and nothing else.
func TestAuditFixReclaimsEveryKind(t *testing.T) {
	t.Parallel()
	s, c := own(t)
	b := box(t, c, sdk.CreateOptions{})
	sh(t, b, "echo mine > kept")
	untouched := plantForeign(t, s)
	every := []string{"disk", "lease", "machine", "network", "run_directory", "state"}
	for _, tt := range []struct {
		name, id string
		up       bool
	}{{"with the server up", dayfly.NewID(dayfly.PrefixSandbox), true}, {"with the server down", dayfly.NewID(dayfly.PrefixSandbox), false}} {
		if !tt.up {
			if err := s.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		process := plantEvery(t, s, tt.id)
		out := s.Dayfly(t.Context(), "audit", "--fix", "-o", "json")
		var got struct {
			Unaccounted int
			Fixed       sdk.Swept
		}
		if err := json.Unmarshal([]byte(out.Stdout), &got); err != nil || out.Code != 0 || got.Unaccounted != 0 {
			t.Fatalf("%s: exit %d, %v: %s%s", tt.name, out.Code, err, out.Stdout, out.Stderr)
		}
		kinds := map[string]bool{}
		for _, f := range got.Fixed.Findings {
			if f.Sandbox != tt.id || f.Failed || f.Why == "" {
				t.Errorf("%s: finding %+v", tt.name, f)
			}
			kinds[f.Kind] = true
		}
		// The server's own pass may have been first; its findings are events then.
		if found := slices.Sorted(maps.Keys(kinds)); !tt.up && !slices.Equal(found, every) {
			t.Errorf("%s: told of %v", tt.name, found)
		}
		if err := process.Wait(); err == nil || process.ProcessState.ExitCode() != -1 {
			t.Errorf("%s: the orphan's process: %v", tt.name, err)
		}
		within(t, 5*time.Second, tt.name+": all of it is gone", func() (bool, string) {
			left := traces(t, s, tt.id)
			return len(left) == 0, strings.Join(left, ", ")
		})
		untouched()
	}
	if out := s.Dayfly(t.Context(), "audit", "--fix"); out.Code != 0 {
		t.Errorf("again: exit %d: %s%s", out.Code, out.Stdout, out.Stderr)
	}
	c = again(t, s)
	kinds := map[string][]string{}
	for e, err := range c.Events(t.Context(), sdk.EventOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == sdk.ReconcileReclaimed {
			kinds[e.Sandbox] = append(kinds[e.Sandbox], e.Cause)
			if e.Actor != "reconciler" || e.Message == "" {
				t.Errorf("event %+v", e)
			}
		}
	}
	if len(kinds) != 2 {
		t.Errorf("events tell of %v", kinds)
	}
	for id, found := range kinds {
		slices.Sort(found)
		if !slices.Equal(slices.Compact(found), every) {
			t.Errorf("events tell of %s: %v", id, found)
		}
	}
	if got := sh(t, c.Sandbox(b.ID), "cat kept"); got != "mine" {
		t.Errorf("the survivor says %q", got)
	}
	untouched()
}
