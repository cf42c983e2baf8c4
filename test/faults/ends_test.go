package faults_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly/test/host"
)

// one makes a sandbox.
func (w *world) one(t *testing.T, seconds int) *box {
	t.Helper()
	o := &createOp{key: w.tag + "-" + t.Name() + time.Now().String(), seconds: seconds}
	if settled, err := o.run(w); err != nil || !settled {
		t.Fatalf("make a sandbox: %v", err)
	}
	for _, b := range w.all() {
		if b.id == o.id {
			return b
		}
	}
	t.Fatal("it is gone already")
	return nil
}

// restart starts the server again.
func restart(t *testing.T, s *host.Server) {
	t.Helper()
	if err := s.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// down kills warden and server.
func down(t *testing.T, s *host.Server) {
	t.Helper()
	if err := s.Kill(); err != nil { // first, or it would start another warden
		t.Fatal(err)
	}
	if _, err := s.KillWarden(); err != nil {
		t.Fatal(err)
	}
}

// crashed waits for the death of a server that came past its point.
func (w *world) crashed(t *testing.T) {
	t.Helper()
	err := within(settleMax, func() error {
		if w.s.Running() {
			return errNotYet
		}
		return nil
	})
	if err != nil {
		t.Fatal("the server lives: the point was not passed")
	}
}

// settledEnd waits until the sandbox is dead and its record closed, and holds one against the other.
func (w *world) settledEnd(t *testing.T, b *box) record {
	t.Helper()
	var r record
	err := within(boxMax, func() (err error) {
		b.mu.Lock()
		dead := !b.death.IsZero()
		b.mu.Unlock()
		if r, err = w.sandbox(b.id); err == nil && (!dead || !r.ended()) {
			err = errNotYet
		}
		return err
	})
	if err == nil {
		err = b.check(r, &w.blind)
	}
	if err != nil {
		t.Errorf("%v\n\t%s", err, b.history())
	}
	return r
}

// unseen is how long nobody is there to see what happens.
const unseen = 1500 * time.Millisecond

// TestACrashThatNobodySawIsNotBilledUpToTheRestart is bug 31: the record closes at the last proof of life.
func TestACrashThatNobodySawIsNotBilledUpToTheRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.one(t, 60)
	began := time.Now()
	down(t, w.s)
	sign := w.sign()
	if err := b.killAgent(w.s); err != nil {
		t.Fatal(err)
	}
	pause(unseen)
	restart(t, w.s)
	w.blind.add(began, time.Now(), sign)
	if r := w.settledEnd(t, b); r.EndReason != "crashed" {
		t.Errorf("end reason %s", r.EndReason)
	}
}

// TestACrashThatNobodySawIsNoLeaseThatExpired: server and warden are dead, the machine dies before its deadline, and they come back
// after it, but before its own clock would have ended it.
func TestACrashThatNobodySawIsNoLeaseThatExpired(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		after time.Duration // its deadline
		want  string
	}{
		{"nothing else can have ended it", 300 * time.Millisecond, "crashed"},
		{"its own clock may have ended it", agentMin + slack, "lease_expired"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			b := w.one(t, 5)
			pause(time.Until(b.lo.Add(-unseen)))
			began := time.Now()
			down(t, w.s)
			sign := w.sign()
			if err := b.killAgent(w.s); err != nil {
				t.Fatal(err)
			}
			pause(time.Until(b.lo.Add(tt.after)))
			restart(t, w.s)
			w.blind.add(began, time.Now(), sign)
			if r := w.settledEnd(t, b); r.EndReason != tt.want {
				t.Errorf("end reason %s", r.EndReason)
			}
		})
	}
}

// TestAStartThatACrashCutOffLosesNoEnd: the first start finds a machine that crashed, and dies at the point. What it removed dates
// nothing any more, so the record must be right by then.
func TestAStartThatACrashCutOffLosesNoEnd(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"node.recover.noted", "node.recover.reclaimed", "node.destroy.lease", "node.destroy.state", "control.recover.found", "control.recover.adopted", "control.recover.closed"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			b := w.one(t, 60)
			if err := w.s.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := b.killAgent(w.s); err != nil { // the warden sees it
				t.Fatal(err)
			}
			pause(unseen)
			w.arm(plan{point: point, action: "kill", hit: 1}, nil)
			if err := w.s.Up(t.Context()); err == nil {
				w.crashed(t)
			}
			pause(unseen)
			w.disarm()
			restart(t, w.s)
			if r := w.settledEnd(t, b); r.EndReason != "crashed" {
				t.Errorf("end reason %s", r.EndReason)
			}
			w.agrees(t)
		})
	}
}

// TestADeleteThatACrashCutOffIsNotDatedToTheDeadline: all die when the DELETE is on record, the machine too, and its deadline passes.
func TestADeleteThatACrashCutOffIsNotDatedToTheDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.one(t, 5)
	pause(time.Until(b.lo.Add(-unseen)))
	began := time.Now()
	w.arm(plan{point: "control.end.recorded", action: "kill", hit: 1}, nil)
	if _, err := (&deleteOp{b}).run(w); err != nil {
		t.Fatal(err)
	}
	w.crashed(t)
	w.disarm()
	if _, err := w.s.KillWarden(); err != nil {
		t.Fatal(err)
	}
	sign := w.sign()
	if err := b.killAgent(w.s); err != nil {
		t.Fatal(err)
	}
	pause(time.Until(b.lo.Add(slack)))
	restart(t, w.s)
	w.blind.add(began, time.Now(), sign)
	if r := w.settledEnd(t, b); r.EndReason != "requested" {
		t.Errorf("end reason %s", r.EndReason)
	}
}

