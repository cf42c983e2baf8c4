package agent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agentwire"
)

func argv(args ...string) dayfly.ProcessSpec {
	return dayfly.ProcessSpec{ID: dayfly.NewID(dayfly.PrefixProcess), Argv: args}
}

func TestProgramsThatCannotRun(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		m.run(t, shell(`printf '#!/nope/sh\n' > badsh; printf 'echo plain' > plain; printf '\177ELF\0\1' > bin; printf x > noexec; chmod +x badsh plain bin; mkdir dir`))
		for _, tt := range []struct {
			name, program, text string
			code                int
		}{
			{"bug 82: missing", "nosuchprog", "command not found", 127},
			{"bug 82: missing path", "./nosuch", "No such file", 127},
			{"bug 82: no execute bit", "./noexec", "Permission denied", 126},
			{"bug 82: bad interpreter", "./badsh", "bad interpreter", 127},
			{"bug 82: directory", "./dir", "Is a directory", 126},
			{"binary of nothing", "./bin", "Exec format error", 126},
			{"script without interpreter", "./plain", "", 0},
		} {
			t.Run(tt.name, func(t *testing.T) {
				r := m.run(t, argv(tt.program))
				if r.Exit.Code != tt.code || !strings.Contains(out(r.Stderr), tt.text) {
					t.Errorf("code %d, stderr %q", r.Exit.Code, out(r.Stderr))
				}
			})
		}
	})
}

func TestBadRequests(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		m.run(t, shell("touch file; mkdir -m 0 closed"))
		for _, tt := range []struct {
			name string
			edit func(*dayfly.ProcessSpec)
			text string
		}{
			{"bug 83: cwd missing", func(s *dayfly.ProcessSpec) { s.Cwd = "/nope" }, "cwd"},
			{"bug 83: cwd is a file", func(s *dayfly.ProcessSpec) { s.Cwd = "file" }, "cwd"},
			{"cwd through a magic link", func(s *dayfly.ProcessSpec) { s.Cwd = "/proc/self/root/tmp" }, "cwd"},
			{"cwd with NUL", func(s *dayfly.ProcessSpec) { s.Cwd = "a\x00b" }, "cwd"},
			{"bug 84: empty name", func(s *dayfly.ProcessSpec) { s.Env = map[string]string{"": "x"} }, "env"},
			{"bug 84: name with =", func(s *dayfly.ProcessSpec) { s.Env = map[string]string{"A=B": "x"} }, "env"},
			{"bug 84: NUL", func(s *dayfly.ProcessSpec) { s.Env = map[string]string{"A": "x\x00"} }, "env"},
			{"no command", func(s *dayfly.ProcessSpec) { s.Command = "" }, "command"},
			{"both", func(s *dayfly.ProcessSpec) { s.Argv = []string{"a"} }, "both"},
			{"bad id", func(s *dayfly.ProcessSpec) { s.ID = "pr../x" }, "id"},
			{"unknown user", func(s *dayfly.ProcessSpec) { s.User = "nobody-here" }, "user"},
			{"negative timeout", func(s *dayfly.ProcessSpec) { s.Timeout = -2 }, "timeout"},
			{"bug 87: one argument too long", func(s *dayfly.ProcessSpec) { s.Command, s.Argv = "", []string{"true", strings.Repeat("x", 200<<10)} }, "131071"},
			{"bug 87: 3 MiB of environment", func(s *dayfly.ProcessSpec) {
				s.Env = make(map[string]string)
				for i := range 30 {
					s.Env["V"+strconv.Itoa(i)] = strings.Repeat("x", 100<<10)
				}
			}, "2 MiB"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				s := shell("echo no")
				tt.edit(&s)
				_, err := m.Run(t.Context(), s, nil)
				wantCode(t, err, dayfly.CodeInvalid)
				if !strings.Contains(fmt.Sprint(err), tt.text) {
					t.Errorf("%v does not name %q", err, tt.text)
				}
				if _, err := m.Process(t.Context(), s.ID); dayfly.ErrorCode(err) != dayfly.CodeNotFound {
					t.Errorf("a refused command left a record: %v", err)
				}
			})
		}
	})
}

