package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"dayfly.dev/dayfly/test/console"
)

// typist starts the command line on a terminal, against s.
func (s *testServer) typist(t *testing.T, args ...string) *console.Console {
	t.Helper()
	console.Need(t)
	c := newCommand(t, context.Background(), t.TempDir(), append(s.env(), "TERM=xterm-kitty"), args...)
	return console.Start(t, c.Cmd, 100, 30)
}

// made makes a sandbox.
func (s *testServer) made(t *testing.T) string {
	t.Helper()
	code, id, stderr := s.dayfly(t, "", "create")
	if code != 0 {
		t.Fatal(stderr)
	}
	return strings.TrimSpace(id)
}

func (s *testServer) background(t *testing.T, n int) *background {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.started[fmt.Sprintf("pr%020d", n)]
	if p == nil {
		t.Fatalf("process %d was not started", n)
	}
	return p
}

// plainShell is a shell that draws nothing of its own but "$ ".
var plainShell = []string{"--", "bash", "--norc", "--noprofile"}

func TestTerminal(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.typist(t, append([]string{"exec", "-it", s.made(t)}, plainShell...)...)
	c.Expect("$ ")
	if !c.Raw() {
		t.Error("the terminal is not raw")
	}
	c.Type("stty size; echo $TERM; tty >/dev/null && echo is a tty\r")
	c.Expect("\r30 100\r\n")
	c.Expect("xterm-256color") // a kind that a sandbox may not know becomes one that it knows
	c.Expect("is a tty\r\n")
	c.Resize(132, 43)
	c.Type("until [ \"$(stty size)\" = '43 132' ]; do sleep 0.1; done; echo resiz''ed\r")
	c.Expect("resized")
	c.Type("sh -c 'echo slee\"\"ping; exec sleep 1000'\r") // which prints once it is in the foreground
	c.Expect("sleeping")
	c.Type("\x03") // to the command
	c.Expect("$ ")
	c.Type("exit 7\r")
	if code := c.Wait(); code != 7 {
		t.Errorf("exit %d, want 7", code)
	}
	c.Restored()
	if got := s.signals(); len(got) > 0 {
		t.Errorf("Ctrl-C became signals %v", got)
	}
}

func TestTerminalSh(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.typist(t, "sh", s.made(t), "--env", "WHO=me", "--name", "main")
	c.Type("echo $WHO-$0-`shopt -q login_shell && echo login`; exit 3\r")
	c.Expect("me-bash-login\r\n")
	if code := c.Wait(); code != 3 {
		t.Errorf("exit %d, want 3", code)
	}
	c.Restored()
}

// TestTerminalBytes: pasted bytes arrive unchanged, and 50,000 lines whole.
func TestTerminalBytes(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	id := s.made(t)
	paste := "\x1b[200~line one\r\n\x03\x04\x1a\xff\xc3\xa9\x1b[201~"
	c := s.typist(t, "exec", "-it", id, "--", "sh", "-c", fmt.Sprintf("stty raw -echo; echo ready; head -c %d | od -An -v -tx1 | tr -d ' \\n'; echo; stty sane; seq 50000; exit 0", len(paste)))
	c.Expect("ready")
	c.Type(paste)
	c.Expect(fmt.Sprintf("%x", paste))
	c.Expect("\n50000\r\n")
	if code := c.Wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
	_, numbers, _ := strings.Cut(c.Screen(), fmt.Sprintf("%x", paste))
	if n := len(strings.Fields(numbers)); n != 50000 {
		t.Errorf("%d lines came, want 50000", n)
	}
	c.Restored()
}

// TestDetach: the keys leave, the command goes on, attach comes back, and what is typed of the keys alone is passed on.
func TestDetach(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	id := s.made(t)
	c := s.typist(t, append([]string{"exec", "-it", "--name", "main", id}, plainShell...)...)
	c.Expect("$ ")
	c.Type("printf '\\033[?1049h\\033[?2004h\\033[?25lfu%s' ll; read x; echo \"got $x\"\r")
	c.Expect("full")
	c.Type("\x10") // the first key alone is the command's
	c.Type("a\r")
	c.Expect("got \x10a")
	c.Type("\x10\x11")
	if code := c.Wait(); code != 0 {
		t.Errorf("detached with exit %d", code)
	}
	c.Restored()
	screen := c.Screen()
	if !strings.Contains(screen, "dayfly attach "+id+" pr00000000000000000001") {
		t.Errorf("it does not tell how to come back: %q", screen)
	}
	_, after, _ := strings.Cut(screen, "got \x10a")
	for _, undo := range []string{"\x1b[?25h", "\x1b[?2004l", "\x1b[?1049l", "\x1b[0m"} {
		if !strings.Contains(after, undo) {
			t.Errorf("what the command switched on is still on: %q", screen)
		}
	}

	again := s.typist(t, "attach", id, "main")
	again.Expect("got \x10a") // what was there before
	again.Type("echo $((6*7)); exit 5\r")
	again.Expect("42")
	if code := again.Wait(); code != 5 {
		t.Errorf("exit %d, want 5", code)
	}
	again.Restored()

	other := s.typist(t, append([]string{"exec", "-it", "--detach-keys", "ctrl-a,d", id}, plainShell...)...)
	other.Expect("$ ")
	other.Type("\x10\x11echo still''here\r")
	other.Expect("stillhere")
	other.Type("\x01d")
	if code := other.Wait(); code != 0 {
		t.Errorf("detached with exit %d", code)
	}
}

