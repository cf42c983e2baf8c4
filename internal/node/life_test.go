package node_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/node"
)

func TestDestroy(t *testing.T) {
	t.Run("an id that never was", func(t *testing.T) {
		w := newWorld(t)
		if e := w.destroy(dayfly.NewID(dayfly.PrefixSandbox)); e.ID == "" {
			t.Errorf("ending = %+v", e)
		}
		if _, err := w.manager.Destroy(ctxFor(t), "../etc"); err == nil {
			t.Error("Destroy of no id succeeded")
		}
	})
	t.Run("many at once", func(t *testing.T) {
		w := newWorld(t)
		sb, other := w.create(), make(chan dayfly.Sandbox, 1)
		var g sync.WaitGroup
		for range 20 {
			g.Go(func() { w.destroy(sb.ID) })
		}
		g.Go(func() { other <- w.create() })
		g.Wait()
		w.nothingOf(sb.ID)
		w.runs((<-other).ID)
		if len(w.net.shared) > 0 {
			t.Error(w.net.shared)
		}
	})
	t.Run("an agent that hangs", func(t *testing.T) {
		w := newWorld(t)
		sb := w.create()
		w.signal(sb.ID, syscall.SIGSTOP)
		w.driver.instance(sb.ID).cut()
		m := w.machine(sb.ID)
		var g sync.WaitGroup
		for range 4 { // they wait for a hello that never comes
			g.Go(func() {
				_, err := m.Stat(ctxFor(t), "/")
				wantCode(t, err, dayfly.CodeGone)
			})
		}
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := m.Stat(short, "/"); err == nil || short.Err() == nil {
			t.Errorf("Stat = %v before its context ended", err)
		}
		start := time.Now()
		w.destroy(sb.ID)
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("Destroy took %s", d)
		}
		g.Wait()
		w.nothingOf(sb.ID)
	})
	t.Run("waits no longer than its context", func(t *testing.T) {
		w := newWorld(t)
		held, letGo := make(chan struct{}), make(chan struct{})
		w.driver.before = func(dayfly.InstanceSpec) error { close(held); <-letGo; return errTest }
		sb := w.sandbox()
		var g sync.WaitGroup
		g.Go(func() { _ = w.manager.Create(ctxFor(t), sb, dayfly.Image{}) })
		<-held
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := w.manager.Destroy(short, sb.ID); err == nil {
			t.Error("Destroy met a create that was under way")
		}
		close(letGo)
		g.Wait()
		w.nothingOf(sb.ID)
	})
}

func TestEndings(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  *node.LeaseEnd // written by an enforcer, or nil
		want dayfly.EndReason
		at   time.Duration // boot time
	}{
		{"nobody wrote it down", nil, dayfly.EndCrashed, time.Hour},
		{"emptied by itself", &node.LeaseEnd{BootID: bootTest, Boot: 50 * time.Minute}, dayfly.EndCrashed, 50 * time.Minute},
		{"at its deadline", &node.LeaseEnd{BootID: bootTest, Boot: 50 * time.Minute, Expired: true}, dayfly.EndLeaseExpired, 50 * time.Minute},
		{"of another boot", &node.LeaseEnd{BootID: "x", Boot: time.Minute, Expired: true}, dayfly.EndLeaseExpired, time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			sb := w.create()
			m := w.machine(sb.ID)
			if tt.end != nil {
				w.leases.record(sb.ID, *tt.end)
			}
			w.signal(sb.ID, syscall.SIGKILL)
			e := <-w.manager.Endings()
			if e.ID != sb.ID || e.Reason != tt.want || !e.At.Equal(wallTest.Add(tt.at)) {
				t.Errorf("ending = %+v, want %s at %s", e, tt.want, tt.at)
			}
			_, err := m.Run(ctxFor(t), command("true"), nil)
			wantCode(t, err, dayfly.CodeGone)
			if dayfly.AsError(err).Details["sandbox"] != sb.ID {
				t.Errorf("error %v does not name the sandbox that ended", err)
			}
			wantCode(t, w.manager.Renew(ctxFor(t), sb.ID, sb.Lease), dayfly.CodeGone)
			w.destroy(sb.ID)
			w.nothingOf(sb.ID)
		})
	}
}

func TestRenew(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	lease, _, err := sb.Lease.Extend(w.clock.Now(), time.Hour)
	wantCode(t, err, "")
	wantCode(t, w.manager.Renew(ctxFor(t), sb.ID, lease), "")
	if got, err := w.leases.Read(sb.ID); err != nil || got != lease {
		t.Errorf("lease file = %+v, %v", got, err)
	}
	if b, err := os.ReadFile(filepath.Join(w.dir, "run", sb.ID, "in", "grant")); err != nil || string(b) != "7200\n" {
		t.Errorf("grant = %q, %v", b, err)
	}
	w.leases.dead.Store(true)
	wantCode(t, w.manager.Renew(ctxFor(t), sb.ID, lease), dayfly.CodeUnavailable)
	w.leases.dead.Store(false)
	wantCode(t, w.manager.Renew(ctxFor(t), dayfly.NewID(dayfly.PrefixSandbox), lease), dayfly.CodeGone)
	w.destroy(sb.ID)
	wantCode(t, w.manager.Renew(ctxFor(t), sb.ID, lease), dayfly.CodeGone)
	w.nothingOf(sb.ID)
}

