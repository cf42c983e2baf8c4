package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/console"
	"dayfly.dev/dayfly/test/host"
)

// typist starts the program's command line on a terminal.
func typist(t *testing.T, s *host.Server, args ...string) *console.Console {
	t.Helper()
	console.Need(t)
	cmd := s.Cmd(context.Background(), host.Command{Args: args, Dir: t.TempDir(), Env: []string{"TERM=xterm-256color"}})
	return console.Start(t, cmd, 100, 30)
}

// endMax is how long a test waits for the end of a process that was ended.
const endMax = 30 * time.Second

// freeAddress is an address that a server can have again after its restart.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// prompted is a shell that draws nothing of its own but "$ ".
func prompted(id string, flags ...string) []string {
	return append(append([]string{"exec", "-it", "--env", "PS1=$ "}, flags...), id, "--", "bash", "--norc", "--noprofile")
}

func TestATerminalIsOneOfItsOwn(t *testing.T) {
	t.Parallel()
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	t.Run("keys, sizes, exit codes", func(t *testing.T) {
		t.Parallel()
		c := typist(t, s, prompted(b.ID)...)
		c.Expect("$ ")
		if !c.Raw() {
			t.Error("the terminal is not raw")
		}
		c.Type("stty size; echo $TERM; whoami; tty\r")
		c.Expect("30 100\r\nxterm-256color\r\nuser\r\n/dev/pts/")
		for i := range 500 { // a storm: the last size wins
			c.Resize(40+i%100, 10+i%50)
		}
		c.Resize(132, 43)
		c.Type("until [ \"$(stty size)\" = '43 132' ]; do sleep 0.1; done; echo resiz''ed\r")
		c.Expect("resized")
		c.Type("sh -c 'echo slee\"\"ping; exec sleep 1000'\r") // which prints once it is in the foreground
		c.Expect("sleeping")
		c.Type("\x03")
		c.Expect("$ ")
		c.Type("exit 7\r")
		if code := c.Wait(); code != 7 {
			t.Errorf("exit %d, want 7", code)
		}
		c.Restored()
	})
	t.Run("bug 98: pasted bytes and 50,000 lines", func(t *testing.T) {
		t.Parallel()
		paste := "\x1b[200~line one\r\n\x03\x04\x1a\x7f\xff\xc3\xa9\x1b[201~"
		c := typist(t, s, "exec", "-it", b.ID, "--", "sh", "-c",
			fmt.Sprintf("stty raw -echo; echo ready; head -c %d | od -An -v -tx1 | tr -d ' \\n'; echo; stty sane; seq 50000", len(paste)))
		c.Expect("ready")
		c.Type(paste)
		c.Expect(fmt.Sprintf("%x", paste))
		c.Expect("\n50000\r\n")
		if code := c.Wait(); code != 0 {
			t.Errorf("exit %d", code)
		}
		_, numbers, _ := strings.Cut(c.Screen(), fmt.Sprintf("%x", paste))
		for i, n := range strings.Fields(numbers) {
			if n != fmt.Sprint(i+1) {
				t.Fatalf("line %d is %q", i+1, n)
			}
		}
		c.Restored()
	})
	t.Run("sh", func(t *testing.T) {
		t.Parallel()
		c := typist(t, s, "sh", b.ID, "--user", "root", "--cwd", "/etc")
		c.Type("echo $0 $(pwd) $(whoami) `shopt -q login_shell && echo log''in`; exit 3\r")
		c.Expect("bash /etc root login\r\n")
		if code := c.Wait(); code != 3 {
			t.Errorf("exit %d, want 3", code)
		}
		c.Restored()
	})
	t.Run("a program that draws", func(t *testing.T) {
		t.Parallel()
		c := typist(t, s, "exec", "-it", b.ID, "--", "python3", "-q")
		c.Expect(">>> ")
		c.Type("6*7\r")
		c.Expect("42")
		c.Expect(">>> ")
		c.Type("\x04")
		if code := c.Wait(); code != 0 {
			t.Errorf("exit %d", code)
		}
		c.Restored()
	})
}

func TestATerminalIsLeftAndComeBackTo(t *testing.T) {
	t.Parallel()
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	first := typist(t, s, prompted(b.ID, "--name", "main")...)
	first.Expect("$ ")
	first.Type("printf '\\033[?1049hbe%s\\n' fore\r") // which reads before only where it is written
	first.Expect("before")
	first.Type("\x10\x11")
	if code := first.Wait(); code != 0 {
		t.Errorf("detached with exit %d", code)
	}
	first.Restored()
	if screen := first.Screen(); !strings.Contains(screen, "dayfly attach "+b.ID+" pr") || !strings.Contains(screen, "\x1b[?1049l") {
		t.Errorf("the screen is %q", screen)
	}
	if out := s.Dayfly(t.Context(), "ps", b.ID); out.Code != 0 || !strings.Contains(out.Stdout, "main") || !strings.Contains(out.Stdout, "bash --norc") {
		t.Errorf("ps: exit %d: %s%s", out.Code, out.Stdout, out.Stderr)
	}
	second := typist(t, s, "attach", b.ID, "main")
	second.Expect("before")
	second.Type("echo one\r")
	second.Expect("one\r\n")
	viewer := typist(t, s, "attach", b.ID, "main")
	viewer.Expect("one\r\n")
	second.Type("echo two; exit 9\r")
	viewer.Expect("two\r\n")
	for _, c := range []*console.Console{second, viewer} {
		if code := c.Wait(); code != 9 {
			t.Errorf("exit %d, want 9", code)
		}
		c.Restored()
	}
}

