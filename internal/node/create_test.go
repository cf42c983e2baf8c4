package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

func TestCreateOrder(t *testing.T) {
	w := newWorld(t)
	var seen []string
	w.driver.before = func(spec dayfly.InstanceSpec) error {
		for _, path := range []string{"leases/" + spec.ID, "state/" + spec.ID + ".json", "run/" + spec.ID + "/in/grant", "plain/disks/" + spec.ID} {
			if _, err := os.Stat(filepath.Join(w.dir, path)); err == nil {
				seen = append(seen, strings.Split(path, "/")[0])
			}
		}
		if spec.UIDBase != 1<<20 || spec.Granted != time.Hour || spec.Env["SECRET"] != "hush" || spec.Env["DAYFLY_MEMORY_MB"] != "1024" {
			t.Errorf("spec = %+v", spec)
		}
		return nil
	}
	sb := w.create()
	if want := []string{"leases", "state", "run", "plain"}; !slices.Equal(seen, want) {
		t.Errorf("before the machine there was %v, want %v", seen, want)
	}
	w.runs(sb.ID)
	if b, err := os.ReadFile(w.stateFile(sb.ID)); err != nil || strings.Contains(string(b), "hush") || !strings.Contains(string(b), `"a":"b"`) {
		t.Errorf("state file = %s, %v", b, err)
	}
	for path, mode := range map[string]os.FileMode{"": 0o711, "in": 0o755, "in/grant": 0o444} {
		if st, err := os.Stat(filepath.Join(w.dir, "run", sb.ID, path)); err != nil || st.Mode().Perm() != mode {
			t.Errorf("mode of %q = %v, %v", path, st.Mode(), err)
		}
	}
	wantCode(t, w.manager.Create(ctxFor(t), sb, dayfly.Image{}), dayfly.CodeConflict)
	w.runs(sb.ID) // the second create broke nothing
	if e := w.destroy(sb.ID); e.ID != sb.ID || !e.At.Equal(w.clock.Now().Wall) {
		t.Errorf("ending = %+v", e)
	}
	w.nothingOf(sb.ID)
	if !w.freeSlot(0) {
		t.Error("its slot is not free")
	}
	if len(w.manager.Endings()) != 0 {
		t.Error("an end that was asked for was told")
	}
}

