package control_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

func TestExtend(t *testing.T) {
	extend := func(b *bed, id string, d time.Duration) (control.Extended, error) {
		return b.plane.ExtendSandbox(b.t.Context(), b.admin, id, d)
	}
	bubble(t, "fifty at once add up", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.node.change(func() {
			b.node.renew = func(context.Context, string) error { time.Sleep(time.Millisecond); return nil }
		})
		var g sync.WaitGroup
		for range 50 {
			g.Go(func() {
				if out, err := extend(b, sb.ID, time.Minute); err != nil || out.Clamped {
					t.Errorf("%+v, %v", out, err)
				}
			})
		}
		g.Wait()
		want := sb.Lease
		want.Deadline += 50 * time.Minute
		if got := b.record(sb.ID).Lease; got != want || b.node.machine(sb.ID).lease != want {
			t.Errorf("recorded %+v, on the host %+v, want %+v", got, b.node.machine(sb.ID).lease, want)
		}
	})
	bubble(t, "to the ceiling and no further", control.Config{LeaseMax: time.Hour}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		out, err := extend(b, sb.ID, 2*time.Hour)
		if err != nil || !out.Clamped || out.Sandbox.Lease.Granted() != time.Hour {
			t.Errorf("%+v, %v", out, err)
		}
		_, err = extend(b, sb.ID, time.Minute)
		wantCode(t, err, dayfly.CodeLeaseCeiling)
		if b.node.machine(sb.ID).lease != out.Sandbox.Lease {
			t.Error("the host has another lease")
		}
	})
	bubble(t, "of one that ended", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		_, err := b.plane.DeleteSandbox(t.Context(), b.admin, sb.ID)
		wantCode(t, err, "")
		_, err = extend(b, sb.ID, time.Minute)
		wantGone(t, err, dayfly.EndRequested)
		_, err = extend(b, dayfly.NewID(dayfly.PrefixSandbox), time.Minute)
		wantCode(t, err, dayfly.CodeNotFound)
	})
	bubble(t, "at the deadline", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{Timeout: time.Minute})
		b.node.change(func() {
			b.node.expire = func(context.Context, string) error { time.Sleep(500 * time.Millisecond); return nil } // the kill takes a while
		})
		time.Sleep(time.Minute)
		_, err := extend(b, sb.ID, time.Hour)
		wantGone(t, err, dayfly.EndLeaseExpired)
		b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndLeaseExpired)
	})
	bubble(t, "lost against the host's enforcers", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.node.change(func() {
			b.node.renew = func(_ context.Context, id string) error {
				b.node.dies(id, dayfly.EndLeaseExpired, time.Now())
				return nil
			}
		})
		_, err := extend(b, sb.ID, time.Minute)
		wantGone(t, err, dayfly.EndLeaseExpired)
	})
	bubble(t, "it is not known who won", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.node.change(func() {
			b.node.renew = func(context.Context, string) error { return dayfly.Errorf(dayfly.CodeUnavailable, "no warden") }
		})
		_, err := extend(b, sb.ID, time.Minute)
		wantCode(t, err, dayfly.CodeUnavailable)
		if got := b.record(sb.ID); got.Lease != sb.Lease || got.Status != dayfly.StatusRunning {
			t.Errorf("record = %+v", got)
		}
	})
	bubble(t, "its end is asked for meanwhile", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.node.change(func() {
			b.node.destroy = func(context.Context, string) error { time.Sleep(time.Second); return nil }
		})
		b.node.change(func() {
			b.node.renew = func(_ context.Context, id string) error {
				go func() { _, _ = b.plane.DeleteSandbox(context.Background(), b.admin, id) }()
				time.Sleep(time.Millisecond)
				return nil
			}
		})
		_, err := extend(b, sb.ID, time.Minute)
		wantCode(t, err, dayfly.CodeGone)
		time.Sleep(2 * time.Second)
		b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndRequested)
	})
	bubble(t, "waits for its turn no longer than its context", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.node.change(func() {
			b.node.renew = func(context.Context, string) error { time.Sleep(time.Second); return nil }
		})
		var g sync.WaitGroup
		g.Go(func() { _, err := extend(b, sb.ID, time.Minute); wantCode(t, err, "") })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := b.plane.ExtendSandbox(ctx, b.admin, sb.ID, time.Minute)
		wantCode(t, err, dayfly.CodeUnavailable)
		if d := time.Since(start); d != 100*time.Millisecond {
			t.Errorf("it waited %s", d)
		}
		g.Wait()
		if got := b.record(sb.ID).Lease.Granted(); got != 16*time.Minute {
			t.Errorf("granted %s", got)
		}
	})
	bubble(t, "the client leaves in the middle", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		ctx, cancel := context.WithCancel(t.Context())
		b.node.change(func() {
			b.node.renew = func(ctx context.Context, _ string) error { cancel(); return ctx.Err() }
		})
		out, err := b.plane.ExtendSandbox(ctx, b.admin, sb.ID, time.Minute)
		if err != nil || out.Sandbox.Lease.Granted() != 16*time.Minute || b.node.machine(sb.ID).lease != out.Sandbox.Lease {
			t.Errorf("%+v, %v", out, err)
		}
	})
	bubble(t, "the reaper records it first", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.store.watch(func(method string) {
			if method == "RenewLease" {
				b.store.hook = nil
				rec := b.record(sb.ID)
				_, err := b.store.Store.RenewLease(context.Background(), sb.ID, rec.Rev, b.node.machine(sb.ID).lease)
				wantCode(t, err, "")
			}
		})
		out, err := extend(b, sb.ID, time.Minute)
		if err != nil || out.Sandbox.Lease.Granted() != 16*time.Minute {
			t.Errorf("%+v, %v", out, err)
		}
	})
	bubble(t, "the record lags behind the host", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.store.set("RenewLease", dayfly.Errorf(dayfly.CodeUnavailable, "down"))
		_, err := extend(b, sb.ID, time.Hour)
		wantCode(t, err, dayfly.CodeUnavailable)
		b.store.set("RenewLease", nil)
		time.Sleep(15*time.Minute + time.Second) // the deadline on record
		got := b.wantEnd(sb.ID, dayfly.StatusRunning, "")
		if got.Lease.Granted() != 75*time.Minute {
			t.Errorf("granted %s, want what the host obeys", got.Lease.Granted())
		}
		time.Sleep(time.Hour)
		b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndLeaseExpired)
	})
}

