package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

// onFailure is a shell command that is started again when it fails.
func onFailure(command string, restarts int) dayfly.ProcessSpec {
	s := shell(command)
	s.Restart, s.Restarts = dayfly.RestartOnFailure, restarts
	return s
}

func TestRestart(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, m *machine) {
		for _, tt := range []struct {
			name, command, want string
			restarts, done      int
			code                int
		}{
			{"until it works", `n=$(($(cat a 2>/dev/null || echo 0)+1)); echo $n | tee a; exit $((n<3))`, "1\n2\n3\n", 5, 2, 0},
			{"bounded", "echo x; exit 4", "x\nx\nx\n", 2, 2, 4},
			{"died by itself", "echo x; kill -SEGV $$", "x\nx\n", 1, 1, 139},
			{"killed itself", "echo x; kill -9 $$", "x\nx\n", 1, 1, 137},
			{"success is the end", "echo x", "x\n", 5, 0, 0},
			{"missing program", "exec nosuchprog", "", 1, 1, 127},
			{"what it left is ended", "for p in $(cat left 2>/dev/null); do cat /proc/$p/cmdline; done 2>/dev/null; sleep 671 & echo $! > left; echo x; exit 1", "x\nx\n", 1, 1, 1},
		} {
			t.Run(tt.name, func(t *testing.T) {
				s := onFailure(tt.command, tt.restarts)
				r := m.run(t, s)
				if out(r.Stdout) != tt.want || r.Exit.Code != tt.code {
					t.Errorf("got %q, code %d, stderr %q", out(r.Stdout), r.Exit.Code, out(r.Stderr))
				}
				p, err := m.Process(t.Context(), s.ID)
				if err != nil || p.Restarts != tt.done || p.Restart != dayfly.RestartOnFailure || p.Status != dayfly.ProcessExited {
					t.Errorf("%+v, %v", p, err)
				}
			})
		}
		t.Run("argv that is missing", func(t *testing.T) {
			s := argv("nosuch")
			s.Restart, s.Restarts = dayfly.RestartOnFailure, 1
			if r := m.run(t, s); r.Exit.Code != 127 || strings.Count(out(r.Stderr), "not found") != 2 {
				t.Errorf("%+v %q", r.Exit, out(r.Stderr))
			}
		})
		t.Run("a directory that went away", func(t *testing.T) {
			s := onFailure("rmdir ../gone; exit 1", 1)
			m.run(t, shell("mkdir -p gone"))
			s.Cwd = "gone"
			if r := m.run(t, s); r.Exit.Code != 126 || !strings.Contains(out(r.Stderr), "cwd") {
				t.Errorf("%+v %q", r.Exit, out(r.Stderr))
			}
		})
		t.Run("on a terminal", func(t *testing.T) {
			s := onTerminal("stty size; exit 1")
			s.Restart, s.Restarts = dayfly.RestartOnFailure, 2
			if got, exit := follow(t, m.Client, s); got != strings.Repeat("24 80\r\n", 3) || exit.Code != 1 {
				t.Errorf("got %q, %+v", got, exit)
			}
		})
	})
}

func TestNoRestart(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, m *machine) {
		for _, tt := range []struct {
			name, command, signal string
			tree                  bool
			code                  int
		}{
			{"TERM", "sleep 681", "TERM", false, 143},
			{"TERM that is handled", "trap 'exit 5' TERM; sleep 682 & wait", "TERM", true, 5},
			{"KILL of the tree", "sleep 683 & wait", "KILL", true, 137},
			{"HUP that it dies of", "sleep 684", "HUP", false, 129},
		} {
			t.Run(tt.name, func(t *testing.T) {
				s := onFailure("echo up; "+tt.command, 5)
				stream := m.start1(t, s)
				until(t, stream, "up\n")
				eventually(t, "it sleeps", func() bool {
					return strings.Contains("\n"+m.living(t), "\nsleep 68")
				})
				if err := m.Signal(t.Context(), s.ID, tt.signal, tt.tree); err != nil {
					t.Fatal(err)
				}
				got, exit := collect(t, stream, 3)
				p, err := m.Process(t.Context(), s.ID)
				if got != "" || exit.Code != tt.code || err != nil || p.Restarts != 0 {
					t.Errorf("got %q, %+v, %d restarts, %v", got, exit, p.Restarts, err)
				}
			})
		}
		t.Run("TERM while it rests", func(t *testing.T) {
			s := onFailure("echo up; exit 3", 100)
			stream := m.start1(t, s)
			const tries = 6 // 3.2 seconds of rest follow
			for range tries {
				until(t, stream, "up\n")
			}
			eventually(t, "it rests", func() bool {
				p, err := m.Process(t.Context(), s.ID)
				return err == nil && p.PID == 0 && p.Processes == 0 && p.Status == dayfly.ProcessRunning
			})
			if err := m.Signal(t.Context(), s.ID, "TERM", false); err != nil {
				t.Fatal(err)
			}
			if got, exit := collect(t, stream, tries*int64(len("up\n"))); got != "" || exit.Code != 3 || exit.Signal != "" {
				t.Errorf("%q, %+v", got, exit)
			}
		})
		t.Run("a harmless signal does not prevent it", func(t *testing.T) {
			s := onFailure("[ -e once ] && echo up && exit 1; touch once; trap 'exit 1' USR1; echo up; sleep 685 & wait", 1)
			stream := m.start1(t, s)
			until(t, stream, "up\n")
			if err := m.Signal(t.Context(), s.ID, "USR1", false); err != nil {
				t.Fatal(err)
			}
			if got, _ := collect(t, stream, 3); got != "up\n" {
				t.Errorf("got %q", got)
			}
		})
		t.Run("the timeout covers all tries", func(t *testing.T) {
			for _, command := range []string{"echo x; sleep 0.05; exit 1", `(trap "" TERM; setsid sleep 691) & sleep 0.1; exit 1`, "exit 1"} {
				s := onFailure(command, 100)
				s.Timeout = 600 * time.Millisecond
				start := time.Now()
				r := m.run(t, s)
				if d := time.Since(start); !r.Exit.TimedOut || d > promptly || d < 500*time.Millisecond {
					t.Errorf("%q: %+v after %s", command, r.Exit, d)
				}
			}
			eventually(t, "nothing is left", func() bool { return m.living(t) == "" })
		})
	})
}

