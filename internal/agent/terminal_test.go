package agent_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// onTerminal is a shell command on a terminal of 80 columns and 24 rows.
func onTerminal(command string) dayfly.ProcessSpec {
	s := shell(command)
	s.Terminal, s.Follow = &dayfly.TerminalSize{Cols: 80, Rows: 24}, true
	return s
}

// until reads an output stream up to a text.
func until(t testing.TB, stream dayfly.OutputStream, text string) string {
	t.Helper()
	var b strings.Builder
	for !strings.Contains(b.String(), text) {
		o, err := stream.Next()
		if err != nil || o.Kind == dayfly.OutputExit {
			t.Fatalf("%q never came, only %q: %+v, %v", text, b.String(), o.Exit, err)
		}
		b.Write(o.Data)
	}
	return b.String()
}

func (m *machine) start1(t testing.TB, s dayfly.ProcessSpec) dayfly.OutputStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	stream, _, err := m.Start(ctx, s, nil)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stream.Close()
		cancel()
	})
	return stream
}

func (m *machine) typeIn(t testing.TB, id, text string, closeAfter bool) {
	t.Helper()
	if err := m.WriteStdin(t.Context(), id, strings.NewReader(text), closeAfter); err != nil {
		t.Fatal(err)
	}
}

func TestTerminal(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		for _, tt := range []struct {
			name, command, want string
			code                int
		}{
			{"it is one", "test -t 0 -a -t 1 -a -t 2 && tty | cut -c1-9", "/dev/pts/\r\n", 0},
			{"controlling", "echo hi > /dev/tty; ps -o sid=,tpgid= -p $$ | (read a b; test $a = $b && echo fg)", "hi\r\nfg\r\n", 0},
			{"size", "stty size", "24 80\r\n", 0},
			{"environment", "echo $TERM ${COLUMNS-none} ${LINES-none}", "xterm-256color none none\r\n", 0},
			{"all output is stdout", "echo a; echo b >&2; exit 3", "a\r\nb\r\n", 3},
			{"raw bytes", `stty raw; printf 'a\377\nb'`, "a\xff\nb", 0},
			{"last bytes", "printf late", "late", 0},
			{"died of a signal", "kill -9 $$", "", 137},
			{"only three descriptors", "ls -1 /proc/$$/fd; :", "0\r\n1\r\n2\r\n", 0},
			{"owner", `test -O $(tty) && stty -F $(tty) size`, "24 80\r\n", 0},
			{"missing program", "exec nosuchprog", "", 127},
		} {
			t.Run(tt.name, func(t *testing.T) {
				r := m.run(t, onTerminal(tt.command))
				got := out(r.Stdout)
				if tt.name == "missing program" {
					got = ""
				}
				if got != tt.want || r.Exit.Code != tt.code || r.Exit.StderrBytes != 0 {
					t.Errorf("got %q code %d, stderr %q", got, r.Exit.Code, out(r.Stderr))
				}
			})
		}
		t.Run("pipes stay dumb", func(t *testing.T) {
			if got := out(m.run(t, shell("echo $TERM")).Stdout); got != "dumb\n" {
				t.Errorf("TERM is %q", got)
			}
		})
	})
}

func TestTerminalIsComplete(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		var want strings.Builder
		for i := range 50000 {
			fmt.Fprintf(&want, "%d\r\n", i+1)
		}
		want.WriteString("END\r\n")
		t.Run("bug 98: slow reader", func(t *testing.T) {
			s := onTerminal("seq 1 50000; echo END")
			stream := m.start1(t, s)
			m.run(t, shell("sleep 0.3")) // meanwhile the terminal and the buffers fill
			if got, exit := collect(t, stream, 0); got != want.String() || exit.Code != 0 {
				t.Errorf("bug 98: %d bytes of %d, code %d, ends in %q", len(got), want.Len(), exit.Code, got[max(0, len(got)-20):])
			}
		})
		t.Run("bug 98: several readers", func(t *testing.T) {
			s := onTerminal("read x; seq 1 50000; echo END")
			stream := m.start1(t, s)
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() {
					o, err := m.Output(t.Context(), s.ID, dayfly.Offsets{}, true)
					if err != nil {
						t.Error(err)
						return
					}
					defer o.Close()
					if got, _ := collect(t, o, 0); got != "\r\n"+want.String() {
						t.Errorf("%d bytes of %d", len(got), want.Len()+2)
					}
				})
			}
			m.typeIn(t, s.ID, "\r", false)
			if got, _ := collect(t, stream, 0); got != "\r\n"+want.String() {
				t.Errorf("%d bytes of %d", len(got), want.Len()+2)
			}
			all.Wait()
		})
		t.Run("the last bytes, many times", func(t *testing.T) {
			for range 200 {
				if got := out(m.run(t, onTerminal("printf late")).Stdout); got != "late" {
					t.Fatalf("got %q", got)
				}
			}
		})
	})
}

