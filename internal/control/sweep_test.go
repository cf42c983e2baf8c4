package control_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// sweeps has every pass find the same.
func (b *bed) sweeps(swept control.Swept, err error) {
	b.node.change(func() {
		b.node.sweep = func([]dayfly.Sandbox, bool) (control.Swept, error) { return swept, err }
	})
}

// reconciled are the events that the reconciler made.
func (b *bed) reconciled() []dayfly.Event {
	b.t.Helper()
	events, err := b.store.Store.Events(context.Background(), dayfly.EventFilter{Limit: 1000})
	if err != nil {
		b.t.Fatal(err)
	}
	return slices.DeleteFunc(events, func(e dayfly.Event) bool { return e.Type != dayfly.EventReclaimed && e.Type != dayfly.EventNotSwept })
}

func leftover(sandbox, kind string) control.Finding {
	return control.Finding{Kind: kind, Name: sandbox, Sandbox: sandbox, Why: "it has no lease", Done: "removed"}
}

func TestSweep(t *testing.T) {
	bubble(t, "old records go, and a step that fails keeps none of the others", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		_, err := b.plane.DeleteSandbox(t.Context(), b.admin, sb.ID)
		wantCode(t, err, "")
		b.sweeps(control.Swept{}, errTest)
		now := b.plane.Now()
		if err := b.plane.Sweep(context.Background(), now); err == nil {
			t.Error("Sweep hides that a step failed")
		}
		if len(b.all()) != 1 {
			t.Error("a fresh record went")
		}
		now.Wall = now.Wall.Add(control.EndedKept + time.Hour)
		if err := b.plane.Sweep(context.Background(), now); err == nil {
			t.Error("Sweep hides that a step failed")
		}
		if len(b.all()) != 0 {
			t.Error("an old record stays")
		}
	})
	n := &notes{}
	bubble(t, "each finding is an event of its account, or of the installation", control.Config{Meter: n}, func(t *testing.T, b *bed) {
		sb, stranger := b.create(control.CreateSandbox{}), dayfly.NewID(dayfly.PrefixSandbox)
		n.want(t, "created 0s")
		stuck := leftover(sb.ID, "network")
		stuck.Failed, stuck.Done = true, "it is tried again"
		b.sweeps(control.Swept{Findings: []control.Finding{leftover(sb.ID, "disk"), leftover(stranger, "lease"), stuck}}, nil)
		wantCode(t, b.plane.Sweep(t.Context(), b.plane.Now()), "")
		n.want(t, "found disk", "found lease", "found pass_stopped")
		for i, want := range []dayfly.Event{
			{Account: sb.Account, Sandbox: sb.ID, Type: dayfly.EventReclaimed, Cause: "disk", Message: "it has no lease; removed"},
			{Sandbox: stranger, Type: dayfly.EventReclaimed, Cause: "lease", Message: "it has no lease; removed"},
			{Sandbox: sb.ID, Type: dayfly.EventNotSwept, Cause: "network", Message: "it has no lease; it is tried again"},
		} {
			got := b.reconciled()[i]
			want.Seq, want.At, want.Actor = got.Seq, got.At, dayfly.ActorReconciler
			if got != want {
				t.Errorf("event %+v, want %+v", got, want)
			}
		}
	})
	bubble(t, "a pass that stops is told once, until one does not stop", control.Config{}, func(t *testing.T, b *bed) {
		stop := func() { b.sweeps(control.Swept{Stopped: "the host cannot be read"}, errTest) }
		pass := func() { _ = b.plane.Sweep(t.Context(), b.plane.Now()) }
		stop()
		pass()
		pass()
		if got := b.reconciled(); len(got) != 1 || got[0].Type != dayfly.EventNotSwept || got[0].Message != "the host cannot be read" || got[0].Account != "" {
			t.Errorf("events %+v", got)
		}
		b.sweeps(control.Swept{}, nil)
		pass()
		stop()
		pass()
		if got := b.reconciled(); len(got) != 2 {
			t.Errorf("events %+v", got)
		}
	})
	bubble(t, "bug 18: records that cannot be read stop the pass before the host is touched", control.Config{}, func(t *testing.T, b *bed) {
		for range 3 {
			b.create(control.CreateSandbox{})
		}
		synctest.Wait()
		before := b.node.passes()
		b.store.set("LiveSandboxes", errTest)
		for range 2 {
			if err := b.plane.Sweep(t.Context(), b.plane.Now()); err == nil {
				t.Error("no error")
			}
		}
		if b.node.lives() != 3 {
			t.Errorf("%d of 3 machines live", b.node.lives())
		}
		b.store.set("LiveSandboxes", nil)
		if got := b.reconciled(); len(got) != 1 || got[0].Type != dayfly.EventNotSwept || b.node.passes() != before {
			t.Errorf("events %+v, %d passes", got, b.node.passes()-before)
		}
	})
	bubble(t, "what runs by its record only is closed as the host tells", control.Config{}, func(t *testing.T, b *bed) {
		sb, asked := b.create(control.CreateSandbox{}), b.create(control.CreateSandbox{})
		_, err := b.plane.DeleteSandbox(t.Context(), b.admin, asked.ID)
		wantCode(t, err, "")
		at := time.Now()
		time.Sleep(time.Minute)
		b.sweeps(control.Swept{Ended: []control.Ending{
			{ID: sb.ID, At: at, Reason: dayfly.EndCrashed}, {ID: asked.ID, At: at, Reason: dayfly.EndCrashed},
		}}, nil)
		wantCode(t, b.plane.Sweep(t.Context(), b.plane.Now()), "")
		synctest.Wait()
		if got := b.wantEnd(sb.ID, dayfly.StatusFailed, dayfly.EndCrashed); !got.Times.EndedAt.Equal(at) {
			t.Errorf("ended at %s, want %s", got.Times.EndedAt, at)
		}
		b.wantEnd(asked.ID, dayfly.StatusDeleted, dayfly.EndRequested)
	})
}

