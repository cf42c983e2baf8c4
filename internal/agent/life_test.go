package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agent"
)

func TestOwnClock(t *testing.T) {
	write := func(grant, s string) {
		if err := os.WriteFile(grant+".new", []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(grant+".new", grant); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name, grant string
		age         time.Duration // of the lease at the start, or 0: as old as the agent
		want        time.Duration // from the start to the end
	}{
		{"ends two seconds late", "1", 0, 3 * time.Second},
		{"a grown grant counts", "3\n", 0, 5 * time.Second},
		{"a hostile grant does not", "99999999999999999999", 0, 3 * time.Second},
		{"a missing grant does not", "", 0, 3 * time.Second},
		{"a start that took long counts", "9", 8 * time.Second, 3 * time.Second},
		{"nobody makes it younger", "1", -time.Hour, 3 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			grant := filepath.Join(t.TempDir(), "grant")
			write(grant, "1")
			start := time.Now()
			m := startAgent(t, options{config: agent.Config{Granted: time.Second, GrantFile: grant}})
			stream, p, err := m.Start(t.Context(), shell("setsid sleep 1000 & echo $!; sleep 1000"), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			o, err := stream.Next()
			if err != nil {
				t.Fatal(err)
			}
			child, _ := strconv.Atoi(strings.TrimSpace(string(o.Data)))
			if write(grant, tt.grant); tt.grant == "" {
				_ = os.Remove(grant)
			}
			if tt.age != 0 {
				m.connectSince(t, tt.age)
			}
			select {
			case <-m.exited:
			case <-time.After(testLimit):
				t.Fatal("the agent lives on")
			}
			if d := time.Since(start); d < tt.want-100*time.Millisecond || d > tt.want+promptly {
				t.Errorf("it ended after %s, want %s", d, tt.want)
			}
			for _, pid := range []int{p.PID, child} {
				if unix.Kill(pid, 0) == nil {
					t.Errorf("process %d outlived the agent", pid)
				}
			}
		})
	}
}

func TestNoZombies(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				for range 20 {
					m.run(t, shell("(sleep 0.2 &) ; exit"))
				}
			})
		}
		all.Wait()
		eventually(t, "bug 93: no zombie and no child is left", func() bool {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", m.cmd.Process.Pid, m.cmd.Process.Pid))
			return err == nil && allChildren(m.cmd.Process.Pid) == 0 && len(b) == 0
		})
		if m.cgroup != "" {
			eventually(t, "bug 105: no leaf cgroup is left", func() bool {
				leaves, _ := filepath.Glob(m.cgroup + "/x-*")
				return len(leaves) == 0
			})
		}
	})
}

// allChildren counts the children of every thread of a process.
func allChildren(pid int) int {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	n := 0
	for _, f := range files {
		b, _ := os.ReadFile(f)
		n += len(strings.Fields(string(b)))
	}
	return n
}

func TestNothingGrows(t *testing.T) {
	m := startAgent(t, options{cgroup: os.Getuid() == 0, config: agent.Config{MemoryBytes: 128 << 20}})
	pid := m.cmd.Process.Pid
	fds := func() int {
		names, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		return len(names)
	}
	threads := func() int {
		names, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		return len(names)
	}
	round := func() {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 25 {
					m.run(t, shell("head -c 100000 /dev/zero"))
					_, _ = m.Run(t.Context(), argv("nosuch"), nil)
					ctx, cancel := context.WithCancel(t.Context())
					time.AfterFunc(time.Millisecond, cancel)
					_, _ = m.Run(ctx, shell("sleep 0.01"), nil)
				}
			})
		}
		all.Wait()
	}
	first := shell("echo first")
	m.run(t, first)
	round()
	beforeFDs, beforeThreads := fds(), threads()
	var rss int64
	for range 3 {
		round()
		rss = max(rss, rssBytes(t, pid))
	}
	if rss > 48<<20 { // 8 MiB of output, the commands at work, and what the collector has not yet freed
		t.Errorf("bug 109: the agent has %d bytes", rss)
	}
	eventually(t, "bug 111: descriptors are back", func() bool { return fds() <= beforeFDs+2 })
	if n := threads(); n > beforeThreads {
		t.Errorf("bug 111: %d threads, before %d", n, beforeThreads)
	}
	_, err := m.Result(t.Context(), first.ID)
	wantCode(t, err, dayfly.CodeGone)
	_, err = m.Process(t.Context(), dayfly.NewID(dayfly.PrefixProcess))
	wantCode(t, err, dayfly.CodeNotFound)
	all, err := m.Processes(t.Context())
	if err != nil || len(all) > 1100 {
		t.Errorf("%d records, %v", len(all), err)
	}
	eventually(t, "the memory is given back", func() bool { return rssBytes(t, pid) < 24<<20 })
	t.Logf("most %d KiB, then %d KiB", rss>>10, rssBytes(t, pid)>>10)
}

// pidsCgroup limits a process and its children in number, on hosts with cgroup v1.
func pidsCgroup(t *testing.T, pid, limit int) {
	needRoot(t)
	dir, err := os.MkdirTemp("/sys/fs/cgroup/pids", "dayfly-agent-test-")
	if err != nil {
		t.Skip("no pids controller of cgroup v1: ", err)
	}
	t.Cleanup(func() {
		eventually(t, "the pids cgroup is removed", func() bool { return os.Remove(dir) == nil })
	})
	for file, value := range map[string]int{"pids.max": limit, "cgroup.procs": pid} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(value)), 0); err != nil {
			t.Fatal(err)
		}
	}
}