// TestCreateFails is bug 29: a create that fails at any step leaves nothing, and its error names the step.
func TestCreateFails(t *testing.T) {
	for _, tt := range []struct {
		name  string
		step  string // part of the error
		spoil func(w *world, cancel context.CancelFunc)
	}{
		{"no warden", "no warden", func(w *world, _ context.CancelFunc) { w.leases.dead.Store(true) }},
		{"lease file", "write lease", func(w *world, _ context.CancelFunc) { set(&w.leases.fail, "Write") }},
		{"state file", "write sb", func(w *world, _ context.CancelFunc) {
			_ = os.Remove(filepath.Join(w.dir, "state"))
			w.t.Cleanup(func() { _ = os.Remove(filepath.Join(w.dir, "state")) })
		}},
		{"run directory", "make run directory", func(w *world, _ context.CancelFunc) {
			w.leases.wrote = func(id string) { _ = os.WriteFile(filepath.Join(w.dir, "run", id), nil, 0o600) }
		}},
		{"disk", "make disk", func(w *world, _ context.CancelFunc) { set(&w.pool.fail, "Create") }},
		{"network", "start", func(w *world, _ context.CancelFunc) { set(&w.net.fail, "Attach") }},
		{"driver", "start", func(w *world, _ context.CancelFunc) {
			w.driver.before = func(dayfly.InstanceSpec) error { return errTest }
		}},
		{"driver, late", "start", func(w *world, _ context.CancelFunc) {
			w.driver.after = func(dayfly.Instance) error { return errTest }
		}},
		{"no driver", `no driver "another"`, func(w *world, _ context.CancelFunc) {}},
		{"agent cannot be reached", "greet the agent", func(w *world, _ context.CancelFunc) {
			w.driver.wrapped = func(i *spyInstance) { i.broken.Store(&errTest) }
		}},
		{"machine dies at once", "greet the agent", func(w *world, _ context.CancelFunc) {
			w.driver.after = func(inst dayfly.Instance) error {
				if err := w.driver.Driver.Reclaim(context.Background(), inst.ID()); err != nil {
					return err
				}
				<-inst.Done()
				return nil
			}
		}},
		{"cancelled before", "", func(_ *world, cancel context.CancelFunc) { cancel() }},
		{"cancelled in the driver", "start", func(w *world, cancel context.CancelFunc) {
			w.driver.before = func(dayfly.InstanceSpec) error { cancel(); return nil }
		}},
		{"cancelled after the driver", "greet the agent", func(w *world, cancel context.CancelFunc) {
			w.driver.wrapped = func(*spyInstance) { cancel() }
		}},
		{"lease ends meanwhile", "its lease ended", func(w *world, _ context.CancelFunc) {
			w.driver.after = func(dayfly.Instance) error { w.clock.step(2 * time.Hour); return nil }
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			sb := w.sandbox()
			if tt.name == "no driver" {
				sb.Driver = "another"
			}
			ctx, cancel := context.WithCancel(ctxFor(t))
			defer cancel()
			tt.spoil(w, cancel)
			err := w.manager.Create(ctx, sb, dayfly.Image{ID: "im1"})
			if err == nil {
				t.Fatal("Create succeeded")
			}
			if !strings.Contains(err.Error(), tt.step) {
				t.Errorf("%q does not name the step %q", err, tt.step)
			}
			if code := dayfly.ErrorCode(err); code == dayfly.CodeGone || code == dayfly.CodeNotFound {
				t.Errorf("code = %s: a start that fails is no sandbox that ended", code)
			}
			if err := os.MkdirAll(filepath.Join(w.dir, "state"), 0o700); err != nil {
				t.Fatal(err)
			}
			w.nothingOf(sb.ID)
			if !w.freeSlot(0) {
				t.Error("its slot is not free")
			}
			_, err = w.manager.Machine(t.Context(), sb.ID)
			wantCode(t, err, dayfly.CodeGone)
			if len(w.manager.Endings()) != 0 {
				t.Error("a failed start was told as an end")
			}
			w.destroy(sb.ID) // as the control plane does
		})
	}
}

// TestTooManyStarts: beyond a named number of creates that wait for their turn, the next is refused at once.
func TestTooManyStarts(t *testing.T) {
	const starts, waiting = 16, 100 // for each CPU
	w := newWorld(t)
	w.driver.idle = 1
	w.restart()
	hold := make(chan struct{})
	w.driver.before = func(dayfly.InstanceSpec) error { <-hold; return errTest }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var refused atomic.Int64
	var g sync.WaitGroup
	small := dayfly.Limits{VCPU: 1, MemoryBytes: 1 << 20, DiskBytes: 1 << 20}
	create := func() error {
		sb := w.sandbox()
		err := w.manager.Create(ctx, sb, dayfly.Image{ID: "im1"})
		if dayfly.ErrorCode(err) == dayfly.CodeNoCapacity {
			refused.Add(1)
		}
		return err
	}
	for range (starts + waiting) * runtime.NumCPU() {
		g.Go(func() { _ = create() })
	}
	eventually(t, "all wait", func() bool {
		return dayfly.ErrorCode(w.manager.Admit(t.Context(), small, dayfly.IsolationFake)) == dayfly.CodeNoCapacity
	})
	if n := refused.Load(); n != 0 {
		t.Errorf("%d were refused while there was room to wait", n)
	}
	for what, err := range map[string]error{
		"admission": w.manager.Admit(t.Context(), small, dayfly.IsolationFake), "create": create(),
	} {
		wantCode(t, err, dayfly.CodeNoCapacity)
		if e := dayfly.AsError(err); e == nil || e.Details["missing"] != "starts" || e.RetryAfter <= 0 || !strings.Contains(e.Message, "starting") {
			t.Errorf("%s: %+v", what, e)
		}
	}
	cancel()
	close(hold)
	g.Wait()
	w.driver.before = nil
	wantCode(t, w.manager.Admit(t.Context(), small, dayfly.IsolationFake), "")
	w.runs(w.create().ID)
}