func TestExpire(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	lease, ended, err := w.manager.Expire(ctxFor(t), sb.ID)
	if err != nil || ended || lease != sb.Lease {
		t.Errorf("Expire = %+v, %v, %v before the deadline", lease, ended, err)
	}
	w.runs(sb.ID)
	w.clock.step(time.Hour)
	if _, ended, err = w.manager.Expire(ctxFor(t), sb.ID); err != nil || !ended {
		t.Errorf("Expire = %v, %v at the deadline", ended, err)
	}
	if e := <-w.manager.Endings(); e.Reason != dayfly.EndLeaseExpired {
		t.Errorf("ending = %+v", e)
	}
	w.destroy(sb.ID)
	if _, ended, err = w.manager.Expire(ctxFor(t), sb.ID); err != nil || !ended {
		t.Errorf("Expire = %v, %v without a lease file", ended, err)
	}
	other := w.create()
	if err := os.WriteFile(filepath.Join(w.dir, "leases", other.ID), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ended, err = w.manager.Expire(ctxFor(t), other.ID); err == nil || ended {
		t.Errorf("Expire = %v, %v with an unreadable lease file", ended, err)
	}
	w.runs(other.ID)
}

func TestSweep(t *testing.T) {
	t.Run("removes what nobody owns", func(t *testing.T) {
		w := newWorld(t)
		kept, orphan := w.create(), w.create()
		slot := w.net.slotOf(orphan.ID)
		w.manager.Close()
		w.start() // it recovers nothing, so both are nobody's
		_ = w.slots.Mark(slot)
		if _, err := os.Create(filepath.Join(w.dir, "state", "notes.txt")); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Remove(w.stateFile(kept.ID)), w.leases.Remove(orphan.ID)); err != nil {
			t.Fatal(err)
		}
		swept, err := w.manager.Sweep(ctxFor(t), nil, false, w.note)
		wantCode(t, err, "")
		told := map[string][]string{}
		for _, f := range swept.Findings {
			told[f.Sandbox] = append(told[f.Sandbox], f.Kind)
			if f.Name == "" || f.Why == "" || f.Done != "removed" || f.Failed {
				t.Errorf("finding %+v", f)
			}
		}
		every := []string{"lease", "state", "run_directory", "disk", "network", "machine"}
		if !slices.Equal(told[orphan.ID], without(every, "lease")) || !slices.Equal(told[kept.ID], without(every, "state")) {
			t.Errorf("told of %v", told)
		}
		w.nothingOf(orphan.ID)
		w.nothingOf(kept.ID) // without a state file too
		if !w.freeSlot(slot) {
			t.Error("its slot is not free")
		}
		if left, _ := names(filepath.Join(w.dir, "state")); !slices.Equal(left, []string{"notes.txt"}) {
			t.Errorf("state directory = %v", left)
		}
	})
	for name, spoil := range map[string]func(w *world){
		"disks":    func(w *world) { set(&w.pool.fail, "List") },
		"networks": func(w *world) { set(&w.net.fail, "List") },
		"leases":   func(w *world) { set(&w.leases.fail, "List") },
	} {
		t.Run("bug 18: removes nothing when it cannot list the "+name, func(t *testing.T) {
			w := newWorld(t)
			orphan := w.create()
			w.manager.Close()
			w.start()
			spoil(w)
			if err := w.sweep(); err == nil {
				t.Error("Sweep succeeded")
			}
			w.pool.fail.Store(nil)
			w.net.fail.Store(nil)
			w.leases.fail.Store(nil)
			rec, err := w.manager.Recover(ctxFor(t), []dayfly.Sandbox{orphan}, w.note)
			if err != nil || len(rec.Running) != 1 {
				t.Fatalf("Recover = %+v, %v", rec, err)
			}
			w.runs(orphan.ID)
		})
	}
}

func without(list []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == one })
}

// TestSweepAmidLife sweeps all the time while machines come and go.
func TestSweepAmidLife(t *testing.T) {
	w := newWorld(t)
	stop := make(chan struct{})
	var sweeper, users sync.WaitGroup
	sweeps := 0
	sweeper.Go(func() {
		for ; ; sweeps++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := w.sweep(); err != nil {
				t.Error(err)
			}
		}
	})
	for range 4 {
		users.Go(func() {
			for range 8 {
				sb := w.sandbox()
				if err := w.manager.Create(ctxFor(t), sb, dayfly.Image{}); err != nil {
					t.Errorf("Create: %v", err)
					return
				}
				if res, err := w.machine(sb.ID).Run(ctxFor(t), command("echo hello"), nil); err != nil || len(res.Stdout.Head) == 0 {
					t.Errorf("Run = %q, %v", res.Stdout.Head, err)
				}
				w.destroy(sb.ID)
				w.nothingOf(sb.ID)
			}
		})
	}
	users.Wait()
	close(stop)
	sweeper.Wait()
	if sweeps < 3 || len(w.net.shared) > 0 {
		t.Errorf("%d sweeps; %v", sweeps, w.net.shared)
	}
}