func TestEnvironment(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		s := argv("env", "-0")
		weird := "a'b\"c\n{\"k\":1}\n$(touch /tmp/p)\xff"
		s.Env = map[string]string{"A": weird, "EMPTY": "", "E": "a=b", "X;touch q": "1"}
		got := make(map[string]string)
		for pair := range strings.SplitSeq(strings.TrimSuffix(out(m.run(t, s).Stdout), "\x00"), "\x00") {
			name, value, _ := strings.Cut(pair, "=")
			got[name] = value
		}
		want := map[string]string{
			"A": weird, "EMPTY": "", "E": "a=b", "X;touch q": "1", "HOME": m.home, "USER": "tester", "LOGNAME": "tester",
			"LANG": "C.UTF-8", "TERM": "dumb", "PWD": m.home, "PATH": m.home + "/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		}
		for name, value := range want {
			if got[name] != value {
				t.Errorf("bug 84: %s = %q, want %q", name, got[name], value)
			}
		}
		if len(got) != len(want) {
			t.Errorf("environment is %q", got)
		}
		if next := out(m.run(t, shell("echo -n $A")).Stdout); next != "" {
			t.Errorf("bug 84: the environment leaked into the next command: %q", next)
		}
	})
}

func TestWhatCommandsSee(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		for _, tt := range []struct{ name, command, want string }{
			{"only three descriptors", "ls /proc/$$/fd; :", "0\n1\n2\n"},
			{"own session", `ps -o sid= -p $$ | tr -d ' '; echo $$`, ""},
			{"bug 96: no terminal", "(read x </dev/tty) 2>/dev/null || echo none", "none\n"},
			{"bug 97: UTF-8", `python3 -c "print('█')"`, "█\n"},
			{"null is stdin", "readlink /proc/self/fd/0", "/dev/null\n"},
			{"umask", "umask", "0022\n"},
			{"cwd", "mkdir -p a/b && cd a/b && pwd", ""},
			{"stderr by name", "echo x > /dev/stderr; echo y > /dev/stdout", "y\n"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				got := out(m.run(t, shell(tt.command)).Stdout)
				switch tt.name {
				case "own session":
					if f := strings.Fields(got); len(f) != 2 || f[0] != f[1] {
						t.Errorf("session and pid are %q", got)
					}
				case "cwd":
					if got != m.home+"/a/b\n" {
						t.Errorf("pwd = %q", got)
					}
				default:
					if got != tt.want {
						t.Errorf("got %q, want %q", got, tt.want)
					}
				}
			})
		}
		score, _ := strconv.Atoi(strings.TrimSpace(out(m.run(t, shell("cat /proc/self/oom_score_adj")).Stdout)))
		if score < 500 {
			t.Errorf("a command's oom_score_adj is %d", score)
		}
		own, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", m.cmd.Process.Pid))
		if mine, _ := os.ReadFile("/proc/self/oom_score_adj"); err != nil || !bytes.Equal(own, mine) {
			t.Errorf("the agent's oom_score_adj is %q, not %q", own, mine)
		}
	})
}

func TestLongCommands(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		pad := "\n# " + strings.Repeat("x", 300<<10) + "\n"
		for _, tt := range []struct{ name, command, want string }{
			{"bug 87: 300 KiB", "echo start" + pad + "echo end; ls /proc/$$/fd | wc -l", "start\nend\n3\n"},
			{"bug 87: exit", "echo a" + pad + "exit 7", "a\n"},
			{"bug 85: heredoc", "cat <<'E'\n" + "l1 $x\nl2\nE\n", "l1 $x\nl2\n"},
			{"bug 85: loop and comment", "for i in 1 2; do\n echo $i \\\n x\ndone # end", "1 x\n2 x\n"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				r := m.run(t, shell(tt.command))
				if out(r.Stdout) != tt.want {
					t.Errorf("got %q, stderr %.200q", out(r.Stdout), out(r.Stderr))
				}
				if strings.HasSuffix(tt.name, "exit") && r.Exit.Code != 7 {
					t.Errorf("code %d", r.Exit.Code)
				}
			})
		}
		r := m.run(t, shell("echo 'unbalanced"))
		if r.Exit.Code == 0 || !strings.Contains(out(r.Stderr), "unexpected EOF") {
			t.Errorf("bug 85: unbalanced quote: code %d, stderr %q", r.Exit.Code, out(r.Stderr))
		}
	})
}