func TestTerminalInput(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		t.Run("echo and lines", func(t *testing.T) {
			s := onTerminal("read x; echo got $x")
			stream := m.start1(t, s)
			m.typeIn(t, s.ID, "ax\x7fb\r", false) // the kernel's own editing
			if got, _ := collect(t, stream, 0); got != "ax\b \bb\r\ngot ab\r\n" {
				t.Errorf("got %q", got)
			}
		})
		t.Run("end of file", func(t *testing.T) {
			for _, typed := range []string{"", "line\r", "half", "ünfinished ☕"} {
				s := onTerminal("stty -echo; echo ready; cat; echo over")
				stream := m.start1(t, s)
				until(t, stream, "ready\r\n")
				m.typeIn(t, s.ID, typed, true)
				got, exit := collect(t, stream, int64(len("ready\r\n")))
				if want := strings.ReplaceAll(typed, "\r", "\r\n") + "over\r\n"; got != want || exit.Code != 0 {
					t.Errorf("%q: got %q", typed, got)
				}
				wantCode(t, m.WriteStdin(t.Context(), s.ID, strings.NewReader("x"), false), dayfly.CodeConflict)
			}
		})
		t.Run("given input is typed and stays open", func(t *testing.T) {
			s := onTerminal("stty -echo; read a; read b; echo $a $b")
			stream, _, err := m.Start(t.Context(), s, strings.NewReader("one\r"))
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			m.typeIn(t, s.ID, "two\r", false)
			if got, _ := collect(t, stream, 0); !strings.HasSuffix(got, "one two\r\n") {
				t.Errorf("got %q", got)
			}
		})
		t.Run("keys are signals", func(t *testing.T) {
			s := onTerminal("trap 'echo interrupted; exit 7' INT; echo ready; while :; do sleep 0.05; done")
			stream := m.start1(t, s)
			until(t, stream, "ready")
			m.typeIn(t, s.ID, "\x03", false)
			if _, exit := collect(t, stream, int64(len("ready\r\n"))); exit.Code != 7 {
				t.Errorf("code %d", exit.Code)
			}
		})
		t.Run("much input has back-pressure", func(t *testing.T) {
			s := onTerminal("stty raw -echo; echo ready; head -c 8388608 | sha256sum")
			stream := m.start1(t, s)
			until(t, stream, "ready")
			input := strings.Repeat("a", 8<<20)
			m.typeIn(t, s.ID, input, false)
			if text, want := until(t, stream, "-"), fmt.Sprintf("%x", sha256.Sum256([]byte(input))); !strings.Contains(text, want) {
				t.Errorf("got %q, want %s", text, want)
			}
		})
		t.Run("bracketed paste", func(t *testing.T) {
			const paste = "\x1b[200~echo a\nrm -rf b\x1b[201~"
			s := onTerminal("stty raw -echo; printf '\\033[?2004h'; head -c " + fmt.Sprint(len(paste)) + " | od -An -c | tr -d ' \\n'")
			stream := m.start1(t, s)
			until(t, stream, "\x1b[?2004h")
			m.typeIn(t, s.ID, paste, false)
			if text := until(t, stream, "201~"); !strings.Contains(text, "033[200~echoa\\nrm-rfb033[201~") {
				t.Errorf("got %q", text)
			}
		})
	})
}