func TestNoTimeout(t *testing.T) {
	m := startAgent(t, options{})
	s := shell("sleep 0.3; echo done")
	s.Timeout = dayfly.NoTimeout
	if r := m.run(t, s); out(r.Stdout) != "done\n" || r.Exit.TimedOut {
		t.Errorf("%+v", r.Exit)
	}
}

func TestNames(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		named := func(command, name string) dayfly.ProcessSpec {
			s := shell(command)
			s.Name = name
			return s
		}
		first := named("read x", "web.1_A-b")
		first.OpenStdin = true
		stream := m.start1(t, first)
		_, err := m.Run(t.Context(), named("true", first.Name), nil)
		wantCode(t, err, dayfly.CodeConflict)
		if !strings.Contains(fmt.Sprint(err), first.ID) {
			t.Errorf("%v does not name the process that has it", err)
		}
		m.run(t, named("true", "other"))
		if p, err := m.Process(t.Context(), first.ID); err != nil || p.Name != first.Name {
			t.Errorf("the record has the name %q, %v", p.Name, err)
		}
		m.typeIn(t, first.ID, "\n", true)
		collect(t, stream, 0)
		for range 50 {
			m.run(t, named("true", first.Name)) // free as soon as the end is known
		}
		bad := named("true", first.Name)
		bad.Cwd = "/nope"
		_, err = m.Run(t.Context(), bad, nil)
		wantCode(t, err, dayfly.CodeInvalid)
		m.run(t, named("true", first.Name))
		for _, name := range []string{"a b", "ü", "a/b", strings.Repeat("x", 64), "a\x00"} {
			_, err := m.Run(t.Context(), named("true", name), nil)
			wantCode(t, err, dayfly.CodeInvalid)
		}
	})
}

func TestUsage(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		s := shell(`python3 -c "
import time
x=bytearray(64<<20)
s=0
for i in range(3*10**6): s+=i
print('ready', flush=True)
time.sleep(1000)" & sleep 701 & wait`)
		s.Follow = true
		stream := m.start1(t, s)
		until(t, stream, "ready")
		all, err := m.Processes(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		p := all[0]
		if p.Processes != 3 || p.MemoryBytes < 64<<20 || p.CPU < 50*time.Millisecond || p.PID == 0 {
			t.Errorf("%+v", p)
		}
		if err := m.Signal(t.Context(), s.ID, "KILL", true); err != nil {
			t.Fatal(err)
		}
		collect(t, stream, 6)
		after, err := m.Process(t.Context(), s.ID)
		if err != nil || after.Processes != 0 || after.MemoryBytes != 0 {
			t.Errorf("after the end: %+v, %v", after, err)
		}
		if m.cgroup != "" && after.CPU < p.CPU {
			t.Errorf("the CPU time fell from %s to %s", p.CPU, after.CPU)
		}
		short := shell(`python3 -c "
s=0
for i in range(3*10**6): s+=i"`)
		m.run(t, short)
		if p, err := m.Process(t.Context(), short.ID); err != nil || p.CPU < 20*time.Millisecond {
			t.Errorf("a finished command used %s, %v", p.CPU, err)
		}
	})
}

func TestRestartLeavesNothing(t *testing.T) {
	m := startAgent(t, options{cgroup: os.Getuid() == 0})
	for range 5 {
		m.run(t, onFailure("exit 1", 1))
	}
	if m.cgroup == "" {
		t.Skip("needs root for cgroups")
	}
	eventually(t, "no leaf cgroup is left", func() bool {
		leaves, _ := filepath.Glob(m.cgroup + "/x-*")
		return len(leaves) == 0
	})
}

// TestSignalsBetweenTries: whenever the signal comes, in a try, between two or while one begins, it is the end.
func TestSignalsBetweenTries(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, m *machine) {
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				s := onFailure("sleep 0.01; exit 1", dayfly.RestartsMax)
				if _, _, err := m.Start(t.Context(), s, nil); err != nil {
					t.Error(err)
					return
				}
				m.run(t, shell(fmt.Sprintf("sleep %d.%02d", 0, i)))
				name, tree := "TERM", i%2 == 0
				if i%4 == 0 {
					name = "KILL"
				}
				if err := m.Signal(t.Context(), s.ID, name, tree); err != nil {
					t.Error(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), testLimit)
				defer cancel()
				if _, err := m.Result(ctx, s.ID); err != nil {
					t.Errorf("after %s: %v", name, err)
				}
			})
		}
		all.Wait()
		eventually(t, "all have ended and left nothing", func() bool { // a child may be dying when its parent is dead
			records, err := m.Processes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return !slices.ContainsFunc(records, func(p dayfly.Process) bool { return p.Status != dayfly.ProcessExited || p.Processes != 0 })
		})
	})
}