// TestAProgramThatDrawsIsDrawnAnew: who comes to a program that draws only what changes sees all of it, in his own window's size.
func TestAProgramThatDrawsIsDrawnAnew(t *testing.T) {
	t.Parallel()
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	if out := s.Dayfly(t.Context(), "exec", "-dt", "--name", "top", b.ID, "--", "top"); out.Code != 0 {
		t.Fatalf("exit %d: %s", out.Code, out.Stderr)
	}
	for range 2 {
		on := typist(t, s, "attach", "--tail", "0", b.ID, "top")
		on.Expect("load average")
		on.Expect("COMMAND")
		on.Type("\x10\x11")
		if code := on.Wait(); code != 0 {
			t.Errorf("detached with exit %d", code)
		}
		on.Restored()
	}
	if out := s.Dayfly(t.Context(), "kill", b.ID, "top"); out.Code != 0 {
		t.Errorf("kill: exit %d: %s", out.Code, out.Stderr)
	}
	if out := s.Dayfly(t.Context(), "wait", b.ID, "top"); out.Stdout != "137\n" {
		t.Errorf("wait: exit %d: %q %s", out.Code, out.Stdout, out.Stderr)
	}
}

// TestATerminalOutlivesItsServer: a restart in the middle loses nothing; a server that stays away leaves the user's terminal as it was.
func TestATerminalOutlivesItsServer(t *testing.T) {
	t.Parallel()
	s, c := own(t, "--listen", freeAddress(t))
	b := box(t, c, sdk.CreateOptions{})
	on := typist(t, s, prompted(b.ID)...)
	on.Expect("$ ")
	on.Type("for i in $(seq 1 400); do echo line-$i-; sleep 0.05; done; stty size\r")
	on.Expect("line-20-")
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	on.Expect("the connection is lost and being taken up again")
	again(t, s)
	on.Expect("connected again")
	on.Expect("line-400-\r\n30 100\r\n")
	for i := 1; i <= 400; i++ {
		if n := strings.Count(on.Screen(), fmt.Sprintf("line-%d-\r\n", i)); n != 1 {
			t.Fatalf("line %d came %d times", i, n)
		}
	}
	on.Type("echo still''there\r")
	on.Expect("stillthere")
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	on.Expect("the connection is lost and being taken up again")
	if code := on.Wait(); code != 125 {
		t.Errorf("exit %d, want 125", code)
	}
	on.Restored()
	if screen := on.Screen(); !strings.Contains(screen, "the connection to the command was lost") || !strings.Contains(screen, "come back with dayfly attach "+b.ID) {
		t.Errorf("the screen ends with %q", screen[max(0, len(screen)-1000):])
	}
	again(t, s)
}

func TestATerminalEndsWithItsSandbox(t *testing.T) {
	t.Parallel()
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	on := typist(t, s, prompted(b.ID)...)
	on.Expect("$ ")
	if err := b.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code := on.Wait(); code != 125 {
		t.Errorf("exit %d, want 125", code)
	}
	on.Restored()
	if screen := on.Screen(); !strings.Contains(screen, "dayfly: sandbox "+b.ID+" has ended") {
		t.Errorf("the screen is %q", screen)
	}
}

func TestAWindowThatClosesHangsItsShellUp(t *testing.T) {
	t.Parallel()
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	on := typist(t, s, prompted(b.ID, "--name", "gone")...)
	on.Expect("$ ")
	on.HangUp()
	on.Wait()
	for p, err := range b.Processes(t.Context(), sdk.ProcessListOptions{Name: "gone"}) {
		if err != nil {
			t.Fatal(err)
		}
		if p, err = b.WaitProcess(t.Context(), p.ID, endMax); err != nil || p.ExitCode == nil {
			t.Errorf("the shell is %+v (%v) and wrote %q", p, err, s.Dayfly(t.Context(), "logs", b.ID, p.ID).Stdout)
		}
	}
}

func TestInputOfAnySizeIsPassedOn(t *testing.T) {
	t.Parallel()
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	data := make([]byte, 100<<20)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(data)
	sum := sha256.Sum256(data)
	out := s.Run(t.Context(), host.Command{Args: []string{"exec", "-i", b.ID, "--", "sha256sum"}, Stdin: bytes.NewReader(data)})
	if want := hex.EncodeToString(sum[:]) + "  -\n"; out.Code != 0 || out.Stdout != want {
		t.Errorf("exit %d: %q, want %q: %s", out.Code, out.Stdout, want, out.Stderr)
	}
}

// TestCtrlCGoesToTheCommand: a command may take its time after the first, and does not survive the second.
func TestCtrlCGoesToTheCommand(t *testing.T) {
	t.Parallel()
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	on := typist(t, s, "exec", b.ID, "--", "sh", "-c", "trap 'echo cleaning up; sleep 0.5; echo clean; exit 4' INT; echo up; while :; do sleep 0.1; done")
	on.Expect("up")
	on.Type("\x03")
	on.Expect("clean\r\n")
	if code := on.Wait(); code != 4 {
		t.Errorf("exit %d, want the command's own 4", code)
	}
	on = typist(t, s, "exec", b.ID, "--", "sh", "-c", "trap 'echo ignored' INT; echo up $$; while :; do sleep 0.1; done")
	on.Expect("up")
	on.Type("\x03")
	on.Expect("ignored")
	on.Type("\x03")
	if code := on.Wait(); code != 130 && code != 137 {
		t.Errorf("exit %d, want 130 or 137", code)
	}
	within(t, endMax, "the end of a command that was killed", func() (bool, string) {
		for p, err := range b.Processes(t.Context(), sdk.ProcessListOptions{Status: sdk.ProcessRunning}) {
			return false, fmt.Sprintf("%+v %v", p, err)
		}
		return true, ""
	})
}
