package node_test

import (
	"errors"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
	"dayfly.dev/dayfly/internal/node"
)

// TestEndsAreToldBeforeAnythingIsRemoved: what cannot be put on record keeps all that dates it, for the next try.
func TestEndsAreToldBeforeAnythingIsRemoved(t *testing.T) {
	for name, look := range map[string]func(w *world, sb dayfly.Sandbox) error{
		"start": func(w *world, sb dayfly.Sandbox) error { _, err := w.restart(sb); return err },
		"pass of the reconciler": func(w *world, sb dayfly.Sandbox) error {
			w.start()
			_, err := w.manager.Sweep(ctxFor(w.t), []dayfly.Sandbox{sb}, false, w.note)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			sb := w.create()
			w.manager.Close()
			w.kill(sb.ID)
			died := w.clock.Now()
			w.leases.record(sb.ID, node.LeaseEnd{BootID: bootTest, Boot: died.Boot})
			w.clock.step(10 * time.Minute)
			w.noteErr = errTest
			if err := look(w, sb); !errors.Is(err, errTest) {
				t.Fatalf("it went on: %v", err)
			}
			if _, err := w.leases.Read(sb.ID); err != nil {
				t.Errorf("the lease is gone: %v", err)
			}
			w.manager.Close()
			w.noted, w.noteErr = nil, nil
			w.clock.step(10 * time.Minute)
			if err := look(w, sb); err != nil {
				t.Fatal(err)
			}
			if e := w.noted[sb.ID]; e.Boot != died.Boot || e.Reason != dayfly.EndCrashed {
				t.Errorf("told %+v, want crashed at %s", e, died.Boot)
			}
			w.nothingOf(sb.ID)
		})
	}
}

// TestDestroyOfWhatWasDead: whoever found it dead has dated it; the removal of its remains is no later end.
func TestDestroyOfWhatWasDead(t *testing.T) {
	w := newWorld(t)
	dead, alive := w.create(), w.create()
	w.manager.Close()
	w.kill(dead.ID)
	w.start()
	if e := w.destroy(dead.ID); !e.At.IsZero() || e.Boot != 0 {
		t.Errorf("ending = %+v", e)
	}
	if e := w.destroy(alive.ID); !e.At.Equal(w.clock.Now().Wall) {
		t.Errorf("ending of what lived = %+v", e)
	}
	w.nothingOf(dead.ID)
}

// TestWhatEndedUnseen: a machine is dead at the start, and nobody was there when it died. Its lease is of one hour, from 1 h to 2 h of
// the boot; the last sign of life that a warden gave is at 90 minutes unless the case says otherwise.
func TestWhatEndedUnseen(t *testing.T) {
	const due, sign = 2 * time.Hour, 90 * time.Minute
	found := func(at time.Duration) *node.LeaseEnd { return &node.LeaseEnd{BootID: bootTest, Boot: at, Found: true} }
	for _, tt := range []struct {
		name   string
		now    time.Duration // of the start
		sign   time.Duration
		status dayfly.Status
		end    *node.LeaseEnd // what an enforcer wrote down, or nil
		lives  bool           // it is alive at the start, after all
		want   dayfly.EndReason
		at     time.Duration // 0: when the end was asked for
	}{
		{name: "before its deadline", now: due - time.Minute, want: dayfly.EndCrashed, at: sign},
		{name: "after its deadline, before its own clock", now: due + time.Second, want: dayfly.EndCrashed, at: sign},
		{name: "alike, and an enforcer found it dead", now: due + time.Second, end: found(due + time.Millisecond), want: dayfly.EndCrashed, at: sign},
		{name: "found dead before its own clock, started later", now: due + time.Hour, end: found(due + time.Second), want: dayfly.EndCrashed, at: sign},
		{name: "after its own clock", now: due + 3*time.Second, want: dayfly.EndLeaseExpired, at: sign},
		{name: "found dead after its own clock", now: due + time.Hour, end: found(due + 3*time.Second), want: dayfly.EndLeaseExpired, at: sign},
		{name: "a warden was there at its deadline", now: due + time.Second, sign: due + 500*time.Millisecond, want: dayfly.EndLeaseExpired, at: due},
		{name: "found dead by a warden that was there before its deadline", now: due + 10*time.Second, sign: due + time.Second, end: found(due - time.Millisecond), want: dayfly.EndCrashed, at: due - time.Millisecond},
		{name: "it lives, after its deadline", now: due + time.Second, lives: true, want: dayfly.EndLeaseExpired, at: due},
		{name: "an enforcer killed it", now: due + time.Hour, end: &node.LeaseEnd{BootID: bootTest, Boot: due + time.Millisecond, Expired: true}, want: dayfly.EndLeaseExpired, at: due + time.Millisecond},
		{name: "its end was asked for", now: due - time.Minute, status: dayfly.StatusDeleting, at: 0},
		{name: "its end was asked for, and an enforcer found it dead", now: due + time.Second, end: found(due), status: dayfly.StatusDeleting, at: 0},
		{name: "its end was asked for, and seen", now: due + time.Second, end: &node.LeaseEnd{BootID: bootTest, Boot: sign}, status: dayfly.StatusDeleting, want: dayfly.EndCrashed, at: sign},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			sb := w.create()
			sb.StampReady(w.clock.Now())
			if tt.status != "" {
				sb.Status = tt.status
			}
			w.manager.Close()
			if !tt.lives {
				w.kill(sb.ID)
			}
			if tt.end != nil {
				w.leases.record(sb.ID, *tt.end)
			}
			if tt.sign == 0 {
				tt.sign = sign
			}
			w.leases.seen = wallTest.Add(tt.sign)
			w.clock.step(tt.now - w.clock.Now().Boot)
			rec, err := w.restart(sb)
			if err != nil || len(rec.Ended) != 1 {
				t.Fatalf("Recover = %+v, %v", rec, err)
			}
			e := rec.Ended[0]
			if e.Boot != tt.at || tt.at == 0 != e.At.IsZero() || tt.at != 0 && !e.At.Equal(wallTest.Add(tt.at)) {
				t.Errorf("ended at %s (%s), want %s", e.Boot, e.At, tt.at)
			}
			if tt.status == "" && e.Reason != tt.want {
				t.Errorf("ended by %s, want %s", e.Reason, tt.want)
			}
			w.nothingOf(sb.ID)
		})
	}
}

