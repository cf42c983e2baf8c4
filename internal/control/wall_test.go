package control_test

import (
	"testing"
	"testing/synctest"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// wallSteps are what the wall clock is set by while sandboxes live. The last is the correction of a host that booted with its
// clock far in the past.
var wallSteps = map[string]time.Duration{"an hour forward": time.Hour, "an hour back": -time.Hour, "decades forward": 40 * 365 * 24 * time.Hour}

func TestWallClockSteps(t *testing.T) {
	for name, by := range wallSteps {
		step := func(b *bed) { b.node.stepped.Add(int64(by)) }
		bubble(t, name+": a lease ends to the moment", control.Config{}, func(t *testing.T, b *bed) {
			sb := b.create(control.CreateSandbox{Timeout: 10 * time.Minute})
			time.Sleep(4 * time.Minute)
			step(b)
			_ = b.plane.Sweep(t.Context(), b.plane.Now())
			if left := b.record(sb.ID).Lease.Remaining(b.plane.Now()); left != 6*time.Minute {
				t.Errorf("%s remain, want 6 minutes", left)
			}
			time.Sleep(6*time.Minute - time.Millisecond)
			b.wantEnd(sb.ID, dayfly.StatusRunning, "")
			if billed := b.record(sb.ID).Billed(b.plane.Now()); billed != 10*time.Minute-time.Second {
				t.Errorf("billed %s while it runs", billed)
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			got := b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndLeaseExpired)
			if now := b.plane.Now(); !got.Times.EndedAt.Equal(now.Wall) || got.Billed(now) != 10*time.Minute {
				t.Errorf("ended at %s, now is %s; billed %s", got.Times.EndedAt, now.Wall, got.Billed(now))
			}
			step(b)
			if billed := b.record(sb.ID).Billed(b.plane.Now()); billed != 10*time.Minute {
				t.Errorf("billed %s after a step behind the end", billed)
			}
		})
		bubble(t, name+": an extend adds what it says", control.Config{}, func(t *testing.T, b *bed) {
			sb := b.create(control.CreateSandbox{Timeout: 10 * time.Minute})
			time.Sleep(4 * time.Minute)
			step(b)
			out, err := b.plane.ExtendSandbox(t.Context(), b.admin, sb.ID, 10*time.Minute)
			if left := out.Sandbox.Lease.Remaining(b.plane.Now()); err != nil || left != 16*time.Minute || out.Clamped {
				t.Errorf("%s remain, clamped %v, %v", left, out.Clamped, err)
			}
			time.Sleep(16*time.Minute - time.Millisecond)
			b.wantEnd(sb.ID, dayfly.StatusRunning, "")
			time.Sleep(time.Millisecond)
			synctest.Wait()
			b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndLeaseExpired)
		})
		bubble(t, name+": a crash and a restart are billed to the second", control.Config{}, func(t *testing.T, b *bed) {
			crashed, restarted := b.create(control.CreateSandbox{}), b.create(control.CreateSandbox{})
			time.Sleep(2 * time.Minute)
			step(b)
			time.Sleep(time.Minute)
			b.node.found.Running = []dayfly.Sandbox{b.record(crashed.ID), b.record(restarted.ID)}
			b.restart(control.Config{})
			died := b.node.Now()
			b.node.endings <- control.Ending{ID: crashed.ID, At: died.Wall, Boot: died.Boot, Reason: dayfly.EndCrashed}
			synctest.Wait()
			time.Sleep(time.Minute)
			if got := b.wantEnd(crashed.ID, dayfly.StatusFailed, dayfly.EndCrashed); got.Billed(b.plane.Now()) != 3*time.Minute || !got.Times.EndedAt.Equal(died.Wall) {
				t.Errorf("billed %s, ended at %s", got.Billed(b.plane.Now()), got.Times.EndedAt)
			}
			got, err := b.plane.DeleteSandbox(t.Context(), b.admin, restarted.ID)
			if err != nil || got.Billed(b.plane.Now()) != 4*time.Minute {
				t.Errorf("billed %s, %v", got.Billed(b.plane.Now()), err)
			}
		})
		if by > control.EndedKept {
			continue // the record of what ended before such a step is an old one after it
		}
		bubble(t, name+": the step falls into a teardown", control.Config{}, func(t *testing.T, b *bed) {
			sb := b.create(control.CreateSandbox{})
			time.Sleep(5 * time.Minute)
			died := b.node.Now()
			b.store.set("MoveSandbox", errTest)
			b.node.endings <- control.Ending{ID: sb.ID, At: died.Wall, Boot: died.Boot, Reason: dayfly.EndCrashed}
			synctest.Wait()
			step(b)
			b.store.set("MoveSandbox", nil)
			time.Sleep(time.Minute)
			if got := b.record(sb.ID); !got.Status.Ended() || got.Billed(b.plane.Now()) > 5*time.Minute+time.Second {
				t.Errorf("it is %s, billed %s", got.Status, got.Billed(b.plane.Now()))
			}
		})
	}
	bubble(t, "what ended with its host is billed for no longer than its lease", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{Timeout: 10 * time.Minute})
		b.node.found.Ended = []control.Ending{{ID: sb.ID, At: b.node.Now().Wall.Add(time.Hour), Reason: dayfly.EndHostLost}}
		delete(b.node.machines, sb.ID)
		b.node.reboots.Add(1)
		b.restart(control.Config{})
		if got := b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndHostLost); got.Billed(b.plane.Now()) != 10*time.Minute {
			t.Errorf("billed %s", got.Billed(b.plane.Now()))
		}
	})
}