func TestResize(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		s := onTerminal(`exec python3 -u -c "
import os,signal
def show(*a): print(*reversed(os.get_terminal_size()))
signal.signal(signal.SIGWINCH, show)
print('ready')
while 1: signal.pause()"`)
		stream := m.start1(t, s)
		until(t, stream, "ready")
		resize := func(cols, rows int) {
			t.Helper()
			if err := m.Resize(t.Context(), s.ID, dayfly.TerminalSize{Cols: cols, Rows: rows}); err != nil {
				t.Fatal(err)
			}
		}
		resize(100, 30)
		until(t, stream, "30 100\r\n")
		resize(100, 30) // the same again: it repaints
		until(t, stream, "30 100\r\n")
		p, err := m.Process(t.Context(), s.ID)
		if err != nil || p.Terminal == nil || *p.Terminal != (dayfly.TerminalSize{Cols: 100, Rows: 30}) {
			t.Errorf("the record has the size %v, %v", p.Terminal, err)
		}
		var storm sync.WaitGroup
		for i := range 8 {
			storm.Go(func() {
				for j := range 50 {
					_ = m.Resize(t.Context(), s.ID, dayfly.TerminalSize{Cols: 20 + i, Rows: 10 + j})
				}
			})
		}
		storm.Wait()
		resize(132, 43)
		until(t, stream, "43 132\r\n")
		if err := m.Signal(t.Context(), s.ID, "KILL", true); err != nil {
			t.Fatal(err)
		}
		resize(80, 24) // what has ended is left alone
		pipes := shell("sleep 60")
		m.start1(t, pipes)
		wantCode(t, m.Resize(t.Context(), pipes.ID, dayfly.TerminalSize{Cols: 1, Rows: 1}), dayfly.CodeConflict)
		if err := m.Signal(t.Context(), pipes.ID, "KILL", true); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTerminalHangUp(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		s := onTerminal(`sleep 631 & nohup sleep 632 >/dev/null 2>&1 & (trap "" HUP; while :; do echo noise; done) & sleep 0.1; echo bye`)
		stream := m.start1(t, s)
		start := time.Now()
		got := ""
		for {
			o, err := stream.Next()
			if err != nil {
				t.Fatal(err)
			}
			if o.Kind == dayfly.OutputExit {
				break
			}
			got += string(o.Data)
		}
		if !strings.Contains(got, "bye\r\n") || time.Since(start) > promptly {
			t.Errorf("a background child held the exit for %s", time.Since(start))
		}
		hungUp := func() bool {
			left := "\n" + m.living(t)
			return strings.Contains(left, "\nsleep 632\n") && !strings.Contains(left, "\nsleep 631\n")
		}
		eventually(t, "the session is hung up, but not what ignores that", hungUp)
		if err := m.Signal(t.Context(), s.ID, "KILL", true); err != nil {
			t.Fatal(err)
		}
		if left := m.living(t); left != "" {
			t.Errorf("alive: %q", left)
		}
	})
}

func TestTerminalTimeout(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, m *machine) {
		s := onTerminal(`(trap "" TERM HUP; exec -a dayfly-tty sleep 417) & setsid sleep 418 & echo out; sleep 419`)
		s.Timeout = time.Second
		start := time.Now()
		r := m.run(t, s)
		if d := time.Since(start); d > promptly || !r.Exit.TimedOut || out(r.Stdout) != "out\r\n" {
			t.Errorf("%s, %+v, %q", d, r.Exit, out(r.Stdout))
		}
		if left := m.living(t); left != "" {
			t.Errorf("alive:\n%s", left)
		}
	})
}

func TestTerminalsAreGivenBack(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		count := func() int {
			n := 0
			fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.cmd.Process.Pid))
			for _, fd := range fds {
				name, _ := os.Readlink(filepath.Join("/proc", fmt.Sprint(m.cmd.Process.Pid), "fd", fd.Name()))
				if strings.Contains(name, "/pts/") || strings.Contains(name, "ptmx") {
					n++
				}
			}
			return n
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 10 {
					m.run(t, onTerminal("true"))
					missing := argv("nosuch")
					missing.Terminal = &dayfly.TerminalSize{Cols: 80, Rows: 24}
					if r := m.run(t, missing); r.Exit.Code != 127 || !strings.HasSuffix(out(r.Stdout), "not found\r\n") {
						t.Errorf("%+v %q", r.Exit, out(r.Stdout))
					}
				}
			})
		}
		all.Wait()
		eventually(t, "no terminal is open", func() bool { return count() == 0 })
	})
}

func TestTerminalSizes(t *testing.T) {
	m := startAgent(t, options{})
	r := m.run(t, func() dayfly.ProcessSpec {
		s := onTerminal("stty size")
		s.Terminal = &dayfly.TerminalSize{Cols: dayfly.TerminalSizeMax, Rows: 1}
		return s
	}())
	if out(r.Stdout) != "1 1000\r\n" {
		t.Errorf("got %q", out(r.Stdout))
	}
	if unix.Kill(m.cmd.Process.Pid, 0) != nil {
		t.Error("the agent is gone")
	}
}