// TestWhatRanOutOfMemoryUnseen: under a driver where a lack of memory ends the machine, the start after that tells so, whether an
// enforcer saw the end or nobody did; what the driver cannot tell is a crash.
func TestWhatRanOutOfMemoryUnseen(t *testing.T) {
	for _, tt := range []struct {
		name string
		lack bool
		err  error
		seen bool
		want dayfly.EndReason
	}{
		{name: "nobody saw it", lack: true, want: dayfly.EndOOM},
		{name: "an enforcer saw it", lack: true, seen: true, want: dayfly.EndOOM},
		{name: "something else ended it", want: dayfly.EndCrashed},
		{name: "it cannot be told", err: errTest, want: dayfly.EndCrashed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.driver.lacks = func(id string) (bool, error) { return tt.lack, tt.err }
			w.start()
			sb := w.create()
			sb.StampReady(w.clock.Now())
			w.manager.Close()
			w.kill(sb.ID)
			if tt.seen {
				w.leases.record(sb.ID, node.LeaseEnd{BootID: bootTest, Boot: w.clock.Now().Boot})
			}
			rec, err := w.restart(sb)
			if err != nil || len(rec.Ended) != 1 {
				t.Fatalf("Recover = %+v, %v", rec, err)
			}
			if e := rec.Ended[0]; e.Reason != tt.want {
				t.Errorf("ended by %s, want %s", e.Reason, tt.want)
			}
			w.nothingOf(sb.ID)
		})
	}
}

// TestOnlyTheLastLackOfMemoryIsAnEnd: where a lack of memory may end a command or the whole machine, what it ended
// earlier does not make a later crash one.
func TestOnlyTheLastLackOfMemoryIsAnEnd(t *testing.T) {
	type world struct {
		m    control.Machine
		inst *spyInstance
	}
	lackOf := func(t *testing.T, w world) {
		spec := command("read; kill -9 $$")
		res, err := w.m.Run(ctxFor(t), spec, readerFunc(func() { w.inst.ooms.Add(1) }))
		if err != nil || !res.Exit.OOMKilled {
			t.Fatalf("%+v, %v", res.Exit, err)
		}
	}
	again := func(t *testing.T, w world) {
		if res, err := w.m.Run(ctxFor(t), command("true"), nil); err != nil || res.Exit.Code != 0 {
			t.Fatalf("%+v, %v", res.Exit, err)
		}
	}
	for _, tt := range []struct {
		name string
		life func(t *testing.T, w world)
		want dayfly.EndReason
	}{
		{"it crashed", again, dayfly.EndCrashed},
		{"it ended with it", func(t *testing.T, w world) { w.inst.ooms.Add(1) }, dayfly.EndOOM},
		{"it crashed after a command ran out", func(t *testing.T, w world) { lackOf(t, w); again(t, w) }, dayfly.EndCrashed},
		{"it ended with another one", func(t *testing.T, w world) { lackOf(t, w); again(t, w); w.inst.ooms.Add(1) }, dayfly.EndOOM},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.driver.lacks = func(string) (bool, error) { return true, nil }
			w.start()
			sb := w.create()
			tt.life(t, world{w.machine(sb.ID), w.driver.instance(sb.ID)})
			w.kill(sb.ID)
			if e := <-w.manager.Endings(); e.Reason != tt.want {
				t.Errorf("ended by %s, want %s", e.Reason, tt.want)
			}
		})
	}
}