func TestReaper(t *testing.T) {
	bubble(t, "ends what is due, to the moment", control.Config{}, func(t *testing.T, b *bed) {
		short, long := b.create(control.CreateSandbox{Timeout: 63 * time.Second}), b.create(control.CreateSandbox{})
		time.Sleep(63*time.Second - time.Millisecond)
		b.wantEnd(short.ID, dayfly.StatusRunning, "")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		got := b.wantEnd(short.ID, dayfly.StatusDeleted, dayfly.EndLeaseExpired)
		if d := got.Times.EndedAt.Sub(got.Times.CreatedAt); d != 63*time.Second {
			t.Errorf("it lived %s", d)
		}
		b.wantEnd(long.ID, dayfly.StatusRunning, "")
	})
	bubble(t, "follows an extend", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{Timeout: time.Minute})
		if _, err := b.plane.ExtendSandbox(t.Context(), b.admin, sb.ID, time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2*time.Minute - time.Millisecond)
		b.wantEnd(sb.ID, dayfly.StatusRunning, "")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndLeaseExpired)
	})
	bubble(t, "a node that cannot read ends nothing", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{Timeout: time.Minute})
		b.node.change(func() {
			b.node.expire = func(context.Context, string) error { return errTest }
		})
		time.Sleep(5 * time.Minute)
		b.wantEnd(sb.ID, dayfly.StatusRunning, "")
		if b.node.destroyed(sb.ID) != 0 {
			t.Error("it was destroyed")
		}
		b.node.change(func() {
			b.node.expire = nil
		})
		time.Sleep(2 * time.Second)
		b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndLeaseExpired)
	})
	bubble(t, "a store that cannot read ends nothing", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{Timeout: time.Minute})
		b.store.set("LiveSandboxes", dayfly.Errorf(dayfly.CodeUnavailable, "down"))
		time.Sleep(2 * time.Minute)
		b.wantEnd(sb.ID, dayfly.StatusRunning, "")
		b.store.set("LiveSandboxes", nil)
		time.Sleep(2 * time.Second)
		b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndLeaseExpired)
	})
	bubble(t, "one slow death holds up no other and is not begun twice", control.Config{}, func(t *testing.T, b *bed) {
		slow := b.create(control.CreateSandbox{Timeout: time.Minute})
		var calls atomic.Int32
		b.node.change(func() {
			b.node.expire = func(_ context.Context, id string) error {
				if id == slow.ID {
					calls.Add(1)
					time.Sleep(time.Minute)
				}
				return nil
			}
		})
		for i := range 10 {
			b.create(control.CreateSandbox{Timeout: time.Minute + time.Duration(i+1)*time.Second})
		}
		time.Sleep(time.Minute + 11*time.Second)
		if n := len(b.live()); n != 1 || calls.Load() != 1 {
			t.Errorf("%d live, %d calls", n, calls.Load())
		}
		time.Sleep(time.Minute)
		b.wantEnd(slow.ID, dayfly.StatusDeleted, dayfly.EndLeaseExpired)
	})
}