// TestTerminalRestored: whatever ends the session, the terminal is the user's again, and one line tells why.
func TestTerminalRestored(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(t *testing.T, s *testServer, c *console.Console, id string)
		code int
		says string
	}{
		{"SIGTERM", func(t *testing.T, s *testServer, c *console.Console, id string) { c.Signal(syscall.SIGTERM) }, 143, ""},
		{"SIGHUP", func(t *testing.T, s *testServer, c *console.Console, id string) { c.Signal(syscall.SIGHUP) }, 129, ""},
		{"SIGINT", func(t *testing.T, s *testServer, c *console.Console, id string) { c.Signal(syscall.SIGINT) }, 130, "dayfly attach"},
		{"SIGQUIT", func(t *testing.T, s *testServer, c *console.Console, id string) { c.Signal(syscall.SIGQUIT) }, 131, ""},
		{"the sandbox is deleted", func(t *testing.T, s *testServer, c *console.Console, id string) {
			if code, _, stderr := s.dayfly(t, "", "rm", id); code != 0 {
				t.Error(stderr)
			}
		}, 125, "dayfly: the sandbox has ended\r\n"},
		{"the server is gone", func(t *testing.T, s *testServer, c *console.Console, id string) {
			_ = s.Listener.Close()
			s.background(t, 1).cut()
			c.Expect("the connection is lost and being taken up again")
			if !c.Raw() {
				t.Error("the terminal is no longer raw while the connection is taken up again")
			}
		}, 125, "hint: the command may still run: come back with dayfly attach "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			id := s.made(t)
			c := s.typist(t, append([]string{"exec", "-it", id}, "--", "sh", "-c", "trap '' INT; printf '\\033[?1049h\\033[?1000h'; echo up; exec sleep 1000")...)
			c.Expect("up")
			tt.end(t, s, c, id)
			if code := c.Wait(); code != tt.code {
				t.Errorf("exit %d, want %d", code, tt.code)
			}
			c.Restored()
			if screen := c.Screen(); !strings.Contains(screen, "\x1b[?1000l\x1b[?1049l\x1b[0m") || !strings.Contains(screen, tt.says) {
				t.Errorf("the screen is %q", screen)
			}
		})
	}
}

// TestTerminalRestoredAtOnce: a second signal ends a session that still waits for an answer, and the terminal is restored all the same.
func TestTerminalRestoredAtOnce(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.hold = make(chan struct{})
	t.Cleanup(func() { close(s.hold) }) // before the server is closed
	c := s.typist(t, append([]string{"exec", "-it", s.made(t)}, "--", "sh", "-c", "printf '\\033[?1049h'; echo up; exec sleep 1000")...)
	c.Expect("up")
	c.Signal(syscall.SIGTERM)
	for deadline := time.Now().Add(wait); len(s.signals()) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the signal was not passed on")
		}
		time.Sleep(time.Millisecond) // no event tells what a server was asked
	}
	c.Signal(syscall.SIGTERM)
	if code := c.Wait(); code != 143 {
		t.Errorf("exit %d, want 143", code)
	}
	c.Restored()
	if !strings.Contains(c.Screen(), "\x1b[?1049l") {
		t.Errorf("the screen is %q", c.Screen())
	}
}

// TestContinue: a session that was stopped takes the terminal again as its shell left it.
func TestContinue(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.typist(t, append([]string{"exec", "-it", s.made(t)}, plainShell...)...)
	c.Expect("$ ")
	c.Cook() // as a shell does
	if c.Raw() {
		t.Fatal("the terminal is still raw")
	}
	c.Signal(syscall.SIGCONT)
	for deadline := time.Now().Add(wait); !c.Raw(); {
		if time.Now().After(deadline) {
			t.Fatal("the terminal does not become raw again")
		}
		time.Sleep(time.Millisecond) // no event tells of a terminal's modes
	}
	c.Type("exit 8\r")
	if code := c.Wait(); code != 8 {
		t.Errorf("exit %d, want 8", code)
	}
	c.Restored()
}

