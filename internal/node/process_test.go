package node_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// sleeper is a command that tells its pid on its first line and then sleeps. policy is what becomes of it.
func sleeper(policy dayfly.OnDisconnect) dayfly.ProcessSpec {
	spec := command("echo $$; exec sleep 1000")
	spec.OnDisconnect = policy
	return spec
}

// begin starts a sleeper and gives its pid and its stream.
func begin(t *testing.T, m control.Machine, spec dayfly.ProcessSpec) (int, dayfly.OutputStream) {
	t.Helper()
	s, _, err := m.Start(t.Context(), spec, nil)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return readPID(t, s), s
}

func readPID(t *testing.T, s dayfly.OutputStream) int {
	t.Helper()
	out, err := s.Next()
	if err != nil {
		t.Fatalf("Next: %v", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out.Data)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func lives(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

// stays waits longer than the grace period and checks that the process is still there: nothing happens, so there is no event.
func stays(t *testing.T, pid int) {
	t.Helper()
	late := time.After(4 * graceTest)
	<-late
	if !lives(pid) {
		t.Error("it was killed")
	}
}

func TestClientLeaves(t *testing.T) {
	for _, tt := range []struct {
		name   string
		policy dayfly.OnDisconnect
		dies   bool
	}{
		{"default", "", true},
		{"grace", dayfly.DisconnectGrace, true},
		{"kill", dayfly.DisconnectKill, true},
		{"continue", dayfly.DisconnectContinue, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			m := w.machine(w.create().ID)
			pid, s := begin(t, m, sleeper(tt.policy))
			_ = s.Close()
			_ = s.Close() // leaves once
			if tt.dies {
				eventually(t, "the process is killed", func() bool { return !lives(pid) })
			} else {
				stays(t, pid)
			}
		})
		t.Run(tt.name+", a plain run", func(t *testing.T) {
			w := newWorld(t)
			m := w.machine(w.create().ID)
			spec := sleeper(tt.policy)
			ctx, cancel := context.WithCancel(t.Context())
			var g sync.WaitGroup
			g.Go(func() {
				if _, err := m.Run(ctx, spec, nil); !errors.Is(err, context.Canceled) {
					t.Errorf("Run = %v", err)
				}
			})
			eventually(t, "it runs", func() bool { _, err := m.Process(t.Context(), spec.ID); return err == nil })
			s, err := m.Output(t.Context(), spec.ID, dayfly.Offsets{}, false)
			if err != nil {
				t.Fatal(err)
			}
			pid := 0
			eventually(t, "it tells its pid", func() bool {
				out, err := s.Next()
				if err != nil {
					_ = s.Close()
					s, _ = m.Output(t.Context(), spec.ID, dayfly.Offsets{}, false)
					return false
				}
				pid, _ = strconv.Atoi(strings.TrimSpace(string(out.Data)))
				return true
			})
			_ = s.Close() // whoever only looked does not count
			if !lives(pid) {
				t.Error("looking at the output killed it")
			}
			cancel()
			g.Wait()
			if tt.dies {
				eventually(t, "the process is killed", func() bool { return !lives(pid) })
			} else {
				stays(t, pid)
			}
		})
	}
	t.Run("one of two", func(t *testing.T) {
		w := newWorld(t)
		m := w.machine(w.create().ID)
		spec := sleeper(dayfly.DisconnectGrace)
		pid, first := begin(t, m, spec)
		second, err := m.Output(t.Context(), spec.ID, dayfly.Offsets{}, true)
		if err != nil {
			t.Fatal(err)
		}
		_ = first.Close()
		stays(t, pid)
		_ = second.Close()
		eventually(t, "the process is killed", func() bool { return !lives(pid) })
	})
	t.Run("and comes back", func(t *testing.T) {
		w := newWorld(t)
		m := w.machine(w.create().ID)
		pid, again := inTime(t, func(spec dayfly.ProcessSpec) (int, time.Time, control.Machine) {
			pid, s := begin(t, m, spec)
			left := time.Now()
			_ = s.Close()
			return pid, left, m
		})
		stays(t, pid)
		if got := readPID(t, again); got != pid {
			t.Errorf("resumed at %d, want %d", got, pid)
		}
		_ = again.Close()
		eventually(t, "the process is killed", func() bool { return !lives(pid) })
	})
	t.Run("before it knows that the process started", func(t *testing.T) {
		w := newWorld(t)
		sb := w.create()
		m := w.machine(sb.ID)
		w.signal(sb.ID, syscall.SIGSTOP)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		spec := sleeper(dayfly.DisconnectGrace)
		if _, _, err := m.Start(ctx, spec, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Start = %v", err)
		}
		w.signal(sb.ID, syscall.SIGCONT)
		eventually(t, "the process is gone, or never was", func() bool {
			p, err := m.Process(t.Context(), spec.ID)
			return dayfly.ErrorCode(err) == dayfly.CodeNotFound || err == nil && p.Status == dayfly.ProcessExited
		})
	})
}

// inTime has leave begin a process, tell when its client left and where it is, and comes back to it. On a loaded host that may take longer
// than the grace period; then the process is killed, as it should be, which says nothing, and another one is left.
func inTime(t *testing.T, leave func(dayfly.ProcessSpec) (pid int, left time.Time, m control.Machine)) (int, dayfly.OutputStream) {
	t.Helper()
	for giveUp := time.Now().Add(waitLong); time.Now().Before(giveUp); {
		spec := sleeper(dayfly.DisconnectGrace)
		pid, left, m := leave(spec)
		s, err := m.Output(t.Context(), spec.ID, dayfly.Offsets{}, true)
		late := time.Since(left) >= graceTest
		switch {
		case err == nil && !late:
			t.Cleanup(func() { _ = s.Close() })
			return pid, s
		case err == nil:
			_ = s.Close()
		case !late:
			t.Fatal(err)
		}
	}
	t.Fatalf("coming back took longer than %s each time", graceTest)
	return 0, nil
}

// TestRestartIsLeaving: a crash of the server counts as the leaving of every client.
func TestRestartIsLeaving(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	m := w.machine(sb.ID)
	grace, s1 := begin(t, m, sleeper(dayfly.DisconnectGrace))
	kill, s2 := begin(t, m, sleeper(dayfly.DisconnectKill))
	keep, s3 := begin(t, m, sleeper(dayfly.DisconnectContinue))
	streams := []dayfly.OutputStream{s1, s2, s3}
	resumed, s := inTime(t, func(back dayfly.ProcessSpec) (int, time.Time, control.Machine) {
		pid, s4 := begin(t, w.machine(sb.ID), back)
		streams = append(streams, s4)
		left := time.Now()
		if rec, err := w.restart(sb); err != nil || len(rec.Running) != 1 {
			t.Fatalf("Recover = %+v, %v", rec, err)
		}
		return pid, left, w.machine(sb.ID)
	})
	defer s.Close()
	for _, s := range streams { // of the server that is no more
		if _, err := s.Next(); err == nil || err == io.EOF {
			t.Errorf("Next = %v after the restart", err)
		}
		_ = s.Close()
	}
	eventually(t, "those that nobody came back to are killed", func() bool { return !lives(grace) && !lives(kill) })
	stays(t, keep)
	stays(t, resumed)
}

func TestOutOfMemory(t *testing.T) {
	for _, tt := range []struct {
		name   string
		script string
		kills  int64 // that the kernel did for lack of memory meanwhile
		want   bool
	}{
		{"killed for lack of memory", "kill -9 $$", 1, true},
		{"a child of the shell", "bash -c 'kill -9 $$'; exit $?", 1, true},
		{"killed by somebody", "kill -9 $$", 0, false},
		{"another command was killed", "exit 1", 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			sb := w.create()
			m := w.machine(sb.ID)
			inst := w.driver.instance(sb.ID)
			spec := command("read; " + tt.script)
			s, _, err := m.Start(t.Context(), spec, readerFunc(func() { inst.ooms.Add(tt.kills) }))
			if err != nil {
				t.Fatal(err)
			}
			for {
				out, err := s.Next()
				if err != nil {
					t.Fatal(err)
				}
				if out.Kind == dayfly.OutputExit {
					if out.Exit.OOMKilled != tt.want {
						t.Errorf("exit = %+v, want OOMKilled %v", out.Exit, tt.want)
					}
					break
				}
			}
			_ = s.Close()
			res, err := m.Result(t.Context(), spec.ID)
			if err != nil || res.Exit.OOMKilled != tt.want {
				t.Errorf("read again: %+v, %v", res.Exit, err)
			}
			p, err := m.Process(t.Context(), spec.ID)
			if err != nil || p.Exit == nil || p.Exit.OOMKilled != tt.want {
				t.Errorf("its record: %+v, %v", p, err)
			}
		})
	}
}

func TestKillOnRequestIsNoLackOfMemory(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	m := w.machine(sb.ID)
	spec := sleeper("")
	_, s := begin(t, m, spec)
	w.driver.instance(sb.ID).ooms.Add(1) // of another command
	if err := m.Signal(t.Context(), spec.ID, "KILL", true); err != nil {
		t.Fatal(err)
	}
	for {
		out, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if out.Kind == dayfly.OutputExit {
			if out.Exit.OOMKilled || out.Exit.Signal != "KILL" {
				t.Errorf("exit = %+v", out.Exit)
			}
			return
		}
	}
}

func TestLaunchOnTerminal(t *testing.T) {
	w := newWorld(t)
	m := w.machine(w.create().ID)
	spec := command("stty -echo; read a; read b; echo $a $b")
	spec.Terminal, spec.OnDisconnect = &dayfly.TerminalSize{Cols: 80, Rows: 24}, dayfly.DisconnectContinue
	p, err := m.Launch(t.Context(), spec, strings.NewReader("one\r"))
	if err != nil || p.Terminal == nil {
		t.Fatalf("%+v, %v", p, err)
	}
	if err := m.Resize(t.Context(), spec.ID, dayfly.TerminalSize{Cols: 100, Rows: 30}); err != nil {
		t.Fatal(err)
	}
	if err := m.WriteStdin(t.Context(), spec.ID, strings.NewReader("two\r"), false); err != nil {
		t.Fatal(err)
	}
	res, err := m.Result(t.Context(), spec.ID)
	got := string(res.Stdout.Head)
	if err != nil || !strings.Contains(got, "one") || !strings.Contains(got, "two") || res.Exit.Code != 0 {
		t.Errorf("%+v %q, %v", res.Exit, got, err)
	}
	if p, err = m.Process(t.Context(), spec.ID); err != nil || *p.Terminal != (dayfly.TerminalSize{Cols: 100, Rows: 30}) {
		t.Errorf("%+v, %v", p.Terminal, err)
	}
}

// readerFunc is one line of input; what it calls happens before that.
type readerFunc func()

func (f readerFunc) Read(p []byte) (int, error) {
	f()
	return copy(p, "\n"), io.EOF
}

func TestSessionIsMadeAnew(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	m := w.machine(sb.ID)
	inst := w.driver.instance(sb.ID)
	pid, s := begin(t, m, sleeper(dayfly.DisconnectContinue))
	inst.cut()
	_, err := s.Next()
	wantCode(t, err, dayfly.CodeUnavailable)
	_ = s.Close()
	var g sync.WaitGroup
	for range 10 {
		g.Go(func() {
			if _, err := m.Stat(ctxFor(t), "/"); err != nil {
				t.Errorf("Stat: %v", err)
			}
		})
	}
	g.Wait()
	if n := inst.cut(); n != 2 {
		t.Errorf("%d connections were made, want 2", n)
	}
	if !lives(pid) {
		t.Error("the process died with the session")
	}
	w.runs(sb.ID)
	unreachable := dayfly.Errorf(dayfly.CodeGone, "the driver says so")
	var as error = unreachable
	inst.broken.Store(&as)
	inst.cut()
	eventually(t, "the lost session is noticed", func() bool { _, err := m.Stat(t.Context(), "/"); return err != nil })
	_, err = m.Stat(ctxFor(t), "/")
	wantCode(t, err, dayfly.CodeUnavailable) // as long as its processes live, it has not ended
	w.kill(sb.ID)
	_, err = m.Stat(ctxFor(t), "/")
	wantCode(t, err, dayfly.CodeGone)
	if dayfly.AsError(err).Details["sandbox"] != sb.ID {
		t.Errorf("error %v does not name the sandbox that ended", err)
	}
}