func TestProcessLimit(t *testing.T) {
	m := startAgent(t, options{cgroup: true, confine: func(pid int) { pidsCgroup(t, pid, 60) }})
	bomb := shell(`python3 -c "
import os,time
while 1:
  try: os.fork()
  except OSError: time.sleep(0.05)"`)
	stream, _, err := m.Start(t.Context(), bomb, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	eventually(t, "bug 38: a command fails at the limit", func() bool {
		r := m.run(t, argv("true"))
		return r.Exit.Code == 126 && strings.Contains(out(r.Stderr), "fork: ")
	})
	m.write(t, "still", []byte("works"))
	if string(m.read(t, "still")) != "works" {
		t.Error("files do not work at the limit")
	}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { _ = m.Ping(t.Context()); m.run(t, argv("true")) })
	}
	all.Wait()
	if err := m.Signal(t.Context(), bomb.ID, "KILL", true); err != nil {
		t.Fatal(err)
	}
	if r := m.run(t, shell("echo ok")); out(r.Stdout) != "ok\n" {
		t.Errorf("after the kill: %q %q", out(r.Stdout), out(r.Stderr))
	}
}

func TestOutOfMemory(t *testing.T) {
	needRoot(t)
	dir, err := os.MkdirTemp("/sys/fs/cgroup/memory", "dayfly-agent-test-")
	if err != nil {
		t.Skip("no memory controller of cgroup v1: ", err)
	}
	t.Cleanup(func() { eventually(t, "the memory cgroup is removed", func() bool { return os.Remove(dir) == nil }) })
	put := func(file string, value int) {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(value)), 0); err != nil {
			t.Fatal(err)
		}
	}
	put("memory.limit_in_bytes", 128<<20)
	events, err := os.Open(filepath.Join(dir, "memory.oom_control"))
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	m := startAgent(t, options{cgroup: true, oomEvents: events, confine: func(pid int) { put("cgroup.procs", pid) }})
	for _, command := range []string{`python3 -c "x=bytearray(10**9)"`, `python3 -c "x=bytearray(10**9)"; exit $?`} {
		r := m.run(t, shell(command))
		if r.Exit.Code != 137 || !r.Exit.OOMKilled {
			t.Errorf("bug 24: %q: %+v", command, r.Exit)
		}
	}
	if r := m.run(t, shell("kill -9 $$")); r.Exit.OOMKilled {
		t.Error("a plain KILL counts as lack of memory")
	}
	const hungry = `python3 -c "x=bytearray(10**9)"`
	for name, command := range map[string]string{
		"the shell goes on":       hungry + "; exit 0",
		"another code":            hungry + "; exit 3",
		"in its own session":      "setsid -w " + hungry + "; exit 0",
		"in the background":       "(" + hungry + " &) ; while pgrep -f 'bytearray.10..9' | grep -qvx $$; do sleep 0.01; done",
		"through another program": `python3 -c "import subprocess; subprocess.run(['python3','-c','x=bytearray(10**9)'])"`,
	} {
		if r := m.run(t, shell(command)); !r.Exit.OOMKilled {
			t.Errorf("bug 24: %s: it is not said: %+v", name, r.Exit)
		}
	}
	if r := m.run(t, shell("exit 0")); r.Exit.OOMKilled {
		t.Error("a later command is said to be killed")
	}
	t.Run("an innocent command beside it", func(t *testing.T) {
		beside := shell("read x; exit 0")
		beside.OpenStdin = true
		stream := m.start1(t, beside)
		asked := shell("echo up; sleep 100")
		asked.Follow = true
		killed := m.start1(t, asked)
		until(t, killed, "up")
		if r := m.run(t, shell(hungry)); r.Exit.Code != 137 || !r.Exit.OOMKilled {
			t.Errorf("bug 24: %+v", r.Exit)
		}
		if err := m.Signal(t.Context(), asked.ID, "KILL", true); err != nil {
			t.Fatal(err)
		}
		if _, exit := collect(t, killed, 3); exit.OOMKilled || exit.Code != 137 {
			t.Errorf("one that was killed on request: %+v", exit)
		}
		m.typeIn(t, beside.ID, "\n", true)
		if _, exit := collect(t, stream, 0); exit.OOMKilled || exit.Code != 0 {
			t.Errorf("one that nothing happened to: %+v", exit)
		}
	})
	if r := m.run(t, shell("echo ok")); out(r.Stdout) != "ok\n" {
		t.Errorf("bug 24: after it: %+v", r)
	}
}

func TestSeveralConnections(t *testing.T) {
	m := startAgent(t, options{})
	other := m.connect(t)
	s := shell("read x; echo got $x")
	s.OpenStdin = true
	stream, p, err := m.Start(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if err := other.WriteStdin(t.Context(), p.ID, strings.NewReader("it\n"), true); err != nil {
		t.Fatal(err)
	}
	if got, _ := collect(t, stream, 0); got != "got it\n" {
		t.Errorf("got %q", got)
	}
}
