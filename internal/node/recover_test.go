package node_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func TestRecoverKeeps(t *testing.T) {
	extended := func(sb dayfly.Sandbox) dayfly.Lease {
		sb.Lease.Deadline += 5 * time.Hour
		return sb.Lease
	}
	garbage := func(t *testing.T, w *world, id string) {
		if err := os.WriteFile(filepath.Join(w.dir, "leases", id), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name     string
		recorded bool
		spoil    func(t *testing.T, w *world, sb *dayfly.Sandbox)
		lease    func(sb dayfly.Sandbox) dayfly.Lease
	}{
		{"with a record", true, nil, nil},
		{"without a record", false, nil, nil},
		{"a lease file that is later than the record", true, func(t *testing.T, w *world, sb *dayfly.Sandbox) {
			wantCode(t, w.manager.Renew(ctxFor(t), sb.ID, extended(*sb)), "")
		}, extended},
		{"an unreadable lease file, with an extended record", true, func(t *testing.T, w *world, sb *dayfly.Sandbox) {
			garbage(t, w, sb.ID)
			sb.Lease = extended(*sb)
			w.clock.step(2 * time.Hour) // the first lease would be over
		}, func(sb dayfly.Sandbox) dayfly.Lease { return sb.Lease }},
		{"an unreadable lease file, without a record, after its first lease", false, func(t *testing.T, w *world, sb *dayfly.Sandbox) {
			garbage(t, w, sb.ID)
			w.clock.step(2 * time.Hour)
		}, func(sb dayfly.Sandbox) dayfly.Lease { return sb.Lease }},
		{"an agent that hangs", true, func(_ *testing.T, w *world, sb *dayfly.Sandbox) {
			w.signal(sb.ID, syscall.SIGSTOP)
		}, nil},
		{"a line of the state file that was cut off", true, func(t *testing.T, w *world, sb *dayfly.Sandbox) {
			f, err := os.OpenFile(w.stateFile(sb.ID), os.O_WRONLY|os.O_APPEND, 0)
			if err == nil {
				_, err = f.WriteString("\n{\"version\":1,\"sandb")
				_ = f.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"a start that the server did not see the end of", true, func(_ *testing.T, _ *world, sb *dayfly.Sandbox) {
			sb.Status = dayfly.StatusProvisioning
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			sb := w.create()
			want := sb.Lease
			if tt.lease != nil {
				defer func() { want = tt.lease(sb) }()
			}
			if tt.spoil != nil {
				tt.spoil(t, w, &sb)
			}
			if tt.lease != nil {
				want = tt.lease(sb)
			}
			var known []dayfly.Sandbox
			if tt.recorded {
				known = append(known, sb)
			}
			start := time.Now()
			rec, err := w.restart(known...)
			if err != nil || len(rec.Running) != 1 || len(rec.Ended)+len(rec.Ending) != 0 {
				t.Fatalf("Recover = %+v, %v", rec, err)
			}
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("Recover took %s", d)
			}
			got := rec.Running[0]
			if got.ID != sb.ID || got.Lease != want || got.Status != dayfly.StatusRunning || got.Labels["a"] != "b" || got.Account != "ac1" {
				t.Errorf("found %+v, want lease %+v", got, want)
			}
			if w.freeSlot(0) {
				t.Error("its slot is free")
			}
			if tt.recorded {
				if lease, err := w.leases.Read(sb.ID); err != nil || lease != want {
					t.Errorf("lease file = %+v, %v", lease, err)
				}
			}
			if tt.name != "an agent that hangs" {
				w.runs(sb.ID)
			}
			w.destroy(sb.ID)
			w.nothingOf(sb.ID)
		})
	}
}

func TestRecoverEnds(t *testing.T) {
	lastSeen := wallTest.Add(20 * time.Minute)
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, w *world, sb *dayfly.Sandbox)
		want  dayfly.EndReason
		at    time.Time
	}{
		{"no lease file", func(_ *testing.T, w *world, sb *dayfly.Sandbox) { _ = w.leases.Remove(sb.ID) },
			dayfly.EndReconciled, wallTest.Add(time.Hour)},
		{"due", func(_ *testing.T, w *world, _ *dayfly.Sandbox) { w.clock.step(3 * time.Hour) },
			dayfly.EndLeaseExpired, wallTest.Add(2 * time.Hour)},
		{"crashed", func(_ *testing.T, w *world, sb *dayfly.Sandbox) { w.kill(sb.ID) },
			dayfly.EndCrashed, wallTest.Add(time.Hour)},
		{"no state file", func(t *testing.T, w *world, sb *dayfly.Sandbox) { _ = os.Remove(w.stateFile(sb.ID)) },
			dayfly.EndCrashed, wallTest.Add(time.Hour)},
		{"damaged state file", func(t *testing.T, w *world, sb *dayfly.Sandbox) {
			_ = os.WriteFile(w.stateFile(sb.ID), []byte(`{"version":1,`), 0o600)
		}, dayfly.EndReconciled, wallTest.Add(time.Hour)},
		{"state file of another sandbox", func(t *testing.T, w *world, sb *dayfly.Sandbox) {
			w.editState(sb.ID, func(m map[string]any) { m["sandbox"].(map[string]any)["ID"] = dayfly.NewID(dayfly.PrefixSandbox) })
		}, dayfly.EndReconciled, wallTest.Add(time.Hour)},
		{"another boot", func(_ *testing.T, w *world, sb *dayfly.Sandbox) {
			w.kill(sb.ID)
			w.leases.seen = lastSeen
			w.clock.reboot()
		}, dayfly.EndHostLost, lastSeen},
		{"another boot, no heartbeat", func(_ *testing.T, w *world, sb *dayfly.Sandbox) { w.kill(sb.ID); w.clock.reboot() },
			dayfly.EndHostLost, wallTest.Add(time.Hour)},
		{"a start that was cut off", func(t *testing.T, w *world, sb *dayfly.Sandbox) {
			sb.Status = dayfly.StatusProvisioning
			w.editState(sb.ID, func(m map[string]any) { delete(m, "instance") })
		}, dayfly.EndStartupFailed, wallTest.Add(time.Hour)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			sb := w.create()
			w.manager.Close() // as if it were killed
			tt.spoil(t, w, &sb)
			rec, err := w.restart(sb)
			if err != nil || len(rec.Ended) != 1 || len(rec.Running)+len(rec.Ending) != 0 {
				t.Fatalf("Recover = %+v, %v", rec, err)
			}
			if e := rec.Ended[0]; e.ID != sb.ID || e.Reason != tt.want || !e.At.Equal(tt.at) {
				t.Errorf("ending = %+v, want %s at %s", e, tt.want, tt.at)
			}
			w.nothingOf(sb.ID)
			if !w.freeSlot(0) {
				t.Error("its slot is not free")
			}
		})
	}
	t.Run("a record without anything on the host", func(t *testing.T) {
		w := newWorld(t)
		sb := w.sandbox()
		sb.Status = dayfly.StatusRunning
		rec, err := w.restart(sb)
		if err != nil || len(rec.Ended) != 1 {
			t.Fatalf("Recover = %+v, %v", rec, err)
		}
	})
}

