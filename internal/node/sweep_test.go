package node_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// plant makes run directories that nothing owns and gives their ids.
func (w *world) plant(n int) []string {
	w.t.Helper()
	ids := make([]string, n)
	for i := range ids {
		ids[i] = dayfly.NewID(dayfly.PrefixSandbox)
		if err := os.MkdirAll(filepath.Join(w.dir, "run", ids[i], "in"), 0o700); err != nil {
			w.t.Fatal(err)
		}
	}
	return ids
}

// lose takes the state files of machines away, so that nothing can reach them.
func (w *world) lose(lost ...dayfly.Sandbox) {
	w.t.Helper()
	for _, sb := range lost {
		if err := os.Rename(w.stateFile(sb.ID), w.stateFile(sb.ID)+".kept"); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) lives(sb dayfly.Sandbox) bool {
	w.t.Helper()
	ids, err := w.driver.List(ctxFor(w.t))
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.Contains(ids, sb.ID)
}

func (w *world) problem(component string) bool {
	return slices.ContainsFunc(w.manager.Problems(ctxFor(w.t)), func(p control.Problem) bool { return p.Component == component })
}

func TestSweepIsBounded(t *testing.T) {
	w := newWorld(t)
	w.plant(120)
	left := []int{}
	total := 0
	for range 3 {
		swept, err := w.manager.Sweep(ctxFor(t), nil, false, w.note)
		wantCode(t, err, "")
		left, total = append(left, swept.Left), total+len(swept.Findings)
	}
	if !slices.Equal(left, []int{70, 20, 0}) || total != 120 {
		t.Errorf("left %v, told of %d", left, total)
	}
	if rest, _ := names(filepath.Join(w.dir, "run")); len(rest) != 0 {
		t.Errorf("%d run directories are left", len(rest))
	}
}

func TestSweepGoesOnBehindTheStuck(t *testing.T) {
	w := newWorld(t)
	for _, id := range w.plant(60) { // state files go last
		if err := os.WriteFile(w.stateFile(id), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set(&w.pool.fail, "Remove")
	told := map[string]bool{}
	for pass := range 3 {
		swept, err := w.manager.Sweep(ctxFor(t), nil, false, w.note)
		if err == nil {
			t.Error("nothing failed")
		}
		for _, f := range swept.Findings {
			if told[f.Sandbox] || !f.Failed {
				t.Errorf("pass %d: finding %+v", pass, f)
			}
			told[f.Sandbox] = true
		}
	}
	if len(told) != 60 {
		t.Errorf("%d of 60 were tried", len(told))
	}
	w.pool.fail.Store(nil)
	gone := 0
	for range 2 {
		swept, err := w.manager.Sweep(ctxFor(t), nil, false, w.note)
		wantCode(t, err, "")
		gone += len(swept.Findings)
	}
	if gone != 60 {
		t.Errorf("told that %d went", gone)
	}
}

func TestTheBrake(t *testing.T) {
	t.Run("a start removes nothing when most of the living would go", func(t *testing.T) {
		w := newWorld(t)
		all := []dayfly.Sandbox{w.create(), w.create(), w.create(), w.create(), w.create(), w.create(), w.create()}
		lost := all[:4]
		planted := w.plant(1)
		w.lose(lost...)
		rec, err := w.restart(all...)
		if err != nil || rec.Stopped == "" || len(rec.Running) != 3 || len(rec.Ended)+len(rec.Ending)+len(rec.Findings) != 0 {
			t.Fatalf("Recover = %+v, %v", rec, err)
		}
		if swept, err := w.manager.Sweep(ctxFor(t), all, false, w.note); err == nil || !strings.Contains(swept.Stopped, "4 of 7") || len(swept.Findings)+len(swept.Ended) != 0 {
			t.Errorf("Sweep = %+v, %v", swept, err)
		}
		for _, sb := range all {
			if !w.lives(sb) {
				t.Errorf("%s was ended", sb.ID)
			}
		}
		if _, err := os.Stat(filepath.Join(w.dir, "run", planted[0])); err != nil {
			t.Errorf("a pass that stopped removed something: %v", err)
		}
		if !w.problem("reconciler") {
			t.Error("it is no problem")
		}
		wantCode(t, w.manager.Admit(ctxFor(t), dayfly.Limits{VCPU: 1}, dayfly.IsolationFake), dayfly.CodeUnavailable)

		swept, err := w.manager.Sweep(ctxFor(t), all, true /* an operator looked */, w.note)
		wantCode(t, err, "")
		ended := map[string]dayfly.EndReason{}
		for _, e := range swept.Ended {
			ended[e.ID] = e.Reason
		}
		for i, sb := range all {
			if gone := i < len(lost); w.lives(sb) == gone || (ended[sb.ID] == dayfly.EndReconciled) != gone {
				t.Errorf("machine %d: lives %v, ended %q", i, w.lives(sb), ended[sb.ID])
			}
		}
		if w.problem("reconciler") {
			t.Error("it is a problem still")
		}
	})
	t.Run("the brake opens when the situation is gone", func(t *testing.T) {
		w := newWorld(t)
		all := []dayfly.Sandbox{w.create(), w.create(), w.create(), w.create()}
		w.lose(all...)
		if rec, err := w.restart(all...); err != nil || rec.Stopped == "" {
			t.Fatalf("Recover = %+v, %v", rec, err)
		}
		for _, sb := range all {
			if err := os.Rename(w.stateFile(sb.ID)+".kept", w.stateFile(sb.ID)); err != nil {
				t.Fatal(err)
			}
		}
		if rec, err := w.restart(all...); err != nil || rec.Stopped != "" || len(rec.Running) != 4 || w.problem("reconciler") {
			t.Fatalf("Recover = %+v, %v", rec, err)
		}
	})
	for name, tt := range map[string]func(t *testing.T, w *world, all []dayfly.Sandbox){
		"half of them":        func(_ *testing.T, w *world, all []dayfly.Sandbox) { w.lose(all[:4]...) },
		"dead ones":           func(_ *testing.T, w *world, all []dayfly.Sandbox) { killAll(w, all[:6]) },
		"those without lease": func(_ *testing.T, w *world, all []dayfly.Sandbox) { dropLeases(w, all[:6]) },
		"half-born ones": func(_ *testing.T, w *world, all []dayfly.Sandbox) {
			for _, sb := range all[:6] {
				w.editState(sb.ID, func(m map[string]any) { delete(m, "instance") })
			}
		},
	} {
		t.Run("it does not hold up "+name, func(t *testing.T) {
			w := newWorld(t)
			var all []dayfly.Sandbox
			for range 8 {
				all = append(all, w.create())
			}
			w.manager.Close()
			tt(t, w, all)
			rec, err := w.restart(all...)
			if err != nil || rec.Stopped != "" || len(rec.Ended) < 4 || len(rec.Running)+len(rec.Ended) != 8 {
				t.Fatalf("Recover = %+v, %v", rec, err)
			}
		})
	}
}

func killAll(w *world, all []dayfly.Sandbox) {
	for _, sb := range all {
		w.kill(sb.ID)
	}
}

func dropLeases(w *world, all []dayfly.Sandbox) {
	for _, sb := range all {
		_ = w.leases.Remove(sb.ID)
	}
}

func TestSweepEndsWhatRunsByItsRecordOnly(t *testing.T) {
	w := newWorld(t)
	alive, ghost, starting := w.create(), w.sandbox(), w.sandbox()
	ghost.Status = dayfly.StatusRunning
	swept, err := w.manager.Sweep(ctxFor(t), []dayfly.Sandbox{alive, ghost, starting}, false, w.note)
	if err != nil || len(swept.Ended) != 1 || swept.Ended[0].ID != ghost.ID || swept.Ended[0].Reason != dayfly.EndCrashed || len(swept.Findings) != 0 {
		t.Errorf("Sweep = %+v, %v", swept, err)
	}
	w.destroy(alive.ID) // its record was read before
	swept, err = w.manager.Sweep(ctxFor(t), []dayfly.Sandbox{alive}, false, w.note)
	if err != nil || len(swept.Ended)+len(swept.Findings) != 0 {
		t.Errorf("Sweep = %+v, %v after the end", swept, err)
	}
}

func TestAStartTellsWhatItRemovedOfNobody(t *testing.T) {
	w := newWorld(t)
	known := w.create()
	planted := w.plant(2)
	rec, err := w.restart(known)
	if err != nil || len(rec.Findings) != 2 || len(rec.Running) != 1 {
		t.Fatalf("Recover = %+v, %v", rec, err)
	}
	for _, f := range rec.Findings {
		if !slices.Contains(planted, f.Sandbox) || f.Kind != "run_directory" || f.Why != "it has no lease" || f.Done != "removed" {
			t.Errorf("finding %+v", f)
		}
	}
}

func TestSweepFindsTheLiving(t *testing.T) {
	ids := func(list []dayfly.Sandbox) (out []string) {
		for _, sb := range list {
			out = append(out, sb.ID)
		}
		return out
	}
	t.Run("a machine whose record went is told, with what its record said", func(t *testing.T) {
		w := newWorld(t)
		kept, lost := w.create(), w.create()
		swept, err := w.manager.Sweep(ctxFor(t), []dayfly.Sandbox{kept}, false, w.note)
		if err != nil || !slices.Equal(ids(swept.Running), []string{lost.ID}) || len(swept.Findings)+len(swept.Ended) != 0 {
			t.Fatalf("Sweep = %+v, %v", swept, err)
		}
		if got := swept.Running[0]; got.Account != lost.Account || got.Labels["a"] != "b" || got.Lease != lost.Lease || got.Status != dayfly.StatusRunning || got.Times.ReadyAt.IsZero() {
			t.Errorf("it is told as %+v", got)
		}
		w.runs(lost.ID)
	})
	t.Run("a machine that nobody holds is taken hold of, with or without a record", func(t *testing.T) {
		w := newWorld(t)
		recorded, lost, deleting := w.create(), w.create(), w.create()
		slots := []int{w.net.slotOf(recorded.ID), w.net.slotOf(lost.ID)}
		w.manager.Close()
		w.start() // and recovers nothing
		deleting.Status = dayfly.StatusDeleting
		swept, err := w.manager.Sweep(ctxFor(t), []dayfly.Sandbox{recorded, deleting}, false, w.note)
		want := []string{recorded.ID, lost.ID}
		slices.Sort(want)
		if err != nil || !slices.Equal(ids(swept.Running), want) || len(swept.Findings)+len(swept.Ended) != 0 {
			t.Fatalf("Sweep = %+v, %v", swept, err)
		}
		w.runs(recorded.ID)
		w.runs(lost.ID)
		w.nothingOf(deleting.ID)
		for _, slot := range slots {
			if w.freeSlot(slot) {
				t.Errorf("slot %d of a living machine is free", slot)
			}
		}
	})
	t.Run("one whose user ids another has by now is removed", func(t *testing.T) {
		w := newWorld(t)
		lost := w.create()
		w.manager.Close()
		w.start()
		taken := w.create() // slot 0 as well
		if _, err := w.manager.Sweep(ctxFor(t), []dayfly.Sandbox{taken}, false, w.note); err != nil || w.lives(lost) || !w.lives(taken) {
			t.Errorf("Sweep = %v; the first lives %v, the second %v", err, w.lives(lost), w.lives(taken))
		}
		w.net.shared = nil // the test's own doing
	})
	t.Run("a lease that is over, or gone, makes nothing live", func(t *testing.T) {
		w := newWorld(t)
		due, gone := w.create(), w.create()
		if err := w.leases.Remove(gone.ID); err != nil {
			t.Fatal(err)
		}
		w.clock.step(2 * time.Hour)
		if swept, err := w.manager.Sweep(ctxFor(t), nil, false, w.note); err != nil || len(swept.Running) != 0 {
			t.Errorf("Sweep = %+v, %v; made %s and %s", swept, err, due.ID, gone.ID)
		}
	})
	t.Run("one that is being ended is left to that", func(t *testing.T) {
		w := newWorld(t)
		sb := w.create()
		w.driver.refuse.Store(&errTest)
		if _, err := w.manager.Destroy(ctxFor(t), sb.ID); err == nil {
			t.Fatal("Destroy succeeded")
		}
		if swept, err := w.manager.Sweep(ctxFor(t), nil, false, w.note); err != nil || len(swept.Running) != 0 {
			t.Errorf("Sweep = %+v, %v", swept, err)
		}
		w.driver.refuse.Store(nil)
	})
}
