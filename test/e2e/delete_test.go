package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/cgroup"
	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// deleteMax is how long a DELETE may wait for the machine to be gone.
const deleteMax = 10 * time.Second

// TestDeleteWhileTheMachineIsBeingMade is bug 3: a start under way keeps no DELETE from being accepted and done.
func TestDeleteWhileTheMachineIsBeingMade(t *testing.T) {
	t.Parallel()
	s, c := own(t)
	key := adminKey(t, s)
	const tries, parallel, latest = 50, 5, 40 * time.Millisecond
	var g errgroup.Group
	g.SetLimit(parallel)
	early := make(chan bool, tries)
	for i := range tries {
		g.Go(func() error {
			a, err := request(t.Context(), s, key, "POST", "/v1/sandboxes", `{"timeout_seconds":120}`, "Prefer", "respond-async")
			if err != nil || a.status != http.StatusAccepted {
				return fmt.Errorf("create: %d %s (%w)", a.status, a.body, err)
			}
			<-time.After(latest * time.Duration(i) / tries)
			began, id := time.Now(), a.field("id")
			now, err := request(t.Context(), s, key, "GET", "/v1/sandboxes/"+id, "")
			if err != nil {
				return err
			}
			early <- now.field("status") == "provisioning"
			a, err = request(t.Context(), s, key, "DELETE", "/v1/sandboxes/"+id, "")
			if err != nil || a.status != http.StatusOK || a.field("status") != "deleted" || a.field("end_reason") != "requested" {
				return fmt.Errorf("delete %s: %d %s (%w)", id, a.status, a.body, err)
			}
			if took := time.Since(began); took > deleteMax {
				return fmt.Errorf("delete %s took %s", id, took)
			}
			if lives, err := s.Lives(id); lives || err != nil {
				return fmt.Errorf("bug 105: %s lives after its DELETE answered (%w)", id, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	close(early)
	starting := 0
	for e := range early {
		if e {
			starting++
		}
	}
	t.Logf("%d of %d were still being made", starting, tries)
	if starting == 0 {
		t.Error("none was deleted while it was being made")
	}
	sameLists(t, s, c)
	within(t, reclaimMax, "nothing is left", func() (bool, string) {
		a := audit(t, s)
		var left []string
		for _, o := range a.Objects {
			if strings.HasPrefix(o.Owner, "sb") {
				left = append(left, o.State+" "+o.Kind+" "+o.Owner)
			}
		}
		return a.code == 0 && len(left) == 0, strings.Join(left, "\n")
	})
}

func TestDeleteInEveryState(t *testing.T) {
	s, c := shared(t)
	for _, tt := range []struct {
		name string
		make func(t *testing.T, b *sdk.Sandbox)
		want sdk.Status
	}{
		{"running", func(*testing.T, *sdk.Sandbox) {}, sdk.StatusDeleted},
		{"its agent hangs", func(t *testing.T, b *sdk.Sandbox) { signalFirst(t, s, b, unix.SIGSTOP) }, sdk.StatusDeleted},
		{"it is frozen from outside", func(t *testing.T, b *sdk.Sandbox) {
			if err := group(t, s, b.ID).Freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, sdk.StatusDeleted},
		{"its agent was killed", func(t *testing.T, b *sdk.Sandbox) {
			killFirst(t, s, b)
			dead(t, s, b.ID, deleteMax)
			within(t, deleteMax, "the server knows", func() (bool, string) { // a DELETE before it does is the reason of the end
				info := mustGet(t, c, b.ID)
				return info.Status.Ended(), string(info.Status)
			})
		}, sdk.StatusFailed},
		{"after memory ran out", func(t *testing.T, b *sdk.Sandbox) {
			res, err := b.Exec(t.Context(), sdk.Command("python3 -c 'x = bytearray(10**10)'"), sdk.ExecOptions{Timeout: time.Minute})
			if err != nil || !res.OOMKilled {
				t.Errorf("memory did not run out: %+v, %v", res, err)
			}
		}, sdk.StatusDeleted},
		{"its disk is full", func(t *testing.T, b *sdk.Sandbox) {
			if res := try(t, b, "dd if=/dev/zero of=big bs=1M count=1000"); res.ExitCode == 0 {
				t.Error("the disk is not full")
			}
		}, sdk.StatusDeleted},
		{"its clients wait", func(t *testing.T, b *sdk.Sandbox) { busy(t, s, b) }, sdk.StatusDeleted},
		{"bug 106: what the host knows of it was removed by hand", func(t *testing.T, b *sdk.Sandbox) {
			for _, path := range []string{filepath.Join("/run/dayfly", s.Installation, b.ID), filepath.Join(s.Data, "state", b.ID+".json")} {
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
			}
		}, sdk.StatusDeleted},
		{"bug 106: others write to the disk meanwhile", func(t *testing.T, b *sdk.Sandbox) {
			other := box(t, c, sdk.CreateOptions{DiskMB: 1024})
			_, err := other.Exec(t.Context(), sdk.Command("nohup dd if=/dev/zero of=big bs=1M count=400 conv=fsync >/dev/null 2>&1 &"), sdk.ExecOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}, sdk.StatusDeleted},
		{"gone already", func(t *testing.T, b *sdk.Sandbox) {
			if err := b.Delete(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, sdk.StatusDeleted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := sdk.CreateOptions{MemoryMB: 256, DiskMB: 256}
			if tt.name == "after memory ran out" {
				o.Isolation = linux // under gVisor the machine may have ended
			}
			b := box(t, c, o)
			tt.make(t, b)
			var g errgroup.Group
			for range 2 { // at once
				g.Go(func() error {
					began := time.Now()
					info, err := c.Delete(t.Context(), b.ID)
					if took := time.Since(began); err != nil || took >= deleteMax || !info.Status.Ended() {
						return fmt.Errorf("delete: %s, %w after %s", info.Status, err, took)
					}
					if lives, err := s.Lives(b.ID); lives || err != nil {
						return fmt.Errorf("bug 105: it lives after its DELETE answered (%w)", err)
					}
					return nil
				})
			}
			if err := g.Wait(); err != nil {
				t.Error(err)
			}
			if info := mustGet(t, c, b.ID); info.Status != tt.want {
				t.Errorf("status %s, %s; want %s", info.Status, info.EndReason, tt.want)
			}
			within(t, reclaimMax, "nothing is left", func() (bool, string) {
				left := traces(t, s, b.ID)
				return len(left) == 0, strings.Join(left, "\n")
			})
		})
	}
}

// group is a sandbox's control group.
func group(t *testing.T, s *host.Server, id string) *cgroup.Group {
	t.Helper()
	h, err := cgroup.Detect("/")
	if err != nil {
		t.Fatal(err)
	}
	g, err := h.Group(s.Installation, id)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestATeardownThatFailsIsTriedAgainAndHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	s, c := own(t)
	stuck, neighbour := box(t, c, sdk.CreateOptions{}), box(t, c, sdk.CreateOptions{})
	dir := filepath.Join("/run/dayfly", s.Installation, stuck.ID)
	immutable(t, dir, true)
	t.Cleanup(func() {
		if _, err := os.Stat(dir); err == nil {
			immutable(t, dir, false)
		}
	})
	done, asked := make(chan struct{}), time.Now()
	go func() {
		defer close(done)
		if _, err := c.Delete(context.WithoutCancel(t.Context()), stuck.ID); err != nil {
			t.Error(err)
		}
	}()
	const tries = 3
	within(t, deleteMax, "the log tells of it, try by try", func() (bool, string) {
		var told []string
		for line := range strings.Lines(s.LogTail()) {
			if strings.Contains(line, "teardown of a sandbox") && strings.Contains(line, stuck.ID) {
				told = append(told, line)
			}
		}
		return len(told) >= tries && strings.Contains(told[0], "run directory"), strings.Join(told, "")
	})
	if lives, err := s.Lives(stuck.ID); lives || err != nil {
		t.Errorf("it lives (%v)", err)
	}
	if _, err := os.Stat(filepath.Join(s.Data, "pool", "disks", stuck.ID)); !os.IsNotExist(err) {
		t.Errorf("its disk waits for the step that fails (%v)", err)
	}
	if info := mustGet(t, c, stuck.ID); info.Status != sdk.StatusDeleting {
		t.Errorf("it is %s", info.Status)
	}
	if r, err := c.Ready(t.Context()); err != nil || !r.Ready {
		t.Errorf("the server takes no work for it: %+v (%v)", r, err)
	} else if !slices.ContainsFunc(r.Degraded, func(d sdk.Stuck) bool {
		return d.Sandbox == stuck.ID && d.Step == "remove run directory" && d.Tries >= tries
	}) {
		t.Errorf("bug 115: readyz does not name it: %+v", r.Degraded)
	}
	began := time.Now()
	other := box(t, c, sdk.CreateOptions{})
	for _, b := range []*sdk.Sandbox{neighbour, other} {
		sh(t, b, "true")
		if err := b.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if took := time.Since(began); took > deleteMax/2 {
		t.Errorf("others took %s", took)
	}
	if audited := audit(t, s); !slices.ContainsFunc(audited.Objects, func(o struct{ Kind, Name, Owner, State string }) bool { return o.Owner == stuck.ID }) {
		t.Errorf("audit does not show it: %+v", audited)
	}
	within(t, 2*deleteMax, "bug 115: the record closes though the obstacle stays", func() (bool, string) {
		info := mustGet(t, c, stuck.ID)
		return info.Status == sdk.StatusDeleted, string(info.Status)
	})
	<-done
	if info := mustGet(t, c, stuck.ID); info.EndedAt.After(asked.Add(deleteMax / 2)) {
		t.Errorf("bug 30: asked for at %s, ended at %s", asked, info.EndedAt)
	}
	if a := audit(t, s); a.code == 0 {
		t.Errorf("bug 115: audit does not mind what is left: %+v", a)
	}
	immutable(t, dir, false)
	within(t, 3*deleteMax, "the next try removes it", func() (bool, string) {
		_, err := os.Stat(dir)
		return os.IsNotExist(err), dir
	})
	within(t, 3*deleteMax, "readyz forgets it", func() (bool, string) {
		r, err := c.Ready(t.Context())
		return err == nil && len(r.Degraded) == 0, fmt.Sprintf("%+v (%v)", r.Degraded, err)
	})
	within(t, reclaimMax, "nothing is left", func() (bool, string) {
		left := traces(t, s, stuck.ID)
		return len(left) == 0, strings.Join(left, "\n")
	})
}

const immutableFlag = 0x10 // FS_IMMUTABLE_FL of linux/fs.h

// immutable makes a directory refuse every change, or lets it go.
func immutable(t *testing.T, dir string, yes bool) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		t.Skipf("%s has no flags: %v", dir, err)
	}
	flags &^= immutableFlag
	if yes {
		flags |= immutableFlag
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags); err != nil {
		t.Skipf("%s cannot be made immutable: %v", dir, err)
	}
}