// TestWindowCloses: a closed window hangs the command up.
func TestWindowCloses(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.typist(t, append([]string{"exec", "-it", s.made(t)}, plainShell...)...)
	c.Expect("$ ")
	c.HangUp()
	c.Wait()
	const most = 5 // one, and one for each half second of the two that it waits
	if got := s.signals(); len(got) == 0 || len(got) > most || slices.ContainsFunc(got, func(name string) bool { return name != "HUP" }) {
		t.Errorf("signals %v, want HUP, and again while the command goes on", got)
	}
}

// TestReconnect: a connection that breaks is taken up again; nothing is shown twice, nothing is missing, the size is kept.
func TestReconnect(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.typist(t, "exec", "-it", s.made(t), "--", "sh", "-c", "for i in $(seq 1 300); do echo line-$i-; sleep 0.01; done; stty size; exit 4")
	c.Expect("line-50-")
	s.background(t, 1).cut()
	c.Expect("connected again")
	c.Expect("30 100")
	if code := c.Wait(); code != 4 {
		t.Errorf("exit %d, want 4", code)
	}
	for i := 1; i <= 300; i++ {
		if n := strings.Count(c.Screen(), fmt.Sprintf("line-%d-", i)); n != 1 {
			t.Fatalf("line %d came %d times", i, n)
		}
	}
	c.Restored()
}

// TestResizeStorm: the last size wins, whatever came before.
func TestResizeStorm(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.typist(t, append([]string{"exec", "-it", s.made(t)}, plainShell...)...)
	c.Expect("$ ")
	for i := range 500 {
		c.Resize(40+i%100, 10+i%50)
	}
	c.Resize(77, 33)
	c.Type("until [ \"$(stty size)\" = '33 77' ]; do sleep 0.1; done; exit 6\r")
	if code := c.Wait(); code != 6 {
		t.Errorf("exit %d, want 6", code)
	}
	c.Restored()
}

// TestWithoutATerminal: what needs one says so, what does not works.
func TestWithoutATerminal(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	id := s.made(t)
	for _, tt := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{"exec -t", []string{"exec", "-it", id, "--", "true"}, 125, "", "-t wants a terminal, and standard input is none"},
		{"sh", []string{"sh", id}, 125, "", "-t wants a terminal"},
		{"exec -i", []string{"exec", "-i", id, "--", "cat"}, 0, "in", ""},
		{"no key", []string{"exec", "-it", "--detach-keys", "ctrl-é", id, "--", "true"}, 125, "", "is no key"},
		{"name without background", []string{"exec", "--name", "x", id, "--", "true"}, 125, "", "add -d or -t"},
		{"restart without background", []string{"exec", "--restart", "on-failure", id, "--", "true"}, 125, "", "add -d"},
		{"-d and -i", []string{"exec", "-d", "-i", id, "--", "true"}, 125, "", "leave one of them out"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := s.dayfly(t, "in", tt.args...)
			if code != tt.code || stdout != tt.stdout || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
			}
		})
	}
}

// TestCopyShowsProgress: on a terminal one line tells bytes, rate and what is left; nothing does so with --quiet or through a pipe.
func TestCopyShowsProgress(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.slow = 4 << 20
	id := s.made(t)
	file := filepath.Join(t.TempDir(), "a file")
	if err := os.WriteFile(file, bytes.Repeat([]byte("x"), 6<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	c := s.typist(t, "cp", file, id+":big one")
	if code := c.Wait(); code != 0 {
		t.Errorf("exit %d: %s", code, c.Screen())
	}
	if screen := c.Screen(); !regexp.MustCompile(`\d+% .*\([\d.]+/6\.0 MiB, [\d.]+ [MK]iB/s\) \[`).MatchString(screen) || !strings.HasSuffix(screen, "\n") {
		t.Errorf("the screen is %q", screen)
	}
	c = s.typist(t, "cp", "--quiet", id+":big one", file)
	if code := c.Wait(); code != 0 || c.Screen() != "" {
		t.Errorf("exit %d, the screen is %q", code, c.Screen())
	}
	if code, _, stderr := s.dayfly(t, "", "cp", id+":big one", file); code != 0 || stderr != "" {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
}