func TestSweepAdopts(t *testing.T) {
	n := &notes{}
	bubble(t, "a machine whose record went is adopted until its lease ends", control.Config{Meter: n}, func(t *testing.T, b *bed) {
		known, other := b.create(control.CreateSandbox{}), b.create(control.CreateSandbox{Timeout: 20 * time.Minute})
		lost := b.record(other.ID)
		lost.ID, lost.Labels = dayfly.NewID(dayfly.PrefixSandbox), map[string]string{"a": "b"}
		b.node.machines[lost.ID] = &mapMachine{lease: lost.Lease}
		n.want(t, "created 0s", "created 0s")
		b.sweeps(control.Swept{Running: []dayfly.Sandbox{lost, b.record(known.ID)}}, nil)
		for range 2 {
			wantCode(t, b.plane.Sweep(t.Context(), b.plane.Now()), "")
		}
		n.want(t, "found machine_without_record")
		got, err := b.plane.Sandbox(t.Context(), b.admin, lost.ID)
		if err != nil || got.Status != dayfly.StatusRunning || got.Labels["a"] != "b" || got.Lease != lost.Lease || got.Times.ReadyAt.IsZero() {
			t.Errorf("its account sees %+v, %v", got, err)
		}
		if _, err := b.plane.Machine(t.Context(), b.admin, lost.ID); err != nil {
			t.Errorf("it cannot be used: %v", err)
		}
		b.sweeps(control.Swept{}, nil)
		time.Sleep(20*time.Minute - time.Millisecond)
		b.wantEnd(lost.ID, dayfly.StatusRunning, "")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		b.wantEnd(lost.ID, dayfly.StatusDeleted, dayfly.EndLeaseExpired)
	})
	bubble(t, "one that is on its way up or down is left to that", control.Config{}, func(t *testing.T, b *bed) {
		finish := b.slow()
		var g sync.WaitGroup
		g.Go(func() {
			_, err := b.plane.CreateSandbox(t.Context(), b.admin, control.CreateSandbox{})
			wantCode(t, err, "")
		})
		synctest.Wait()
		making := b.all()[0]
		b.sweeps(control.Swept{Running: []dayfly.Sandbox{making}}, nil)
		wantCode(t, b.plane.Sweep(t.Context(), b.plane.Now()), "")
		b.wantEnd(making.ID, dayfly.StatusProvisioning, "")
		finish()
		g.Wait()
		b.node.change(func() {
			b.node.destroy = func(context.Context, string) error { return errTest }
		})
		_, err := b.plane.DeleteSandbox(t.Context(), b.admin, making.ID)
		wantCode(t, err, "")
		wantCode(t, b.plane.Sweep(t.Context(), b.plane.Now()), "")
		b.wantEnd(making.ID, dayfly.StatusDeleting, dayfly.EndRequested)
	})
	bubble(t, "one that was ended on record is ended", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		_, err := b.plane.DeleteSandbox(t.Context(), b.admin, sb.ID)
		wantCode(t, err, "")
		b.node.machines[sb.ID] = &mapMachine{lease: sb.Lease}
		b.sweeps(control.Swept{Running: []dayfly.Sandbox{sb}}, nil)
		wantCode(t, b.plane.Sweep(t.Context(), b.plane.Now()), "")
		synctest.Wait()
		b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndRequested)
	})
}