func TestAdmit(t *testing.T) {
	small := dayfly.Limits{VCPU: 1, MemoryBytes: 128 << 20, DiskBytes: 256 << 20}
	for _, tt := range []struct {
		name   string
		limits dayfly.Limits
		spoil  func(w *world)
		want   dayfly.Code
		says   string
	}{
		{"fits", small, nil, "", ""},
		{"never enough vCPUs", dayfly.Limits{VCPU: 1 << 20}, nil, dayfly.CodeSizeUnavailable, "vcpu"},
		{"never enough memory", dayfly.Limits{VCPU: 1, MemoryBytes: 1 << 60}, nil, dayfly.CodeSizeUnavailable, "memory_mb"},
		{"never enough disk", dayfly.Limits{VCPU: 1, DiskBytes: 1 << 41}, nil, dayfly.CodeSizeUnavailable, "disk_mb"},
		{"no memory now", small, func(w *world) { w.driver.idle = 1 << 50; w.start() }, dayfly.CodeNoCapacity, "memory"},
		{"just enough disk", small, func(w *world) { w.pool.usage = func() (int64, int64) { return 1 << 40, 256 << 20 } }, "", ""},
		{"no disk now", small, func(w *world) { w.pool.usage = func() (int64, int64) { return 1 << 40, 256<<20 - 1 } }, dayfly.CodeNoCapacity, "disk"},
		{"no warden", small, func(w *world) { w.leases.dead.Store(true) }, dayfly.CodeUnavailable, ""},
		{"unreadable pool", small, func(w *world) { set(&w.pool.fail, "Usage") }, dayfly.CodeInternal, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			if tt.spoil != nil {
				tt.spoil(w)
			}
			err := w.manager.Admit(ctxFor(t), tt.limits, dayfly.IsolationFake)
			wantCode(t, err, tt.want)
			if err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %q does not name %q", err, tt.says)
			}
			if e := dayfly.AsError(err); e != nil && e.Code == dayfly.CodeNoCapacity && (e.RetryAfter == 0 || e.Details["missing"] != tt.says) {
				t.Errorf("error = %+v", e)
			}
		})
	}
}

func TestAdmitLeavesThreadsForTheServer(t *testing.T) {
	for _, tt := range []struct {
		name                 string
		machines, used, most int
		want                 dayfly.Code
	}{
		{"an empty host", 1, 300, 32768, ""},
		{"just enough", 1, 32768 - 512 - 32, 32768, ""},
		{"one too few", 1, 32768 - 512 - 31, 32768, dayfly.CodeNoCapacity},
		{"others start too", 2, 32768 - 512 - 32, 32768, dayfly.CodeNoCapacity},
		{"more in use than the limit, which was lowered", 1, 5000, 4096, dayfly.CodeNoCapacity},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := node.ThreadsFor(tt.machines, tt.used, tt.most)
			wantCode(t, err, tt.want)
			if e := dayfly.AsError(err); err != nil && (e.RetryAfter == 0 || e.Details["missing"] != "threads") {
				t.Errorf("error = %+v", e)
			}
		})
	}
	for _, tt := range []struct {
		name, text string
		want       int
	}{
		{"as the kernel writes it", "0.20 0.18 0.12 1/821 4711\n", 821},
		{"empty", "", 0},
		{"no number", "0.20 0.18 0.12 1/x 4711\n", 0},
		{"none", "0.20 0.18 0.12 0/0 4711\n", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := node.ThreadsIn(tt.text); got != tt.want || (err == nil) != (tt.want > 0) {
				t.Errorf("%d, %v; want %d", got, err, tt.want)
			}
		})
	}
}

func TestIsolationAndProblems(t *testing.T) {
	w := newWorld(t)
	for asked, want := range map[dayfly.Isolation]dayfly.Code{
		dayfly.IsolationAuto: "", dayfly.IsolationFake: "", dayfly.IsolationLinux: dayfly.CodeInvalid, "x": dayfly.CodeInvalid,
	} {
		got, err := w.manager.Isolation(asked)
		wantCode(t, err, want)
		if err == nil && got != dayfly.IsolationFake {
			t.Errorf("Isolation(%s) = %s", asked, got)
		}
	}
	if p := w.manager.Problems(t.Context()); len(p) != 0 {
		t.Errorf("Problems = %v", p)
	}
	w.leases.dead.Store(true)
	set(&w.pool.fail, "Usage")
	if p := w.manager.Problems(t.Context()); len(p) != 2 || p[0].Component != "warden" || p[1].Component != "pool" {
		t.Errorf("Problems = %v", p)
	}
}

func TestClosedManager(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	m := w.machine(sb.ID)
	w.manager.Close()
	w.manager.Close()
	_, err := m.Run(ctxFor(t), command("true"), nil)
	wantCode(t, err, dayfly.CodeUnavailable)
	if ids, _ := w.driver.List(t.Context()); !slices.Contains(ids, sb.ID) {
		t.Error("closing the manager ended a machine")
	}
}