func TestOutputIsExact(t *testing.T) {
	m := startAgent(t, options{cgroup: os.Getuid() == 0})
	t.Run("bug 14: not UTF-8", func(t *testing.T) {
		r := m.run(t, shell(`printf 'a\377\376b'; exit 3`))
		if out(r.Stdout) != "a\xff\xfeb" || r.Exit.Code != 3 {
			t.Errorf("got %q, %d", out(r.Stdout), r.Exit.Code)
		}
	})
	t.Run("bug 13: many characters of several bytes", func(t *testing.T) {
		if got := out(m.run(t, shell(`python3 -c "print('☕'*100000, end='')"`)).Stdout); got != strings.Repeat("☕", 100000) {
			t.Errorf("%d bytes", len(got))
		}
	})
	t.Run("bug 40: the last bytes arrive", func(t *testing.T) {
		for range 200 {
			if got := out(m.run(t, argv("printf", "late")).Stdout); got != "late" {
				t.Fatalf("got %q", got)
			}
		}
		for range 10 {
			s := shell("seq 1 100000; printf END")
			s.Follow = true
			if got, exit := follow(t, m.Client, s); !strings.HasSuffix(got, "100000\nEND") || int64(len(got)) != exit.StdoutBytes {
				t.Fatalf("%d bytes, exit says %d", len(got), exit.StdoutBytes)
			}
		}
	})
	t.Run("bug 15: head and tail of much output", func(t *testing.T) {
		const n = 64 << 20
		r := m.run(t, shell(fmt.Sprintf("printf HEAD; head -c %d /dev/zero; printf TAIL; echo err >&2", n)))
		c := r.Stdout
		if c.Bytes != n+8 || !c.Truncated() || !bytes.HasPrefix(c.Head, []byte("HEAD")) || !bytes.HasSuffix(c.Tail, []byte("TAIL")) {
			t.Errorf("%d bytes, head %d, tail %d", c.Bytes, len(c.Head), len(c.Tail))
		}
		if kept := len(c.Head) + len(c.Tail); kept != dayfly.CaptureDefaultBytes {
			t.Errorf("kept %d", kept)
		}
		if out(r.Stderr) != "err\n" {
			t.Errorf("stderr %q", out(r.Stderr))
		}
		if rss := rssBytes(t, m.cmd.Process.Pid); rss > 40<<20 {
			t.Errorf("the agent has %d bytes", rss)
		}
	})
}

func rssBytes(t testing.TB, pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

func TestStdin(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		big := bytes.Repeat([]byte("0123456789abcdef"), 2<<16)
		r, err := m.Run(t.Context(), argv("sha256sum"), bytes.NewReader(big))
		if want := fmt.Sprintf("%x  -\n", sha256.Sum256(big)); err != nil || out(r.Stdout) != want {
			t.Errorf("bug 25: %v, %q", err, out(r.Stdout))
		}
		never, w := io.Pipe()
		defer w.Close()
		if r, err = m.Run(t.Context(), shell("echo hi"), never); err != nil || out(r.Stdout) != "hi\n" {
			t.Errorf("bug 25: a command that does not read: %v", err)
		}
		s := shell("cat")
		s.OpenStdin = true
		stream, p, err := m.Start(t.Context(), s, strings.NewReader("one "))
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		if err := m.WriteStdin(t.Context(), p.ID, strings.NewReader("two"), true); err != nil {
			t.Fatal(err)
		}
		if got, _ := collect(t, stream, 0); got != "one two" && got != "twoone " {
			t.Errorf("got %q", got)
		}
		wantCode(t, m.WriteStdin(t.Context(), p.ID, strings.NewReader("x"), true), dayfly.CodeConflict)
	})
}

func TestCommandsAreIndependent(t *testing.T) {
	m := startAgent(t, options{cgroup: os.Getuid() == 0})
	stuck, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _, _ = m.Run(stuck, shell("sleep 1d"), nil) }()
	start := time.Now()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { m.run(t, shell("sleep 1")) })
	}
	all.Wait()
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("bug 26: 20 sleeps of one second took %s", d)
	}
	start = time.Now()
	for range 200 {
		all.Go(func() { m.run(t, argv("true")) })
	}
	all.Wait()
	t.Logf("200 commands at once: %s", time.Since(start))
}

func TestTimeoutIsPrompt(t *testing.T) {
	t.Parallel()
	m := startAgent(t, options{cgroup: os.Getuid() == 0})
	s := shell("sleep 100; sleep 101")
	s.Timeout = 500 * time.Millisecond
	start := time.Now()
	r := m.run(t, s)
	if d := time.Since(start); d > promptly || !r.Exit.TimedOut || r.Exit.Signal != "TERM" {
		t.Errorf("bug 27: %s, %+v", d, r.Exit)
	}
	if left := m.living(t); left != "" {
		t.Errorf("bug 27: the command went on:\n%s", left)
	}
}

