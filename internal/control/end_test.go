package control_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

func TestDelete(t *testing.T) {
	del := func(b *bed, id string) dayfly.Sandbox {
		b.t.Helper()
		sb, err := b.plane.DeleteSandbox(b.t.Context(), b.admin, id)
		if err != nil {
			b.t.Errorf("DeleteSandbox: %v", err)
		}
		return sb
	}
	bubble(t, "running, and again", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		if got := del(b, sb.ID); got.Status != dayfly.StatusDeleted {
			t.Errorf("status = %s", got.Status)
		}
		first := b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndRequested)
		if again := del(b, sb.ID); again.Rev != first.Rev || b.node.destroyed(sb.ID) != 1 {
			t.Errorf("the second delete did something: %+v", again)
		}
	})
	bubble(t, "failed stays failed", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.node.dies(sb.ID, dayfly.EndCrashed, time.Now())
		synctest.Wait()
		if got := del(b, sb.ID); got.Status != dayfly.StatusFailed || got.End != dayfly.EndCrashed {
			t.Errorf("got %+v", got)
		}
	})
	bubble(t, "unknown and somebody else's", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		for _, id := range []string{"x", dayfly.NewID(dayfly.PrefixSandbox), "../../etc/passwd", ""} {
			_, err := b.plane.DeleteSandbox(t.Context(), b.admin, id)
			wantCode(t, err, dayfly.CodeNotFound)
		}
		_, err := b.plane.DeleteSandbox(t.Context(), b.account("other"), sb.ID)
		wantCode(t, err, dayfly.CodeNotFound)
		b.wantEnd(sb.ID, dayfly.StatusRunning, "")
	})
	bubble(t, "still being made", control.Config{}, func(t *testing.T, b *bed) {
		b.slow()
		var g sync.WaitGroup
		g.Go(func() {
			_, err := b.plane.CreateSandbox(t.Context(), b.admin, control.CreateSandbox{})
			wantCode(t, err, dayfly.CodeGone)
			if dayfly.AsError(err).Details["end_reason"] != string(dayfly.EndRequested) {
				t.Errorf("the creator got %v", err)
			}
		})
		synctest.Wait()
		id := b.all()[0].ID
		start := time.Now()
		del(b, id)
		b.wantEnd(id, dayfly.StatusDeleted, dayfly.EndRequested)
		if d := time.Since(start); d != 0 {
			t.Errorf("it took %s", d)
		}
		g.Wait()
		if d := time.Since(start); d != 0 {
			t.Errorf("the creator heard of it after %s", d)
		}
	})
	bubble(t, "between its record and its making", control.Config{}, func(t *testing.T, b *bed) {
		var deleted sync.WaitGroup
		b.node.change(func() {
			b.node.create = func(ctx context.Context, sb dayfly.Sandbox) error {
				deleted.Go(func() { del(b, sb.ID) })
				<-ctx.Done()
				return nil // it lives all the same: the delete must find it
			}
		})
		_, err := b.plane.CreateSandbox(t.Context(), b.admin, control.CreateSandbox{})
		wantCode(t, err, dayfly.CodeGone)
		deleted.Wait()
		b.wantEnd(b.all()[0].ID, dayfly.StatusDeleted, dayfly.EndRequested)
	})
	bubble(t, "many at once", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		var at, most atomic.Int32
		b.node.change(func() {
			b.node.destroy = func(context.Context, string) error {
				most.Store(max(most.Load(), at.Add(1)))
				defer at.Add(-1)
				time.Sleep(time.Second)
				return nil
			}
		})
		var g sync.WaitGroup
		for range 50 {
			g.Go(func() {
				if got := del(b, sb.ID); got.Status != dayfly.StatusDeleted {
					t.Errorf("status = %s", got.Status)
				}
			})
		}
		g.Wait()
		if most.Load() != 1 || b.node.destroyed(sb.ID) != 1 {
			t.Errorf("%d teardowns, %d at once", b.node.destroyed(sb.ID), most.Load())
		}
	})
	bubble(t, "takes longer than ten seconds", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.node.change(func() {
			b.node.destroy = func(context.Context, string) error { time.Sleep(25 * time.Second); return nil }
		})
		start := time.Now()
		if got := del(b, sb.ID); got.Status != dayfly.StatusDeleting || time.Since(start) != control.DeleteWait {
			t.Errorf("%s after %s", got.Status, time.Since(start))
		}
		_, err := b.plane.Machine(t.Context(), b.admin, sb.ID)
		wantCode(t, err, dayfly.CodeGone)
		if got := del(b, sb.ID); got.Status != dayfly.StatusDeleting {
			t.Errorf("the second delete says %s", got.Status)
		}
		if got := del(b, sb.ID); got.Status != dayfly.StatusDeleted || time.Since(start) != 25*time.Second {
			t.Errorf("the third one %s after %s", got.Status, time.Since(start))
		}
	})
	bubble(t, "fails and is tried again, slower and slower", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		start := time.Now()
		var tries []time.Duration
		b.node.change(func() {
			b.node.destroy = func(context.Context, string) error {
				if tries = append(tries, time.Since(start)); len(tries) < 12 {
					return errTest
				}
				return nil
			}
		})
		if got := del(b, sb.ID); got.Status != dayfly.StatusDeleting {
			t.Errorf("status = %s", got.Status)
		}
		b.wantEnd(sb.ID, dayfly.StatusDeleting, dayfly.EndRequested)
		time.Sleep(5 * time.Minute)
		b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndRequested)
		for i := 2; i < len(tries); i++ {
			gap, before := tries[i]-tries[i-1], tries[i-1]-tries[i-2]
			if gap != min(2*before, 30*time.Second) {
				t.Errorf("tries at %v", tries)
				break
			}
		}
	})
	bubble(t, "its record cannot be closed at once", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		var gone time.Time
		b.node.change(func() {
			b.node.destroy = func(context.Context, string) error {
				gone = time.Now()
				b.store.set("MoveSandbox", dayfly.Errorf(dayfly.CodeUnavailable, "down"))
				return nil
			}
		})
		if got := del(b, sb.ID); got.Status != dayfly.StatusDeleting {
			t.Errorf("status = %s", got.Status)
		}
		b.store.set("MoveSandbox", nil)
		time.Sleep(time.Minute)
		if got := b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndRequested); !got.Times.EndedAt.Equal(gone) {
			t.Errorf("ended at %s, want %s", got.Times.EndedAt, gone)
		}
	})
	bubble(t, "nobody waits for it", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.node.change(func() {
			b.node.destroy = func(context.Context, string) error { time.Sleep(time.Second); return nil }
		})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if got, err := b.plane.DeleteSandbox(ctx, b.admin, sb.ID); err != nil || got.Status != dayfly.StatusDeleting {
			t.Errorf("%+v, %v", got, err)
		}
		time.Sleep(time.Second)
		b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndRequested)
	})
	bubble(t, "the server closes meanwhile", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.node.change(func() {
			b.node.destroy = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
		})
		var g sync.WaitGroup
		g.Go(func() {
			if got := del(b, sb.ID); got.Status != dayfly.StatusDeleting {
				t.Errorf("status = %s", got.Status)
			}
		})
		synctest.Wait()
		start := time.Now()
		b.plane.Close()
		if d := time.Since(start); d != 10*time.Second {
			t.Errorf("Close took %s", d)
		}
		g.Wait()
		b.node.change(func() {
			b.node.destroy = nil
		})
		b.node.found.Ended = []control.Ending{{ID: sb.ID, At: time.Now(), Reason: dayfly.EndCrashed}}
		if got := del(b, sb.ID); got.Status != dayfly.StatusDeleting { // closed: nothing begins
			t.Errorf("status = %s", got.Status)
		}
		b.restart(control.Config{})
		if sb := b.record(sb.ID); sb.Status != dayfly.StatusDeleted || sb.End != dayfly.EndRequested {
			t.Errorf("after the restart it is %s (%s)", sb.Status, sb.End)
		}
	})
}