// TestAStartWhoseTurnDoesNotCome is no fault of the sandbox: the client may try again.
func TestAStartWhoseTurnDoesNotCome(t *testing.T) {
	for declared, starts := range map[int]int{0: 16, 3: 3} { // for each CPU
		t.Run(fmt.Sprintf("%d declared", declared), func(t *testing.T) { turnDoesNotCome(t, declared, starts) })
	}
}

func turnDoesNotCome(t *testing.T, declared, starts int) {
	w := newWorld(t)
	w.driver.idle, w.driver.atOnce = 1, declared
	w.restart()
	hold := make(chan struct{})
	var held atomic.Int64
	w.driver.before = func(dayfly.InstanceSpec) error { held.Add(1); <-hold; return errTest }
	var g sync.WaitGroup
	for range starts * runtime.NumCPU() {
		sb := w.sandbox()
		g.Go(func() { _ = w.manager.Create(t.Context(), sb, dayfly.Image{ID: "im1"}) })
	}
	eventually(t, "all start", func() bool { return held.Load() == int64(starts*runtime.NumCPU()) })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := w.manager.Create(ctx, w.sandbox(), dayfly.Image{ID: "im1"})
	wantCode(t, err, dayfly.CodeNoCapacity)
	if e := dayfly.AsError(err); e == nil || e.Details["missing"] != "starts" || e.RetryAfter <= 0 {
		t.Errorf("%+v", e)
	}
	close(hold)
	g.Wait()
}

// TestHalfUndone has the undo of a create, or a destroy, fail in the middle: what is left keeps its owner and its slot.
func TestHalfUndone(t *testing.T) {
	for _, tt := range []struct {
		name  string
		step  string // that fails
		spoil func(w *world)
		mend  func(w *world)
	}{
		{"disk stays", "remove disk", func(w *world) { set(&w.pool.fail, "Remove") }, func(w *world) { w.pool.fail.Store(nil) }},
		{"network stays", "detach network", func(w *world) { set(&w.net.fail, "Detach") }, func(w *world) { w.net.fail.Store(nil) }},
		{"lease stays", "remove lease", func(w *world) { set(&w.leases.fail, "Remove") }, func(w *world) { w.leases.fail.Store(nil) }},
		{"processes stay", "end processes", func(w *world) { w.driver.refuse.Store(&errTest) }, func(w *world) { w.driver.refuse.Store(nil) }},
	} {
		t.Run(tt.name+" after a failed create", func(t *testing.T) {
			w := newWorld(t)
			w.driver.wrapped = func(i *spyInstance) { i.broken.Store(&errTest); tt.spoil(w) }
			sb := w.sandbox()
			if err := w.manager.Create(ctxFor(t), sb, dayfly.Image{}); err == nil {
				t.Fatal("Create succeeded")
			}
			halfCleared(t, w, sb.ID, tt.mend)
		})
		t.Run(tt.name+" after a destroy", func(t *testing.T) {
			w := newWorld(t)
			sb := w.create()
			tt.spoil(w)
			_, err := w.manager.Destroy(ctxFor(t), sb.ID)
			var failed *control.StepError
			if !errors.As(err, &failed) || failed.Step != tt.step {
				t.Fatalf("Destroy = %v, want a failure of %q", err, tt.step)
			}
			halfCleared(t, w, sb.ID, tt.mend)
		})
	}
}

func halfCleared(t *testing.T, w *world, id string, mend func(w *world)) {
	t.Helper()
	if ids, _ := w.leases.List(); !slices.Contains(ids, id) {
		t.Error("its lease file is gone before the rest")
	}
	if w.freeSlot(0) {
		t.Error("its slot is free")
	}
	w.driver.wrapped = nil
	if slot := w.net.slotOf(w.create().ID); slot == 0 {
		t.Error("another machine got its slot")
	}
	mend(w)
	w.destroy(id)
	w.nothingOf(id)
	if !w.freeSlot(0) {
		t.Error("its slot is not free in the end")
	}
}
