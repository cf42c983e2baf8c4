package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

func TestDetachKeys(t *testing.T) {
	for _, tt := range []struct {
		name, keys string
		typed      []string // piece by piece
		pass       string
		detach     bool
	}{
		{"the default", detachKeysDefault, []string{"a\x10\x11b"}, "a", true},
		{"in two pieces", detachKeysDefault, []string{"a\x10", "\x11"}, "a", true},
		{"the first key twice", detachKeysDefault, []string{"\x10\x10\x11"}, "\x10", true},
		{"the first key alone", detachKeysDefault, []string{"\x10a\x11"}, "\x10a\x11", false},
		{"held back at the end", detachKeysDefault, []string{"a\x10"}, "a\x10", false},
		{"a sequence that repeats itself", "a,a,b", []string{"aaab"}, "a", true},
		{"one that begins within itself", "a,b,a,c", []string{"ababac"}, "ab", true},
		{"one key", "ctrl-]", []string{"x\x1d"}, "x", true},
		{"none", detachKeysNone, []string{"\x10\x11"}, "\x10\x11", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k, err := parseDetachKeys(tt.keys)
			if err != nil {
				t.Fatal(err)
			}
			var pass []byte
			detached := false
			for _, p := range tt.typed {
				out, detach := k.typed([]byte(p))
				pass = append(pass, out...)
				detached = detached || detach
			}
			if pass = append(pass, k.flush()...); string(pass) != tt.pass || detached != tt.detach {
				t.Errorf("passed on %q, detached %v", pass, detached)
			}
		})
	}
	for _, bad := range []string{"", "ctrl-", "ctrl-é", "ab", "a,,b", "ctrl-1", "\x7f", "a,b,c,d,e,f,g,h,i"} {
		if _, err := parseDetachKeys(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// FuzzDetachKeys: what is not the sequence is passed on unchanged, in any pieces.
func FuzzDetachKeys(f *testing.F) {
	f.Add("ctrl-p,ctrl-q", []byte("a\x10b\x10\x10"), 3)
	f.Add("a,a,b", []byte("aaaaab"), 1)
	f.Add("a,b,a,c", []byte("abababac"), 2)
	f.Fuzz(func(t *testing.T, keys string, typed []byte, at int) {
		k, err := parseDetachKeys(keys)
		if err != nil {
			return
		}
		at = max(0, min(at, len(typed)))
		want, detaches := typed, false
		if i := bytes.Index(typed, k.sequence); i >= 0 && len(k.sequence) > 0 {
			want, detaches = typed[:i], true
		}
		pass, detached := k.typed(bytes.Clone(typed[:at]))
		pass = bytes.Clone(pass)
		if !detached {
			var more []byte
			more, detached = k.typed(bytes.Clone(typed[at:]))
			pass = append(pass, more...)
		}
		if !detached {
			pass = append(pass, k.flush()...)
		}
		if !bytes.Equal(pass, want) || detached != detaches {
			t.Errorf("%q of %q passed on %q, detached %v; want %q, %v", typed, keys, pass, detached, want, detaches)
		}
	})
}

func TestScreenModes(t *testing.T) {
	for _, tt := range []struct{ name, output, undo string }{
		{"nothing", "hello\x1b[31mred\x1b[0m", ""},
		{"what vim does", "\x1b[?1049h\x1b[?1h\x1b=\x1b[?2004h\x1b[?25l\x1b[?25h", "\x1b[?2004l\x1b[?1l\x1b[?1049l\x1b[0m"},
		{"on and off again", "\x1b[?1049h\x1b[?1049l", ""},
		{"several at once", "\x1b[?1000;1006h", "\x1b[?1006l\x1b[?1000l\x1b[0m"},
		{"a hidden cursor", "\x1b[?25l", "\x1b[?25h\x1b[0m"},
		{"unknown ones", "\x1b[?12h\x1b[?99999999999999h\x1b[4h", ""},
		{"broken off", "\x1b[?1049\x1b[?1000h\x1b[?", "\x1b[?1000l\x1b[0m"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var whole, pieces screenModes
			whole.see([]byte(tt.output))
			for i := range len(tt.output) {
				pieces.see([]byte(tt.output[i : i+1]))
			}
			if got := pieces.undo(); got != tt.undo || whole.undo() != tt.undo {
				t.Errorf("undone by %q, want %q", got, tt.undo)
			}
			if again := pieces.undo(); again != "" {
				t.Errorf("undone twice: %q", again)
			}
		})
	}
}

// FuzzScreenModes: after any output, what undoes it leaves nothing to undo.
func FuzzScreenModes(f *testing.F) {
	f.Add([]byte("\x1b[?1049h\x1b[?25;2004l"))
	f.Add([]byte("\x1b[?;;;;h\x1b[?1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1h"))
	f.Fuzz(func(t *testing.T, output []byte) {
		var m, after screenModes
		m.see(output)
		undo := m.undo()
		if after.see(append(append(output, "\x18"...), undo...)); after.undo() != "" {
			t.Errorf("%q is not undone by %q", output, undo)
		}
		if strings.Count(undo, "\x1b[?") > len(modesWatched) {
			t.Errorf("undone by %q", undo)
		}
	})
}

// TestGuard: a panic in a session's goroutine leaves the terminal as it was.
func TestGuard(t *testing.T) {
	term, modes := testTerminal(t)
	before := modes()
	if err := term.raw(); err != nil {
		t.Fatal(err)
	}
	if modes() == before {
		t.Fatal("the terminal did not become raw")
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		defer term.guard()
		panic("a fault")
	}()
	if modes() != before {
		t.Error("the terminal is still raw")
	}
}

// testTerminal is a terminal of its own, and what reads its modes.
func testTerminal(t *testing.T) (*terminal, func() unix.Termios) {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Skip("no pseudo terminal can be opened here: ", err)
	}
	t.Cleanup(func() { _, _ = slave.Close(), master.Close() })
	go func() { // takes what is written to it
		buf := make([]byte, 1024)
		for {
			if _, err := master.Read(buf); err != nil {
				return
			}
		}
	}()
	return &terminal{in: slave, out: slave}, func() unix.Termios {
		modes, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return *modes
	}
}

func TestParseRestart(t *testing.T) {
	for _, tt := range []struct {
		text   string
		policy string
		most   int
		ok     bool
	}{
		{"", "", 0, true}, {"never", "never", 0, true}, {"on-failure", "on-failure", 0, true}, {"on-failure:3", "on-failure", 3, true},
		{"on-failure:", "", 0, false}, {"on-failure:0", "", 0, false}, {"on-failure:x", "", 0, false}, {"never:3", "", 0, false},
	} {
		if policy, most, err := parseRestart(tt.text); string(policy) != tt.policy || most != tt.most || (err == nil) != tt.ok {
			t.Errorf("%q: %q, %d, %v", tt.text, policy, most, err)
		}
	}
}