// kill ends a machine behind everybody's back.
func (w *world) kill(id string) {
	w.t.Helper()
	if err := w.driver.Driver.Reclaim(ctxFor(w.t), id); err != nil {
		w.t.Error(err)
	}
	<-w.driver.instance(id).Done()
}

// TestRecoverCannotLook: whoever cannot look must not destroy.
func TestRecoverCannotLook(t *testing.T) {
	mend := func(p *atomic.Pointer[string]) func(w *world) { return func(*world) { p.Store(nil) } }
	for _, tt := range []struct {
		name  string
		spoil func(w *world, id string) (mend func(w *world))
	}{
		{"disks", func(w *world, _ string) func(*world) { set(&w.pool.fail, "List"); return mend(&w.pool.fail) }},
		{"networks", func(w *world, _ string) func(*world) { set(&w.net.fail, "List"); return mend(&w.net.fail) }},
		{"leases", func(w *world, _ string) func(*world) { set(&w.leases.fail, "List"); return mend(&w.leases.fail) }},
		{"state file", func(w *world, id string) func(*world) {
			file := w.stateFile(id)
			_ = os.Rename(file, file+"x")
			_ = os.Mkdir(file, 0o700)
			return func(*world) { _ = os.Remove(file); _ = os.Rename(file+"x", file) }
		}},
		{"state of a newer version", func(w *world, id string) func(*world) {
			w.editState(id, func(m map[string]any) { m["version"] = 99 })
			return func(w *world) { w.editState(id, func(m map[string]any) { m["version"] = 1 }) }
		}},
		{"a driver that is not there", func(w *world, id string) func(*world) {
			w.editState(id, func(m map[string]any) { m["driver"] = "microvm" })
			return func(w *world) { w.editState(id, func(m map[string]any) { m["driver"] = "fake" }) }
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			sb := w.create()
			mend := tt.spoil(w, sb.ID)
			if rec, err := w.restart(sb); err == nil {
				t.Fatalf("Recover = %+v", rec)
			}
			mend(w)
			if rec, err := w.restart(sb); err != nil || len(rec.Running) != 1 {
				t.Fatalf("Recover = %+v, %v", rec, err)
			}
			w.runs(sb.ID)
		})
	}
}

func TestRecoverGoesOnClearing(t *testing.T) {
	w := newWorld(t)
	dead, alive := w.create(), w.create()
	_ = w.leases.Remove(dead.ID)
	w.manager.Close()
	set(&w.pool.fail, "Remove")
	rec, err := w.restart(dead, alive)
	if err != nil || len(rec.Ending) != 1 || rec.Ending[0].ID != dead.ID || len(rec.Running) != 1 || len(rec.Ended) != 0 {
		t.Fatalf("Recover = %+v, %v", rec, err)
	}
	if w.freeSlot(0) || w.freeSlot(1) {
		t.Error("a slot in use is free")
	}
	w.pool.fail.Store(nil)
	wantCode(t, w.sweep(), "")
	w.nothingOf(dead.ID)
	if !w.freeSlot(0) || w.freeSlot(1) {
		t.Error("the slots are not as they should be")
	}
	w.runs(alive.ID)
}

func TestRecoverLeavesForeignFiles(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	for _, name := range []string{"README", "sbzzzz.json", ".hidden"} {
		if err := os.WriteFile(filepath.Join(w.dir, "state", name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	half := filepath.Join(w.dir, "state", ".new-"+sb.ID+".json")
	if err := os.WriteFile(half, []byte(`{"ver`), 0o600); err != nil {
		t.Fatal(err)
	}
	if rec, err := w.restart(sb); err != nil || len(rec.Running) != 1 {
		t.Fatalf("Recover = %+v, %v", rec, err)
	}
	left, err := names(filepath.Join(w.dir, "state"))
	slices.Sort(left)
	if got := strings.Join(left, " "); err != nil || got != ".hidden README "+sb.ID+".json sbzzzz.json" {
		t.Errorf("state directory = %s, %v", got, err)
	}
	w.runs(sb.ID)
}