func TestSweepTimes(t *testing.T) {
	bubble(t, "at the start, every 30 s, and when asked", control.Config{}, func(t *testing.T, b *bed) {
		wake := make(chan struct{}, 1)
		synctest.Wait()
		before := b.node.passes()
		b.restart(control.Config{Wake: wake})
		want := func(n int) {
			t.Helper()
			synctest.Wait()
			if got := b.node.passes() - before; got != n {
				t.Errorf("%d passes, want %d", got, n)
			}
		}
		want(1)
		time.Sleep(30 * time.Second)
		want(2)
		wake <- struct{}{}
		want(3)
		b.sweeps(control.Swept{Left: 1}, nil)
		wake <- struct{}{}
		want(4)
		b.sweeps(control.Swept{}, nil)
		time.Sleep(500 * time.Millisecond)
		want(5) // sooner, for what was left
		time.Sleep(29 * time.Second)
		want(5)
	})
	bubble(t, "when a teardown fails", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		synctest.Wait()
		before := b.node.passes()
		once := errTest
		b.node.change(func() {
			b.node.destroy = func(context.Context, string) error { err := once; once = nil; return err }
		})
		_, err := b.plane.DeleteSandbox(t.Context(), b.admin, sb.ID)
		wantCode(t, err, "")
		synctest.Wait()
		if got := b.node.passes() - before; got != 1 {
			t.Errorf("%d passes", got)
		}
	})
}

func TestReconcile(t *testing.T) {
	bubble(t, "goes on until nothing is left, whatever would go, and for admins only", control.Config{}, func(t *testing.T, b *bed) {
		left := 3
		b.node.change(func() {
			b.node.sweep = func(_ []dayfly.Sandbox, force bool) (control.Swept, error) {
				if !force {
					return control.Swept{Stopped: "most would go"}, errTest
				}
				left--
				return control.Swept{Findings: []control.Finding{leftover(fmt.Sprintf("sb%d", left), "disk")}, Left: left}, nil
			}
		})
		if _, err := b.plane.Reconcile(t.Context(), b.account("team")); dayfly.ErrorCode(err) != dayfly.CodeForbidden || left != 3 {
			t.Errorf("%v, %d left", err, left)
		}
		swept, err := b.plane.Reconcile(t.Context(), b.admin)
		if err != nil || len(swept.Findings) != 3 || swept.Left != 0 || left != 0 {
			t.Errorf("%+v, %v", swept, err)
		}
	})
	bubble(t, "ends with an error", control.Config{}, func(t *testing.T, b *bed) {
		b.sweeps(control.Swept{Stopped: "x"}, errTest)
		if swept, err := b.plane.Reconcile(t.Context(), b.admin); err == nil || swept.Stopped != "x" {
			t.Errorf("%+v, %v", swept, err)
		}
	})
}

func TestRepair(t *testing.T) {
	bubble(t, "does a start's work and waits for it", control.Config{}, func(t *testing.T, b *bed) {
		half := b.create(control.CreateSandbox{})
		b.plane.Close()
		b.node.found = control.Recovery{
			Ending: []control.Ending{{ID: half.ID, Reason: dayfly.EndReconciled}}, Findings: []control.Finding{leftover("sb1", "disk")},
		}
		b.sweeps(control.Swept{Findings: []control.Finding{leftover("sb2", "disk")}}, nil)
		b.plane = control.New(b.store, b.node, b.images, control.Config{}, slog.New(slog.DiscardHandler))
		swept, err := b.plane.Repair(t.Context())
		if err != nil || len(swept.Findings) != 2 {
			t.Errorf("%+v, %v", swept, err)
		}
		b.wantEnd(half.ID, dayfly.StatusDeleted, dayfly.EndReconciled)
		for _, e := range b.reconciled() {
			if e.Type != dayfly.EventReclaimed {
				t.Errorf("event %+v", e)
			}
		}
	})
}

func TestAStartThatStopsIsTold(t *testing.T) {
	bubble(t, "an event, and records as they were", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.node.found = control.Recovery{Stopped: "4 of 4 would be removed"}
		b.sweeps(control.Swept{Stopped: "4 of 4 would be removed"}, errTest)
		b.restart(control.Config{})
		synctest.Wait()
		if got := b.reconciled(); len(got) != 1 || got[0].Type != dayfly.EventNotSwept || got[0].Message != "4 of 4 would be removed" {
			t.Errorf("events %+v", got)
		}
		if got := b.record(sb.ID); got.Status != dayfly.StatusRunning {
			t.Errorf("record %+v", got)
		}
	})
}
