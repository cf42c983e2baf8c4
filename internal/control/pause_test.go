package control_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

func (b *bed) pause(id string) (dayfly.Sandbox, error) {
	return b.plane.PauseSandbox(context.Background(), b.admin, id)
}

func (b *bed) resume(id string) (dayfly.Sandbox, error) {
	return b.plane.ResumeSandbox(context.Background(), b.admin, id)
}

// wantPaused checks that record and host agree.
func (b *bed) wantPaused(id string, want bool) {
	b.t.Helper()
	status := dayfly.StatusRunning
	if want {
		status = dayfly.StatusPaused
	}
	frozen, err := b.node.Paused(context.Background(), id)
	if sb := b.record(id); sb.Status != status || frozen != want || err != nil {
		b.t.Errorf("record %s, frozen %t, %v; want %s on both sides", sb.Status, frozen, err, status)
	}
}

// told are the types of the events of one sandbox, and who made the last one.
func (b *bed) told(id string) (types []dayfly.EventType, last dayfly.Actor) {
	b.t.Helper()
	events, err := b.store.Store.Events(context.Background(), dayfly.EventFilter{Sandbox: id, Limit: 1000})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range events {
		types, last = append(types, e.Type), e.Actor
	}
	return types, last
}

func TestPause(t *testing.T) {
	bubble(t, "and resume, each twice", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		for _, want := range []bool{true, true, false, false} {
			do := b.resume
			if want {
				do = b.pause
			}
			if _, err := do(sb.ID); err != nil {
				t.Fatal(err)
			}
			b.wantPaused(sb.ID, want)
		}
		types, by := b.told(sb.ID)
		want := []dayfly.EventType{dayfly.EventAccepted, dayfly.EventRunning, dayfly.EventPaused, dayfly.EventResumed}
		if !slices.Equal(types, want) || by != dayfly.Actor("key:"+b.admin.Key.ID) {
			t.Errorf("events %v, the last by %s", types, by)
		}
	})
	bubble(t, "what works meanwhile, and what does not", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{Timeout: time.Minute})
		if _, err := b.plane.Machine(t.Context(), b.admin, sb.ID); err != nil { // so that it is known to run
			t.Fatal(err)
		}
		if _, err := b.pause(sb.ID); err != nil {
			t.Fatal(err)
		}
		_, err := b.plane.Machine(t.Context(), b.admin, sb.ID)
		wantCode(t, err, dayfly.CodeNotRunning)
		out, err := b.plane.ExtendSandbox(t.Context(), b.admin, sb.ID, time.Minute)
		if err != nil || out.Sandbox.Status != dayfly.StatusPaused || out.Sandbox.Lease.Granted() != 2*time.Minute {
			t.Errorf("extend: %+v, %v", out, err)
		}
		name := "sleeper"
		if _, err := b.plane.LabelSandbox(t.Context(), b.admin, sb.ID, map[string]string{"a": "b"}, &name); err != nil {
			t.Error(err)
		}
		list, _, err := b.plane.Sandboxes(t.Context(), b.admin, dayfly.SandboxFilter{Statuses: []dayfly.Status{dayfly.StatusPaused}, Limit: 10})
		if err != nil || len(list) != 1 || list[0].Name != name {
			t.Errorf("list: %+v, %v", list, err)
		}
		if n, err := b.plane.Count(t.Context()); err != nil || n[dayfly.StatusPaused] != 1 {
			t.Errorf("counts %v, %v", n, err)
		}
		time.Sleep(30 * time.Second)
		if billed := b.record(sb.ID).Billed(b.node.Now()); billed < 30*time.Second {
			t.Errorf("billed %s: a paused sandbox costs what a running one does", billed)
		}
		if _, err := b.plane.DeleteSandbox(t.Context(), b.admin, sb.ID); err != nil {
			t.Error(err)
		}
		b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndRequested)
		_, err = b.resume(sb.ID)
		wantCode(t, err, dayfly.CodeGone)
	})
	bubble(t, "counts as live", control.Config{MaxLive: 1}, func(t *testing.T, b *bed) {
		who := b.account("small")
		out, err := b.plane.CreateSandbox(t.Context(), who, control.CreateSandbox{})
		if err == nil {
			_, err = b.plane.PauseSandbox(t.Context(), who, out.Value.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.plane.CreateSandbox(t.Context(), who, control.CreateSandbox{})
		wantCode(t, err, dayfly.CodeQuotaExceeded)
		_, err = b.pause(out.Value.ID) // somebody else's
		wantCode(t, err, dayfly.CodeNotFound)
	})
	bubble(t, "its lease ends it", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{Timeout: 10 * time.Second})
		if _, err := b.pause(sb.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndLeaseExpired)
	})
	bubble(t, "one that is being made", control.Config{}, func(t *testing.T, b *bed) {
		made := make(chan struct{})
		b.node.change(func() { b.node.create = func(context.Context, dayfly.Sandbox) error { <-made; return nil } })
		sb := b.create(control.CreateSandbox{Async: true})
		_, err := b.pause(sb.ID)
		wantCode(t, err, dayfly.CodeNotRunning)
		close(made)
	})
	bubble(t, "one that cannot be frozen goes on", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.node.change(func() { b.node.pause = func(context.Context, string) error { return errTest } })
		if _, err := b.pause(sb.ID); err == nil {
			t.Error("paused")
		}
		b.wantPaused(sb.ID, false)
	})
}