// TestStuckTeardown is bug 115: a step that fails for ever keeps no record open, and no quota taken, once the machine is gone.
func TestStuckTeardown(t *testing.T) {
	bubble(t, "of a dead machine", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{Timeout: time.Minute})
		stuck := true
		b.node.change(func() {
			b.node.destroy = func(context.Context, string) error {
				if stuck {
					return errors.Join(errTest, control.ErrLeftover)
				}
				return nil
			}
		})
		_, err := b.plane.DeleteSandbox(t.Context(), b.admin, sb.ID)
		wantCode(t, err, "")
		synctest.Wait()
		b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndRequested)
		if got := b.record(sb.ID).Times.EndedAt.Sub(sb.Times.CreatedAt); got > time.Second {
			t.Errorf("bug 30: the teardown counts as life: %s", got)
		}
		tries := b.node.destroyed(sb.ID)
		time.Sleep(5 * time.Minute)
		if b.node.destroyed(sb.ID) == tries {
			t.Error("what is left was given up")
		}
		b.node.change(func() { stuck = false })
		time.Sleep(time.Minute)
		tries = b.node.destroyed(sb.ID)
		time.Sleep(5 * time.Minute)
		if b.node.destroyed(sb.ID) != tries {
			t.Error("it goes on though nothing is left")
		}
	})
}