func TestADeleteThatACrashCutOffIsDatedByItself(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"node.destroy.begin", "node.destroy.killed", "node.destroy.lease", "node.destroy.state", "control.end.gone"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			b := w.one(t, 60)
			w.arm(plan{point: point, action: "kill", hit: 1}, nil)
			if _, err := (&deleteOp{b}).run(w); err != nil {
				t.Fatal(err)
			}
			w.crashed(t)
			pause(unseen)
			w.disarm()
			restart(t, w.s)
			if r := w.settledEnd(t, b); r.EndReason != "requested" {
				t.Errorf("end reason %s", r.EndReason)
			}
			if settled, err := (&deleteOp{b}).run(w); !settled || err != nil {
				t.Errorf("bug 106: a delete after the cut-off one: %v", err)
			}
			w.agrees(t) // bug 106: nothing of it remains
		})
	}
}

// TestBug114AReaperThatACrashCutOffIsFinishedByTheNext kills the server between two kinds of things that a lease's end removes.
func TestBug114AReaperThatACrashCutOffIsFinishedByTheNext(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"node.destroy.network", "node.destroy.disk", "node.destroy.rundir"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			b := w.one(t, 5)
			w.arm(plan{point: point, action: "kill", hit: 1}, nil)
			pause(time.Until(b.lo))
			w.crashed(t)
			w.disarm()
			restart(t, w.s)
			if r := w.settledEnd(t, b); r.EndReason != "lease_expired" {
				t.Errorf("end reason %s", r.EndReason)
			}
			w.agrees(t)
		})
	}
}

func TestAFirstStartThatACrashCutOffStillGivesAKey(t *testing.T) {
	t.Parallel()
	s, points := start(t)
	if out := s.Dayfly(t.Context(), "down", "--destroy", "--purge"); out.Code != 0 { // back to before the first start
		t.Fatalf("down: exit %d: %s", out.Code, out.Stderr)
	}
	if err := errors.Join(os.MkdirAll(s.Data, 0o700), os.WriteFile(points, []byte("first.key.issued=kill,1\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := s.Up(t.Context()); err == nil {
		t.Fatal("the first start did not come past the point")
	}
	restart(t, s)
	key, err := s.Key()
	if err != nil {
		t.Fatal(err)
	}
	if a := (client{s, key}).do("GET", "/v1/keys", "", nil); a.status != 200 {
		t.Errorf("the key in admin.key: %s", a)
	}
	if _, err := os.Stat(filepath.Join(s.Data, "admin.key.new")); !os.IsNotExist(err) {
		t.Errorf("admin.key.new is left (%v)", err)
	}
}

func TestAnExtendThatACrashCutOffHoldsForEveryClock(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"warden.renew.replaced", "node.renew.settled", "node.renew.granted", "control.extend.recorded"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			b := w.one(t, 6)
			w.arm(plan{point: point, action: "kill", hit: 1}, nil)
			if _, err := (&extendOp{b: b, key: "cut-off", seconds: 6}).run(w); err != nil {
				t.Fatal(err)
			}
			w.crashed(t)
			w.disarm()
			restart(t, w.s)
			r, err := w.sandbox(b.id)
			if err != nil {
				t.Fatal(err)
			}
			b.mu.Lock()
			if r.ExpiresAt.Sub(b.hi).Abs() > slack {
				t.Errorf("due %s after the restart, want %s: the lease file is what counts", clock(r.ExpiresAt), clock(b.hi))
			}
			b.lo, b.hi = r.ExpiresAt, r.ExpiresAt
			b.mu.Unlock()
			down(t, w.s) // only the agent's clock is left
			w.blind.add(time.Now(), time.Now().Add(time.Minute), w.sign())
			pause(time.Until(r.ExpiresAt.Add(agentMax)))
			restart(t, w.s)
			if r := w.settledEnd(t, b); r.EndReason != "lease_expired" {
				t.Errorf("end reason %s", r.EndReason)
			}
		})
	}
}

// TestTheReleaseHasNoFailpoints looks at the program that is shipped.
func TestTheReleaseHasNoFailpoints(t *testing.T) {
	t.Parallel()
	host.Need(t)
	for name, want := range map[string]bool{"dayfly": false, "dayfly-agent": false, "dayfly-faults": true, "dayfly-faults-agent": true} {
		b, err := os.ReadFile(host.Bin() + "/" + name)
		if err != nil {
			t.Skip(err)
		}
		if got := bytes.Contains(b, []byte("DAYFLY_FAILPOINTS")); got != want {
			t.Errorf("%s has a trace of failpoints: %v, want %v", name, got, want)
		}
	}
}

func TestAnAgentThatDiesInTheMiddleIsACrashAndSoIsTheAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	points, err := failpoints()
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range points {
		if !strings.HasPrefix(point, "agent.") {
			continue
		}
		t.Run(point, func(t *testing.T) {
			b := w.one(t, 60)
			w.arm(plan{point: point, action: "kill", hit: 1}, b)
			var o operation = &execOp{b: b, key: w.tag + point}
			if strings.HasPrefix(point, "agent.write.") {
				o = &writeOp{b: b, path: "f", content: "new"}
			}
			began := time.Now()
			if _, err := o.run(w); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("answered after %s", took)
			}
			if r := w.settledEnd(t, b); r.EndReason != "crashed" {
				t.Errorf("end reason %s", r.EndReason)
			}
		})
	}
	w.agrees(t)
}
