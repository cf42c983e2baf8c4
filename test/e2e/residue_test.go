package e2e_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"dayfly.dev/dayfly/internal/cgroup"
	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// reclaimMax is how long after a DELETE namespaces, interfaces and space may be on their way.
const reclaimMax = 5 * time.Second

func TestAfterDestroyTheHostIsAsBefore(t *testing.T) {
	base, _ := shared(t)
	alone := host.Alone()
	if !alone && os.Getenv("DAYFLY_TEST_ALONE") != "" {
		t.Error("other tests or servers of Dayfly's run on this host, so it cannot be compared")
	}
	before, err := host.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	s, err := host.Start(t.Context(), host.Options{Image: base})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Errorf("purge: %v", err)
		}
		unchanged(t, before, alone, func(host.Thing) bool { return false })
		if _, err := os.Stat(s.Data); !os.IsNotExist(err) {
			t.Errorf("--purge left the data directory (%v)", err)
		}
	}()
	c := client(t, s)
	const count = 6
	var g errgroup.Group
	for i := range count {
		g.Go(func() error {
			b, err := c.Create(t.Context(), sdk.CreateOptions{NoInternet: i == 0})
			if err != nil {
				return err
			}
			_, err = b.Exec(t.Context(), sdk.Command("setsid sleep 1000 >/dev/null 2>&1 & dd if=/dev/zero of=big bs=1M count=20 status=none; echo x > /dev/shm/x; sudo mount -t tmpfs none /mnt"), sdk.ExecOptions{})
			if err == nil && i%2 == 1 {
				err = b.Delete(t.Context())
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(); err != nil { // so that destroying must find everything by itself
		t.Fatal(err)
	}
	out := s.Dayfly(t.Context(), "down", "--destroy")
	if out.Code != 0 {
		t.Fatalf("down --destroy: exit %d: %s", out.Code, out.Stderr)
	}
	unchanged(t, before, alone, func(th host.Thing) bool { return th.Kind == host.KindFile && th.Name == s.Data })
	if left, err := s.Left(); err != nil || len(onlyKernel(s, left)) > 0 {
		t.Errorf("left: %v (%v)", left, err)
	}
	if out := s.Dayfly(t.Context(), "audit"); out.Code != 0 || !strings.HasPrefix(out.Stdout, "0 objects") {
		t.Errorf("audit after destroy: exit %d: %s%s", out.Code, out.Stdout, out.Stderr)
	}
	if out := s.Dayfly(t.Context(), "down", "--destroy"); out.Code != 0 {
		t.Errorf("a second down --destroy: exit %d: %s", out.Code, out.Stderr)
	}
	c = again(t, s) // keys and images were kept
	for b, err := range c.List(t.Context(), sdk.ListOptions{IncludeEnded: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if info := b.Info(); !info.Status.Ended() || info.EndReason != "shutdown" && info.EndReason != "requested" {
			t.Errorf("%s: %s, %s", b.ID, info.Status, info.EndReason)
		}
	}
	box(t, c, sdk.CreateOptions{})
}

// unchanged fails the test unless the host is as it was before, save what may be new. Where others work on this host at the
// same time, what they change cannot be told from ours and is only logged; what bears our mark is looked at by Left.
func unchanged(t *testing.T, before []host.Thing, alone bool, may func(host.Thing) bool) {
	t.Helper()
	var fresh, gone []host.Thing
	deadline := time.Now().Add(reclaimMax)
	for tick := time.Tick(100 * time.Millisecond); ; <-tick {
		after, err := host.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		fresh, gone = slices.DeleteFunc(host.New(before, after), may), host.Lost(before, after)
		if len(fresh)+len(gone) == 0 || time.Now().After(deadline) {
			break
		}
	}
	if len(fresh)+len(gone) == 0 {
		return
	}
	if alone && host.Alone() {
		t.Errorf("the host has changed: new %v, gone %v", fresh, gone)
	} else {
		t.Logf("others work on this host: new %v, gone %v", fresh, gone)
	}
}

func TestAfterDeleteEverythingOfASandboxIsGone(t *testing.T) {
	s, c := shared(t)
	var g errgroup.Group
	for range 4 {
		b := box(t, c, sdk.CreateOptions{})
		sh(t, b, "(trap '' TERM; setsid sleep 1000) >/dev/null 2>&1 & dd if=/dev/zero of=big bs=1M count=50 status=none")
		g.Go(func() error {
			if err := b.Delete(t.Context()); err != nil {
				t.Error(err)
			}
			if lives, err := s.Lives(b.ID); lives || err != nil {
				t.Errorf("bug 105: a process of %s lives after its DELETE answered (%v)", b.ID, err)
			}
			if info, err := c.Delete(t.Context(), b.ID); err != nil || info.Status != sdk.StatusDeleted {
				t.Errorf("bug 3: a second DELETE: %s, %v", info.Status, err)
			}
			deadline := time.Now().Add(reclaimMax)
			for tick := time.Tick(100 * time.Millisecond); ; <-tick {
				found := traces(t, s, b.ID)
				if len(found) == 0 {
					return nil
				}
				if time.Now().After(deadline) {
					t.Errorf("bug 112: of %s there still is: %v", b.ID, found)
					return nil
				}
			}
		})
	}
	_ = g.Wait()
}

// traces lists what on the host bears a sandbox's id, or audit attributes to it.
func traces(t *testing.T, s *host.Server, id string) []string {
	t.Helper()
	var found []string
	all, err := host.Snapshot()
	if err != nil {
		t.Error(err)
	}
	for _, th := range all {
		if strings.Contains(th.Name, id) {
			found = append(found, th.String())
		}
	}
	aliases, _ := filepath.Glob("/sys/class/net/*/ifalias")
	for _, f := range aliases {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), id) {
			found = append(found, f)
		}
	}
	_ = filepath.WalkDir(s.Data, func(path string, _ os.DirEntry, err error) error {
		if strings.Contains(filepath.Base(path), id) {
			found = append(found, path)
		}
		if filepath.Base(path) == "images" {
			return filepath.SkipDir
		}
		return nil
	})
	for _, o := range audit(t, s).Objects {
		if o.Owner == id {
			found = append(found, o.State+" "+o.Kind)
		}
	}
	return found
}

// audited is the JSON of an audit.
type audited struct {
	Objects     []struct{ Kind, Name, Owner, State string }
	Unaccounted int
	code        int
}

func audit(t *testing.T, s *host.Server) audited {
	t.Helper()
	out := s.Dayfly(context.WithoutCancel(t.Context()), "audit", "-o", "json")
	a := audited{code: out.Code}
	if err := json.Unmarshal([]byte(out.Stdout), &a); err != nil {
		t.Errorf("audit: exit %d: %v: %s%s", out.Code, err, out.Stdout, out.Stderr)
	}
	return a
}

func TestAuditFindsAndTheSweepRemovesOrphans(t *testing.T) {
	t.Parallel()
	s, c := own(t)
	b := box(t, c, sdk.CreateOptions{})
	sh(t, b, "echo mine > kept")
	if a := audit(t, s); a.code != 0 || a.Unaccounted != 0 {
		t.Fatalf("audit of a running server: exit %d: %+v", a.code, a)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if a := audit(t, s); a.code != 0 || a.Unaccounted != 0 {
		t.Errorf("audit with the server down: exit %d: %+v", a.code, a)
	}

	const orphan, foreign = "sborphan0000000000000a", "sborphan0000000000000b"
	process := plantGroup(t, s.Installation, orphan)
	stranger := plantGroup(t, "zzzzzz", foreign) // of another installation
	plantDisk(t, s, orphan)
	if err := os.MkdirAll(filepath.Join("/run/dayfly", s.Installation, orphan, "in"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.Data, "state", orphan+".json"), []byte("{"), 0o600); err != nil { // cut short
		t.Fatal(err)
	}
	foreignFile := filepath.Join(s.Data, "state", "notes.txt")
	if err := os.WriteFile(foreignFile, []byte("not Dayfly's"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := audit(t, s)
	if a.code != 1 {
		t.Errorf("audit with orphans: exit %d", a.code)
	}
	kinds := map[string]bool{}
	for _, o := range a.Objects {
		if o.State == "unaccounted" {
			kinds[o.Kind] = true
			if o.Owner != orphan {
				t.Errorf("unaccounted for: %+v", o)
			}
		}
	}
	for _, want := range []string{"machine", "process", "disk", "run directory", "state"} {
		if !kinds[want] {
			t.Errorf("audit does not find the orphan's %s: %v", want, kinds)
		}
	}
	out := s.Dayfly(t.Context(), "audit")
	if out.Code != 1 || !strings.Contains(out.Stdout, "unaccounted  "+orphan) {
		t.Errorf("audit as text: exit %d: %s", out.Code, out.Stdout)
	}

	c = again(t, s)
	within(t, 10*time.Second, "bug 9: the sweep removes the orphan", func() (bool, string) {
		found := traces(t, s, orphan)
		return len(found) == 0, strings.Join(found, ", ")
	})
	if err := process.Wait(); err == nil || process.ProcessState.ExitCode() != -1 {
		t.Errorf("the orphan's process: %v", err)
	}
	if got := sh(t, c.Sandbox(b.ID), "cat kept"); got != "mine" {
		t.Errorf("the survivor says %q", got)
	}
	if err := stranger.Process.Signal(os.Signal(os.Kill)); err != nil {
		t.Errorf("a foreign process was ended: %v", err)
	}
	_ = stranger.Wait()
	if _, err := os.Stat(foreignFile); err != nil {
		t.Errorf("a foreign file went: %v", err)
	}
	if a := audit(t, s); a.code != 0 {
		t.Errorf("audit after the sweep: %+v", a)
	}
}

// plantDisk makes a disk that no record knows, of whatever kind the pool is.
func plantDisk(t *testing.T, s *host.Server, id string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(s.Data, "pool", "disks")); err != nil {
		if err := os.MkdirAll(filepath.Join(s.Data, "plain", "disks", id, "u"), 0o700); err != nil {
			t.Fatal(err)
		}
		return
	}
	disk := filepath.Join(s.Data, "pool", "disks", id)
	if out, err := exec.Command("btrfs", "subvolume", "create", disk).CombinedOutput(); err != nil {
		t.Fatalf("make a disk: %v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(disk, "left"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
}

// plantGroup makes a control group as a lost sandbox would leave it, with one process in it.
func plantGroup(t *testing.T, installation, id string) *exec.Cmd {
	t.Helper()
	h, err := cgroup.Detect("/")
	if err != nil {
		t.Fatal(err)
	}
	g, err := h.Group(installation, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Create(limits); err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: "/bin/sleep", Args: []string{"sleep", "1000"}}
	if err := g.StartCmd(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Kill(context.Background()); err != nil {
			t.Error(err)
		}
		_ = g.Remove()
		if installation == "zzzzzz" {
			_ = h.RemoveInstallation(installation)
		}
	})
	return cmd
}

func TestBug19AMachineThatDiesBehindTheServersBackIsNoticed(t *testing.T) {
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	done := make(chan error, 1)
	go func() {
		_, err := b.Exec(context.WithoutCancel(t.Context()), sdk.Argv("sleep", "600"), sdk.ExecOptions{})
		done <- err
	}()
	within(t, 10*time.Second, "the command runs", func() (bool, string) {
		for p, err := range b.Processes(t.Context(), sdk.ProcessListOptions{}) {
			return err == nil && p.Status == "running", p.Command
		}
		return false, ""
	})
	h, err := cgroup.Detect("/")
	if err != nil {
		t.Fatal(err)
	}
	g, err := h.Group(s.Installation, b.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if e := wantCode(t, "bug 12: the command in flight", err, sdk.CodeGone); e.Status != http.StatusGone {
			t.Errorf("status %d", e.Status)
		}
	case <-time.After(10 * time.Second):
		t.Error("bug 12: the command's caller still waits")
	}
	within(t, 5*time.Second, "the record tells", func() (bool, string) {
		info := mustGet(t, c, b.ID)
		return info.Status == sdk.StatusFailed && info.EndReason == "crashed", string(info.Status) + " " + info.EndReason
	})
}