func TestStuck(t *testing.T) {
	bubble(t, "a step that fails is shown until it is done", control.Config{}, func(t *testing.T, b *bed) {
		stuck, other := b.create(control.CreateSandbox{}), b.create(control.CreateSandbox{})
		problems := len(b.plane.Ready(t.Context()))
		b.node.change(func() {
			b.node.destroy = func(_ context.Context, id string) error {
				if id != stuck.ID {
					return nil
				}
				return errors.Join(fmt.Errorf("of it: %w", &control.StepError{Step: "remove disk", Err: errTest}), &control.StepError{Step: "detach network", Err: errTest})
			}
		})
		began := b.plane.Now()
		time.Sleep(time.Second)
		_, err := b.plane.DeleteSandbox(t.Context(), b.admin, stuck.ID)
		wantCode(t, err, "")
		_, err = b.plane.DeleteSandbox(t.Context(), b.admin, other.ID)
		wantCode(t, err, "")
		got := b.plane.Stuck()
		if len(got) != 2 || got[0].Sandbox != stuck.ID || got[0].Step != "detach network" || got[1].Step != "remove disk" || got[0].Tries < 3 ||
			!got[1].At(b.plane.Now()).Equal(began.Wall.Add(time.Second)) {
			t.Errorf("stuck: %+v", got)
		}
		if now := b.plane.Ready(t.Context()); len(now) != problems {
			t.Errorf("it keeps work from being taken: %v", now)
		}
		b.node.change(func() { b.node.destroy = nil })
		b.store.set("MoveSandbox", errTest)
		time.Sleep(time.Minute)
		if got := b.plane.Stuck(); len(got) != 1 || got[0].Step != "record the end" {
			t.Errorf("stuck: %+v", got)
		}
		b.store.set("MoveSandbox", nil)
		time.Sleep(time.Minute)
		if got := b.plane.Stuck(); len(got) != 0 {
			t.Errorf("stuck after the end: %+v", got)
		}
		b.wantEnd(stuck.ID, dayfly.StatusDeleted, dayfly.EndRequested)
	})
	bubble(t, "a step without a name, of many", control.Config{MaxLive: 200}, func(t *testing.T, b *bed) {
		b.node.change(func() { b.node.destroy = func(context.Context, string) error { return errTest } })
		for range 120 {
			sb := b.create(control.CreateSandbox{})
			b.node.dies(sb.ID, dayfly.EndCrashed, time.Now())
		}
		synctest.Wait()
		if got := b.plane.Stuck(); len(got) != 100 || got[0].Step == "" {
			t.Errorf("%d are shown", len(got))
		}
	})
}

func TestEndings(t *testing.T) {
	for why, status := range map[dayfly.EndReason]dayfly.Status{
		dayfly.EndCrashed: dayfly.StatusFailed, dayfly.EndLeaseExpired: dayfly.StatusDeleted, dayfly.EndOOM: dayfly.StatusFailed, "": dayfly.StatusFailed,
	} {
		bubble(t, "reason "+string(why), control.Config{}, func(t *testing.T, b *bed) {
			sb := b.create(control.CreateSandbox{})
			time.Sleep(90 * time.Second)
			at := time.Now().Add(-30 * time.Second)
			b.node.dies(sb.ID, why, at)
			synctest.Wait()
			want := why
			if why == "" {
				want = dayfly.EndCrashed
			}
			got := b.wantEnd(sb.ID, status, want)
			if !got.Times.EndedAt.Equal(at) || got.Billed(b.plane.Now()) != time.Minute {
				t.Errorf("ended at %s, want the host's %s; billed %s", got.Times.EndedAt, at, got.Billed(b.plane.Now()))
			}
			if b.node.destroyed(sb.ID) != 1 {
				t.Error("what is left of it was not removed")
			}
			_, err := b.plane.Machine(t.Context(), b.admin, sb.ID)
			wantGone(t, err, want)
		})
	}
	bubble(t, "while the database is down", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.store.set("MoveSandbox", dayfly.Errorf(dayfly.CodeUnavailable, "down"))
		b.node.dies(sb.ID, dayfly.EndCrashed, time.Now())
		time.Sleep(10 * time.Second)
		b.wantEnd(sb.ID, dayfly.StatusRunning, "")
		b.store.set("MoveSandbox", nil)
		time.Sleep(time.Minute)
		b.wantEnd(sb.ID, dayfly.StatusFailed, dayfly.EndCrashed)
	})
	bubble(t, "at the moment of the start", control.Config{}, func(t *testing.T, b *bed) {
		b.store.watch(func(method string) { // the machine lives, its record does not say so yet
			if method == "MoveSandbox" && b.node.lives() == 1 {
				b.store.hook = nil
				id := b.all()[0].ID
				b.node.mu.Lock()
				delete(b.node.machines, id)
				b.node.mu.Unlock()
				b.node.endings <- control.Ending{ID: id, At: time.Now(), Reason: dayfly.EndCrashed}
			}
		})
		out, err := b.plane.CreateSandbox(t.Context(), b.admin, control.CreateSandbox{})
		if err == nil && out.Value.Status != dayfly.StatusRunning {
			t.Errorf("the creator got %+v", out.Value)
		}
		time.Sleep(time.Second)
		b.wantEnd(b.all()[0].ID, dayfly.StatusFailed, dayfly.EndCrashed)
	})
	bubble(t, "a clock that stepped back", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.node.dies(sb.ID, dayfly.EndCrashed, time.Now().Add(-24*time.Hour))
		synctest.Wait()
		if got := b.record(sb.ID); got.Times.EndedAt.Before(got.Times.CreatedAt) {
			t.Errorf("ended at %s, before it began", got.Times.EndedAt)
		}
	})
}