func TestSignals(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		s := shell("(sleep 411 & setsid sleep 413 & wait) & echo up; wait")
		stream, p, err := m.Start(t.Context(), s, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		if _, err := stream.Next(); err != nil {
			t.Fatal(err)
		}
		for range 2 { // killing twice is harmless
			if err := m.Signal(t.Context(), p.ID, "KILL", true); err != nil {
				t.Fatal(err)
			}
			if left := m.living(t); left != "" {
				t.Errorf("bug 88: alive after the kill:\n%s", left)
			}
		}
		if r, err := m.Result(t.Context(), p.ID); err != nil || r.Exit.Code != 137 || r.Exit.Signal != "KILL" {
			t.Errorf("%+v, %v", r.Exit, err)
		}
		wantCode(t, m.Signal(t.Context(), p.ID, "NOSUCH", false), dayfly.CodeInvalid)
		wantCode(t, m.Signal(t.Context(), dayfly.NewID(dayfly.PrefixProcess), "TERM", false), dayfly.CodeNotFound)
	})
}

// TestNobodySeesItsTreeDie: a leader that only waits for its children is killed as they are, instead of ending with 0 because
// they are dead.
func TestNobodySeesItsTreeDie(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		for range 3 {
			s := shell("for i in $(seq 100); do (sleep 417; echo saw it >&2) & done; echo up; wait")
			stream, p, err := m.Start(t.Context(), s, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Next(); err != nil {
				t.Fatal(err)
			}
			if err := m.Signal(t.Context(), p.ID, "KILL", true); err != nil {
				t.Fatal(err)
			}
			_ = stream.Close()
			r, err := m.Result(t.Context(), p.ID)
			if err != nil || r.Exit.Signal != "KILL" || r.Exit.StderrBytes > 0 {
				t.Fatalf("bug 88: %+v, %q, %v", r.Exit, out(r.Stderr), err)
			}
		}
	})
}

// TestTimeoutFindsAHeadlessProcess: a process whose first thread has ended looks like a dead one, but it lives and has children.
func TestTimeoutFindsAHeadlessProcess(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	inEachMode(t, func(t *testing.T, m *machine) {
		s := shell(`trap '' TERM; setsid python3 -c '
import ctypes, subprocess, threading
threading.Thread(target=lambda: subprocess.Popen(["sleep", "419"], start_new_session=True).wait()).start()
ctypes.CDLL(None).pthread_exit(None)' >/dev/null 2>&1 & wait`)
		s.Timeout = time.Second
		if r, err := m.Run(t.Context(), s, nil); err != nil || !r.Exit.TimedOut {
			t.Errorf("%+v, %v", r.Exit, err)
		}
		if left := m.living(t); left != "" {
			t.Errorf("bug 27: alive after the timeout:\n%s", left)
		}
	})
}

func TestBackgroundChildLives(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, m *machine) {
		s := shell("(for i in $(seq 300); do echo $i; sleep 0.01; done; echo done > finished) & echo started")
		if r := m.run(t, s); out(r.Stdout) != "started\n" && out(r.Stdout) != "started\n1\n" && out(r.Stdout) != "1\nstarted\n" {
			t.Errorf("bug 2: %q", out(r.Stdout))
		}
		eventually(t, "the background child finishes", func() bool {
			_, err := os.Stat(filepath.Join(m.home, "finished"))
			return err == nil
		})
	})
}

func TestDeadAgent(t *testing.T) {
	m := startAgent(t, options{})
	ended := make(chan error, 1)
	stream, p, err := m.Start(t.Context(), shell("exec sleep 600"), nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := stream.Next()
		ended <- err
	}()
	_ = m.cmd.Process.Kill()
	defer func() { _ = unix.Kill(p.PID, unix.SIGKILL) }() // a killed agent that is not PID 1 leaves its children
	select {
	case err := <-ended:
		if !errors.Is(err, agentwire.ErrLost) {
			t.Errorf("bug 12: %v", err)
		}
	case <-time.After(testLimit):
		t.Fatal("bug 12: the stream hangs")
	}
	<-m.Done()
	_, err = m.Run(t.Context(), shell("true"), nil)
	if !errors.Is(err, agentwire.ErrLost) {
		t.Errorf("a call on a dead session: %v", err)
	}
}

func TestDuplicateID(t *testing.T) {
	m := startAgent(t, options{})
	s := shell("echo once >> count")
	m.run(t, s)
	_, err := m.Run(t.Context(), s, nil)
	wantCode(t, err, dayfly.CodeConflict)
	if got := out(m.run(t, shell("cat count")).Stdout); got != "once\n" {
		t.Errorf("it ran as %q", got)
	}
}