func (b *bed) live() []dayfly.Sandbox {
	b.t.Helper()
	live, err := b.store.Store.LiveSandboxes(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	return live
}

func TestRecover(t *testing.T) {
	cfg := control.Config{}
	bubble(t, "what runs is kept, at the host's lease", cfg, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		onHost := b.record(sb.ID)
		onHost.Lease.Deadline += time.Minute
		b.node.machine(sb.ID).lease = onHost.Lease
		b.node.found.Running = []dayfly.Sandbox{onHost}
		b.restart(cfg)
		if got := b.wantEnd(sb.ID, dayfly.StatusRunning, ""); got.Lease != onHost.Lease || len(b.node.known) != 1 {
			t.Errorf("lease = %+v, want %+v", got.Lease, onHost.Lease)
		}
		time.Sleep(16 * time.Minute)
		synctest.Wait()
		b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndLeaseExpired)
	})
	bubble(t, "what runs without a record is adopted until its lease ends", cfg, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		lost := b.record(sb.ID)
		lost.ID = dayfly.NewID(dayfly.PrefixSandbox)
		b.node.machines[lost.ID] = &mapMachine{lease: lost.Lease}
		b.node.found.Running = []dayfly.Sandbox{lost, b.record(sb.ID)}
		b.restart(cfg)
		b.wantEnd(lost.ID, dayfly.StatusRunning, "")
		if got, err := b.plane.Sandbox(t.Context(), b.admin, lost.ID); err != nil || got.Account != b.admin.Account.ID {
			t.Errorf("its account sees %+v, %v", got, err)
		}
		time.Sleep(15 * time.Minute)
		synctest.Wait()
		b.wantEnd(lost.ID, dayfly.StatusDeleted, dayfly.EndLeaseExpired)
	})
	bubble(t, "deleting goes on", cfg, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.node.change(func() {
			b.node.destroy = func(context.Context, string) error { return errTest }
		})
		_, err := b.plane.DeleteSandbox(t.Context(), b.admin, sb.ID)
		wantCode(t, err, "")
		onHost := sb
		b.node.found.Running = []dayfly.Sandbox{onHost}
		b.plane.Close()
		b.node.change(func() {
			b.node.destroy = nil
		})
		b.restart(cfg)
		synctest.Wait()
		b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndRequested)
	})
	bubble(t, "an ended one that lives is destroyed", cfg, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		_, err := b.plane.DeleteSandbox(t.Context(), b.admin, sb.ID)
		wantCode(t, err, "")
		b.node.machines[sb.ID] = &mapMachine{lease: sb.Lease}
		b.node.found.Running = []dayfly.Sandbox{sb}
		b.restart(cfg)
		synctest.Wait()
		b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndRequested)
	})
	bubble(t, "a start that was cut off frees its key", cfg, func(t *testing.T, b *bed) {
		b.slow()
		r := control.CreateSandbox{Request: idempotent("k")}
		var g sync.WaitGroup
		g.Go(func() {
			_, err := b.plane.CreateSandbox(t.Context(), b.admin, r)
			wantCode(t, err, dayfly.CodeUnavailable)
		})
		synctest.Wait()
		id := b.all()[0].ID
		b.plane.Close()
		g.Wait()
		b.wantEnd(id, dayfly.StatusProvisioning, "")
		b.node.change(func() {
			b.node.create = nil
		})
		b.node.found.Ended = []control.Ending{{ID: id, At: time.Now(), Reason: dayfly.EndStartupFailed}}
		b.restart(cfg)
		b.wantEnd(id, dayfly.StatusFailed, dayfly.EndStartupFailed)
		out, err := b.plane.CreateSandbox(t.Context(), b.admin, r)
		if err != nil || out.Replayed || out.Value.ID == id {
			t.Errorf("the retry got %+v, %v", out, err)
		}
	})
	bubble(t, "a start whose end nobody saw is finished", cfg, func(t *testing.T, b *bed) {
		r := control.CreateSandbox{Request: idempotent("k")}
		b.node.change(func() {
			b.node.create = func(context.Context, dayfly.Sandbox) error {
				b.store.set("MoveSandbox", errTest) // the server dies before it can record it
				return nil
			}
		})
		var made dayfly.Sandbox
		b.node.change(func() {
			b.node.destroy = func(context.Context, string) error { return errTest }
		})
		out, err := b.plane.CreateSandbox(t.Context(), b.admin, r)
		wantCode(t, err, dayfly.CodeInternal)
		b.plane.Close()
		b.store.set("MoveSandbox", nil)
		b.node.change(func() {
			b.node.destroy = nil
		})
		made = b.record(out.Value.ID)
		b.node.found.Running = []dayfly.Sandbox{made}
		b.restart(cfg)
		b.wantEnd(made.ID, dayfly.StatusRunning, "")
		again, err := b.plane.CreateSandbox(t.Context(), b.admin, r)
		if err != nil || !again.Replayed || again.Value.ID != made.ID || again.Value.Status != dayfly.StatusRunning {
			t.Errorf("the retry got %+v, %v", again, err)
		}
	})
	bubble(t, "lost with the host, at its last sign of life", cfg, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		time.Sleep(5 * time.Minute)
		at := time.Now().Add(-time.Minute)
		b.node.found.Ended = []control.Ending{{ID: sb.ID, At: at, Reason: dayfly.EndHostLost}}
		delete(b.node.machines, sb.ID)
		b.restart(cfg)
		if got := b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndHostLost); !got.Times.EndedAt.Equal(at) {
			t.Errorf("ended at %s, want %s", got.Times.EndedAt, at)
		}
	})
	bubble(t, "what could not be removed is deleting until it is", cfg, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		died := b.node.Now()
		time.Sleep(time.Minute)
		b.node.found.Ending = []control.Ending{{ID: sb.ID, At: died.Wall, Boot: died.Boot, Reason: dayfly.EndReconciled}}
		delete(b.node.machines, sb.ID)
		b.node.change(func() {
			b.node.destroy = func(context.Context, string) error { return errTest }
		})
		b.restart(cfg)
		b.wantEnd(sb.ID, dayfly.StatusDeleting, dayfly.EndReconciled)
		b.node.change(func() {
			b.node.destroy = nil
		})
		time.Sleep(time.Minute)
		if got := b.wantEnd(sb.ID, dayfly.StatusDeleted, dayfly.EndReconciled); got.Times.EndedBoot != died.Boot || !got.Times.EndedAt.Equal(died.Wall) {
			t.Errorf("ended at %s, want %s, when the start dated it to", got.Times.EndedBoot, died.Boot)
		}
	})
	for name, spoil := range map[string]func(b *bed){
		"records": func(b *bed) { b.store.set("LiveSandboxes", dayfly.Errorf(dayfly.CodeUnavailable, "down")) },
		"host":    func(b *bed) { b.node.recover = func() error { return errTest } },
		"adopt":   func(b *bed) { b.store.set("AdoptSandbox", dayfly.Errorf(dayfly.CodeUnavailable, "down")) },
		"ends":    func(b *bed) { b.store.set("MoveSandbox", dayfly.Errorf(dayfly.CodeUnavailable, "down")) },
	} {
		bubble(t, "cannot read or write: "+name, cfg, func(t *testing.T, b *bed) {
			sb, other := b.create(control.CreateSandbox{}), b.create(control.CreateSandbox{})
			b.node.found = control.Recovery{Running: []dayfly.Sandbox{sb}, Ended: []control.Ending{{ID: other.ID, Reason: dayfly.EndCrashed}}}
			b.plane.Close()
			spoil(b)
			b.plane = control.New(b.store, b.node, b.images, cfg, discard())
			if err := b.plane.Start(t.Context()); err == nil {
				t.Error("Start succeeded")
			}
			_, err := b.plane.Authenticate(t.Context(), "dfk_x")
			wantCode(t, err, dayfly.CodeUnavailable)
			b.wantEnd(sb.ID, dayfly.StatusRunning, "")
			if b.node.destroyed(sb.ID)+b.node.destroyed(other.ID) != 0 {
				t.Error("something was destroyed")
			}
		})
	}
}