// TestPauseIsNotRecorded has the server die, or its database fail, between the host's step and the record.
func TestPauseIsNotRecorded(t *testing.T) {
	for _, frozen := range []bool{true, false} {
		name := map[bool]string{true: "frozen and not recorded", false: "thawed and not recorded"}[frozen]
		begin := func(b *bed) dayfly.Sandbox {
			sb := b.create(control.CreateSandbox{})
			if !frozen {
				if _, err := b.pause(sb.ID); err != nil {
					b.t.Fatal(err)
				}
			}
			b.node.mu.Lock()
			b.node.machines[sb.ID].frozen = frozen
			b.node.mu.Unlock()
			return sb
		}
		bubble(t, name+", a pass finds it", control.Config{}, func(t *testing.T, b *bed) {
			sb := begin(b)
			if err := b.plane.Sweep(t.Context(), b.node.Now()); err != nil {
				t.Fatal(err)
			}
			b.wantPaused(sb.ID, frozen)
			if _, by := b.told(sb.ID); by != dayfly.ActorReconciler {
				t.Errorf("told by %s", by)
			}
		})
		bubble(t, name+", a start finds it", control.Config{}, func(t *testing.T, b *bed) {
			sb := begin(b)
			rec := b.record(sb.ID)
			rec.Status = dayfly.StatusRunning
			if frozen {
				rec.Status = dayfly.StatusPaused
			}
			b.node.found = control.Recovery{Running: []dayfly.Sandbox{rec}}
			b.restart(control.Config{})
			b.wantPaused(sb.ID, frozen)
		})
	}
	bubble(t, "the database fails, and then does not", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.store.set("MoveSandbox", errTest)
		if _, err := b.pause(sb.ID); err == nil {
			t.Error("answered")
		}
		b.store.set("MoveSandbox", nil)
		time.Sleep(time.Minute)
		b.wantPaused(sb.ID, true)
	})
}

// TestBug21DeleteBeatsAResumeInFlight deletes a paused sandbox at every moment of a resume.
func TestBug21DeleteBeatsAResumeInFlight(t *testing.T) {
	for _, early := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
		bubble(t, early.String(), control.Config{}, func(t *testing.T, b *bed) {
			sb := b.create(control.CreateSandbox{})
			if _, err := b.pause(sb.ID); err != nil {
				t.Fatal(err)
			}
			b.node.change(func() {
				b.node.pause = func(context.Context, string) error { time.Sleep(5 * time.Millisecond); return nil }
			})
			var g sync.WaitGroup
			g.Go(func() {
				if _, err := b.resume(sb.ID); err != nil {
					wantCode(t, err, dayfly.CodeGone)
				}
			})
			time.Sleep(early)
			begun := time.Now()
			if _, err := b.plane.DeleteSandbox(context.Background(), b.admin, sb.ID); err != nil {
				t.Error(err)
			}
			if waited := time.Since(begun); waited > time.Millisecond {
				t.Errorf("the delete waited %s for the resume", waited)
			}
			for range 10 {
				b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndRequested)
				time.Sleep(time.Second)
			}
			g.Wait()
		})
	}
}

// TestBug71PausesResumesAndTheRestAtOnce lets everything loose on one sandbox.
func TestBug71PausesResumesAndTheRestAtOnce(t *testing.T) {
	for _, end := range []bool{false, true} {
		name := map[bool]string{false: "it goes on", true: "it is deleted meanwhile"}[end]
		bubble(t, name, control.Config{}, func(t *testing.T, b *bed) {
			sb := b.create(control.CreateSandbox{Timeout: time.Hour})
			b.node.change(func() {
				b.node.pause = func(context.Context, string) error { time.Sleep(3 * time.Millisecond); return nil }
			})
			var g sync.WaitGroup
			for worker := range 20 {
				g.Go(func() {
					for turn := range 10 {
						var err error
						switch (worker + turn) % 4 {
						case 0:
							_, err = b.pause(sb.ID)
						case 1:
							_, err = b.resume(sb.ID)
						case 2:
							_, err = b.plane.ExtendSandbox(context.Background(), b.admin, sb.ID, time.Second)
						case 3:
							_, err = b.plane.Machine(context.Background(), b.admin, sb.ID)
							if dayfly.ErrorCode(err) == dayfly.CodeNotRunning {
								err = nil
							}
						}
						if err != nil && (!end || dayfly.ErrorCode(err) != dayfly.CodeGone) {
							t.Error(err)
						}
						time.Sleep(time.Duration(worker) * time.Millisecond)
					}
				})
			}
			if end {
				time.Sleep(50 * time.Millisecond)
				if _, err := b.plane.DeleteSandbox(context.Background(), b.admin, sb.ID); err != nil {
					t.Error(err)
				}
			}
			g.Wait()
			if end {
				b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndRequested)
				return
			}
			b.wantPaused(sb.ID, b.record(sb.ID).Status == dayfly.StatusPaused)
			if _, err := b.resume(sb.ID); err != nil {
				t.Error(err)
			}
			b.wantPaused(sb.ID, false)
		})
	}
}
