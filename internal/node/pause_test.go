package node_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func (w *world) pause(id string) {
	w.t.Helper()
	if err := w.manager.Pause(ctxFor(w.t), id); err != nil {
		w.t.Fatalf("Pause: %v", err)
	}
	w.isPaused(id, true)
}

func (w *world) resume(id string) {
	w.t.Helper()
	if err := w.manager.Resume(ctxFor(w.t), id); err != nil {
		w.t.Fatalf("Resume: %v", err)
	}
	w.isPaused(id, false)
}

func (w *world) isPaused(id string, want bool) {
	w.t.Helper()
	if is, err := w.manager.Paused(ctxFor(w.t), id); err != nil || is != want {
		w.t.Errorf("Paused = %t, %v, want %t", is, err, want)
	}
}

// TestPausedIsLeftAlone asks everything of a paused machine: nothing of it reaches the machine, and all is as before afterwards.
func TestPausedIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	m := w.machine(sb.ID)
	spec := command("read line; echo got $line; sleep 1000")
	spec.OpenStdin, spec.OnDisconnect = true, dayfly.DisconnectContinue
	s, _, err := m.Start(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w.pause(sb.ID)
	w.pause(sb.ID)
	for name, call := range map[string]func(context.Context) error{
		"run":    func(ctx context.Context) error { _, err := m.Run(ctx, command("true"), nil); return err },
		"start":  func(ctx context.Context) error { _, _, err := m.Start(ctx, command("true"), nil); return err },
		"launch": func(ctx context.Context) error { _, err := m.Launch(ctx, command("true"), nil); return err },
		"signal": func(ctx context.Context) error { return m.Signal(ctx, spec.ID, "KILL", true) },
		"stdin":  func(ctx context.Context) error { return m.WriteStdin(ctx, spec.ID, strings.NewReader("x\n"), false) },
		"list":   func(ctx context.Context) error { _, err := m.Processes(ctx); return err },
		"output": func(ctx context.Context) error { _, err := m.Output(ctx, spec.ID, dayfly.Offsets{}, true); return err },
		"stat":   func(ctx context.Context) error { _, err := m.Stat(ctx, "/"); return err },
		"write": func(ctx context.Context) error {
			_, err := m.Write(ctx, "f", nil, strings.NewReader("x"))
			return err
		},
	} {
		if err := call(ctxFor(t)); dayfly.ErrorCode(err) != dayfly.CodeNotRunning || dayfly.AsError(err).Details["status"] != "paused" {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.driver.instance(sb.ID).cut() // a session that is lost meanwhile is not made anew
	dials := len(w.driver.instance(sb.ID).dialled())
	_, err = m.Stat(ctxFor(t), "/")
	wantCode(t, err, dayfly.CodeNotRunning)
	if n := len(w.driver.instance(sb.ID).dialled()); n != dials {
		t.Errorf("it was dialled %d times", n-dials)
	}
	w.resume(sb.ID)
	w.resume(sb.ID)
	if err := m.WriteStdin(ctxFor(t), spec.ID, strings.NewReader("on\n"), false); err != nil {
		t.Fatal(err)
	}
	again, err := m.Output(ctxFor(t), spec.ID, dayfly.Offsets{}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if out, err := again.Next(); err != nil || string(out.Data) != "got on\n" {
		t.Errorf("%q, %v", out.Data, err)
	}
	w.runs(sb.ID)
}

// TestPausedStreamStays has a stream and a call that wait when the machine is paused: they get their answers after it.
func TestPausedStreamStays(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	m := w.machine(sb.ID)
	const told = "echo one; until [ -e go ]; do sleep 0.02; done; echo two"
	s, _, err := m.Start(t.Context(), command(told), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if out, err := s.Next(); err != nil || string(out.Data) != "one\n" {
		t.Fatalf("%q, %v", out.Data, err)
	}
	result, waiting := make(chan error, 1), command(told)
	go func() {
		res, err := m.Run(t.Context(), waiting, nil)
		if err == nil && string(res.Stdout.Head) != "one\ntwo\n" {
			err = errors.New(string(res.Stdout.Head))
		}
		result <- err
	}()
	eventually(t, "the call waits", func() bool { _, err := m.Process(ctxFor(t), waiting.ID); return err == nil })
	w.pause(sb.ID)
	select {
	case err := <-result:
		t.Fatalf("an answer from a paused machine: %v", err)
	case <-time.After(2 * graceTest):
	}
	w.resume(sb.ID)
	if _, err := m.Write(ctxFor(t), "go", nil, strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
	for got := ""; got != "two\n"; {
		out, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		got = string(out.Data)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// TestClientLeavesAPausedMachine: what is to be ended then is ended once the machine goes on.
func TestClientLeavesAPausedMachine(t *testing.T) {
	for _, policy := range []dayfly.OnDisconnect{dayfly.DisconnectGrace, dayfly.DisconnectKill, dayfly.DisconnectContinue} {
		t.Run(string(policy), func(t *testing.T) {
			w := newWorld(t)
			sb := w.create()
			pid, s := begin(t, w.machine(sb.ID), sleeper(policy))
			w.pause(sb.ID)
			_ = s.Close()
			stays(t, pid)
			w.resume(sb.ID)
			if policy == dayfly.DisconnectContinue {
				stays(t, pid)
			} else {
				eventually(t, "the process is killed", func() bool { return !lives(pid) })
			}
			w.runs(sb.ID)
		})
	}
}

// TestInputOfALaunchOutlivesAPause feeds a command whose machine is paused meanwhile.
func TestInputOfALaunchOutlivesAPause(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	m := w.machine(sb.ID)
	spec := command("cat")
	more, feed := io.Pipe()
	if _, err := m.Launch(ctxFor(t), spec, more); err != nil {
		t.Fatal(err)
	}
	w.pause(sb.ID)
	go func() {
		_, _ = io.WriteString(feed, "whole\n")
		_ = feed.Close()
	}()
	w.resume(sb.ID)
	if res, err := m.Result(ctxFor(t), spec.ID); err != nil || string(res.Stdout.Head) != "whole\n" {
		t.Errorf("%q, %v", res.Stdout.Head, err)
	}
}

func TestDestroyWaitsForNoPause(t *testing.T) {
	t.Run("while paused", func(t *testing.T) {
		w := newWorld(t)
		sb := w.create()
		w.pause(sb.ID)
		m := w.machine(sb.ID)
		w.destroy(sb.ID)
		w.nothingOf(sb.ID)
		for what, err := range map[string]error{"pause": w.manager.Pause(ctxFor(t), sb.ID), "resume": w.manager.Resume(ctxFor(t), sb.ID)} {
			if dayfly.ErrorCode(err) != dayfly.CodeGone {
				t.Errorf("%s of a dead one: %v", what, err)
			}
		}
		_, err := m.Stat(ctxFor(t), "/")
		wantCode(t, err, dayfly.CodeGone)
	})
	for _, way := range []string{"pause", "resume"} {
		t.Run("while a "+way+" hangs", func(t *testing.T) {
			w := newWorld(t)
			sb := w.create()
			begun, letGo := make(chan struct{}), make(chan struct{})
			hang := sync.OnceFunc(func() { close(begun); <-letGo }) // one that fails is undone by the other
			w.driver.instance(sb.ID).freezing.Store(&hang)
			var g sync.WaitGroup
			g.Go(func() {
				do := w.manager.Pause
				if way == "resume" {
					do = w.manager.Resume
				}
				wantCode(t, do(ctxFor(t), sb.ID), dayfly.CodeGone)
			})
			<-begun
			w.destroy(sb.ID)
			w.nothingOf(sb.ID)
			close(letGo)
			g.Wait()
		})
	}
	t.Run("amid many", func(t *testing.T) {
		w := newWorld(t)
		sb := w.create()
		var g sync.WaitGroup
		for i := range 8 {
			g.Go(func() {
				for range 5 {
					do := []func(context.Context, string) error{w.manager.Pause, w.manager.Resume}[i%2]
					if err := do(ctxFor(t), sb.ID); err != nil && dayfly.ErrorCode(err) != dayfly.CodeGone {
						t.Error(err)
					}
				}
			})
		}
		w.destroy(sb.ID)
		g.Wait()
		w.nothingOf(sb.ID)
	})
}

// TestPauseFails undoes a pause that the host did only half.
func TestPauseFails(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	fail := errTest
	w.driver.instance(sb.ID).unfrozen.Store(&fail)
	wantCode(t, w.manager.Pause(ctxFor(t), sb.ID), dayfly.CodeUnavailable)
	w.isPaused(sb.ID, false)
	w.runs(sb.ID)
	w.driver.instance(sb.ID).unfrozen.Store(nil)
	w.pause(sb.ID)
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.manager.Resume(short, sb.ID); err == nil {
		t.Error("resumed although the caller's time was over")
	}
	w.isPaused(sb.ID, true)
	w.resume(sb.ID)
	w.runs(sb.ID)
}

// TestPausedFromOutside: what the host says counts, whoever did it.
func TestPausedFromOutside(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	host := w.driver.instance(sb.ID)
	if err := host.Pause(ctxFor(t)); err != nil {
		t.Fatal(err)
	}
	w.isPaused(sb.ID, true)
	_, err := w.machine(sb.ID).Stat(ctxFor(t), "/")
	wantCode(t, err, dayfly.CodeNotRunning)
	if err := host.Resume(ctxFor(t)); err != nil {
		t.Fatal(err)
	}
	w.isPaused(sb.ID, false)
	w.runs(sb.ID)
}

// TestRecoverPaused restarts the node while machines are paused: they are not asked, not ended, and go on when they are resumed.
func TestRecoverPaused(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	m := w.machine(sb.ID)
	left, s1 := begin(t, m, sleeper(dayfly.DisconnectGrace))
	keep, s2 := begin(t, m, sleeper(dayfly.DisconnectContinue))
	w.pause(sb.ID)
	lease := sb.Lease
	lease.Deadline += time.Hour
	if err := w.manager.Renew(ctxFor(t), sb.ID, lease); err != nil {
		t.Fatal(err)
	}
	sb.Status, sb.Lease = dayfly.StatusPaused, lease
	for range 2 {
		rec, err := w.restart(sb)
		if err != nil || len(rec.Running) != 1 || len(rec.Ended)+len(rec.Ending) != 0 {
			t.Fatalf("Recover = %+v, %v", rec, err)
		}
		if got := rec.Running[0]; got.Status != dayfly.StatusPaused || got.Lease != lease {
			t.Errorf("found %+v", got)
		}
		if n := len(w.driver.instance(sb.ID).dialled()); n != 0 {
			t.Errorf("a paused machine was dialled %d times", n)
		}
		_, err = w.machine(sb.ID).Stat(ctxFor(t), "/")
		wantCode(t, err, dayfly.CodeNotRunning)
		swept, err := w.manager.Sweep(ctxFor(t), []dayfly.Sandbox{sb}, false, w.note)
		if err != nil || len(swept.Findings)+len(swept.Ended)+len(swept.Running) != 0 {
			t.Errorf("Sweep = %+v, %v", swept, err)
		}
	}
	_, _ = s1.Close(), s2.Close()
	stays(t, left)
	w.resume(sb.ID)
	eventually(t, "what nobody came back to is killed", func() bool { return !lives(left) })
	stays(t, keep)
	w.runs(sb.ID)
	w.destroy(sb.ID)
	w.nothingOf(sb.ID)
}

// TestPausedThatDied: a paused machine that died is seen as any other, by a start and by a pass.
func TestPausedThatDied(t *testing.T) {
	for _, way := range []string{"watched", "found by a start"} {
		t.Run(way, func(t *testing.T) {
			w := newWorld(t)
			sb := w.create()
			w.pause(sb.ID)
			sb.Status = dayfly.StatusPaused
			if way == "watched" {
				w.signal(sb.ID, 9)
				if e := <-w.manager.Endings(); e.ID != sb.ID || e.Reason != dayfly.EndCrashed {
					t.Errorf("ending %+v", e)
				}
				w.destroy(sb.ID)
			} else {
				w.manager.Close()
				w.kill(sb.ID)
				w.start()
				rec, err := w.manager.Recover(t.Context(), []dayfly.Sandbox{sb}, w.note)
				if err != nil || len(rec.Ended) != 1 || rec.Ended[0].Reason != dayfly.EndCrashed {
					t.Errorf("Recover = %+v, %v", rec, err)
				}
			}
			w.nothingOf(sb.ID)
		})
	}
	t.Run("nowhere, found by a pass", func(t *testing.T) {
		w := newWorld(t)
		sb := w.sandbox()
		sb.Status = dayfly.StatusPaused
		swept, err := w.manager.Sweep(ctxFor(t), []dayfly.Sandbox{sb}, false, w.note)
		if err != nil || len(swept.Ended) != 1 || swept.Ended[0].ID != sb.ID {
			t.Errorf("Sweep = %+v, %v", swept, err)
		}
	})
}
