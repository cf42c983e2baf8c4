package drivertest

import (
	"io"
	"strconv"
	"strings"
	"testing"

	"dayfly.dev/dayfly"
)

func newPipe(t *testing.T) (*io.PipeReader, *io.PipeWriter) {
	t.Helper()
	r, w := io.Pipe()
	t.Cleanup(func() { _ = w.Close() })
	return r, w
}

func cannotRun(t *testing.T, s *suite) {
	g := s.guest(t)
	g.sh(t, `printf '#!/nope/sh\n' >badsh; printf x >noexec; chmod +x badsh; mkdir dir`)
	for _, tt := range []struct {
		name, program, text string
		code                int
	}{
		{"missing", "nosuchprog", "command not found", 127},
		{"missing path", "./nosuch", "No such file", 127},
		{"not executable", "./noexec", "Permission denied", 126},
		{"bad interpreter", "./badsh", "bad interpreter", 127},
		{"directory", "./dir", "Is a directory", 126},
	} {
		t.Run(tt.name, func(t *testing.T) {
			direct := g.call(t, argv(tt.program))
			if direct.Exit.Code != tt.code || !strings.Contains(kept(direct.Stderr), tt.text) || !strings.Contains(kept(direct.Stderr), tt.program) {
				t.Errorf("%+v, stderr %q", direct.Exit, kept(direct.Stderr))
			}
			if by := g.call(t, shell(tt.program)); by.Exit.Code != tt.code && tt.name != "bad interpreter" || by.Stderr.Bytes == 0 {
				t.Errorf("by the shell: %+v, stderr %q", by.Exit, kept(by.Stderr))
			}
		})
	}
}

func wrongDirectory(t *testing.T, s *suite) {
	g := s.guest(t)
	user := strings.TrimSpace(g.sh(t, "touch file; mkdir -m 0 closed; id -u"))
	for _, tt := range []struct {
		name, cwd string
		rights    bool // only for who is not root
	}{
		{"missing", "/nope", false},
		{"a file", "file", false},
		{"without permission", "closed", true},
		{"NUL", "a\x00b", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.rights && user == "0" {
				t.Skip("this driver's user is root, who may enter it")
			}
			spec := shell("echo x")
			spec.Cwd = tt.cwd
			_, err := g.Run(ctx(t), spec, nil)
			wantCode(t, "run", err, dayfly.CodeInvalid)
			if err != nil && !strings.Contains(err.Error(), "cwd") {
				t.Errorf("%v does not name cwd", err)
			}
		})
	}
}

func environmentIsBytes(t *testing.T, s *suite) {
	g := s.guest(t, func(spec *dayfly.InstanceSpec) { spec.Env = map[string]string{"BASE": "of the sandbox", "OVER": "old"} })
	spec := argv("env", "-0")
	spec.Env = map[string]string{
		"A": "{\n\"k\":1\n}", "B": "$(touch p)`touch p`", "C": "a'b\"c", "D": "", "E": "a=b", "F": "\xff\xfe", "X;touch p": "1", "OVER": "new",
	}
	got := make(map[string]string)
	for pair := range strings.SplitSeq(strings.TrimSuffix(kept(g.call(t, spec).Stdout), "\x00"), "\x00") {
		name, value, _ := strings.Cut(pair, "=")
		got[name] = value
	}
	for name, want := range spec.Env {
		if v, there := got[name]; !there || v != want {
			t.Errorf("%s = %q, want %q", name, v, want)
		}
	}
	if got["BASE"] != "of the sandbox" {
		t.Errorf("BASE = %q", got["BASE"])
	}
	if next := g.sh(t, "echo $A$C$OVER; ! test -e p"); next != "old\n" {
		t.Errorf("the next command has %q", next)
	}
	for _, tt := range []struct {
		name string
		env  map[string]string
	}{
		{"empty name", map[string]string{"": "x"}},
		{"name with =", map[string]string{"A=B": "x"}},
		{"name with NUL", map[string]string{"A\x00B": "x"}},
		{"value with NUL", map[string]string{"A": "x\x00"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bad := shell("echo x")
			bad.Env = tt.env
			_, err := g.Run(ctx(t), bad, nil)
			wantCode(t, "run", err, dayfly.CodeInvalid)
		})
	}
}

func manyLines(t *testing.T, s *suite) {
	g := s.guest(t)
	for _, tt := range []struct {
		name, command, want string
	}{
		{"heredoc", "cat >f <<'E'\nl1 $x\nl2\nE\ncat f", "l1 $x\nl2\n"},
		{"loop", "for i in 1 2; do\n echo $i \\\n x\ndone # end", "1 x\n2 x\n"},
		{"ends in a backslash", "echo a \\\n", "a\n"},
		{"carriage returns", "echo a\r\necho b\r\n", "a\r\nb\r\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := g.Run(soon(t), shell(tt.command), nil)
			if err != nil || kept(r.Stdout) != tt.want {
				t.Errorf("%q, stderr %q, %v", kept(r.Stdout), kept(r.Stderr), err)
			}
		})
	}
	r, err := g.Run(soon(t), shell("echo 'unbalanced"), nil)
	if err != nil || r.Exit.Code != 2 && r.Exit.Code != 1 || r.Stderr.Bytes == 0 {
		t.Errorf("a syntax error: %+v, stderr %q, %v", r.Exit, kept(r.Stderr), err)
	}
}

func endsOnlyItself(t *testing.T, s *suite) {
	g := s.guest(t)
	for _, tt := range []struct {
		command, stdout, signal string
		code                    int
	}{
		{"set -e; false; echo no", "", "", 1},
		{"exit 3", "", "", 3},
		{"yes | head -1", "y\n", "", 0},
		{"kill $$", "", "TERM", 143},
		{"kill -KILL $$", "", "KILL", 137},
		{"kill -KILL 0", "", "KILL", 137},
		{"exec true", "", "", 0},
		{"exec 1>&- 2>&-; exit 4", "", "", 4},
	} {
		t.Run(tt.command, func(t *testing.T) {
			r, err := g.Run(soon(t), shell(tt.command), nil)
			if err != nil || kept(r.Stdout) != tt.stdout || r.Exit.Code != tt.code || r.Exit.Signal != tt.signal {
				t.Errorf("%q, %+v, %v", kept(r.Stdout), r.Exit, err)
			}
			if got := g.sh(t, "echo ok"); got != "ok\n" {
				t.Errorf("the next command: %q", got)
			}
		})
	}
}

func longCommands(t *testing.T, s *suite) {
	g := s.guest(t)
	script := "echo start\n# " + strings.Repeat("x", 300<<10) + "\necho end\nexit 7"
	if r := g.call(t, shell(script)); kept(r.Stdout) != "start\nend\n" || r.Exit.Code != 7 {
		t.Errorf("a script of 300 KiB: %q, %+v", kept(r.Stdout), r.Exit)
	}
	if r, err := g.Run(ctx(t), shell("sh; exit $?"), strings.NewReader(script)); err != nil || kept(r.Stdout) != "start\nend\n" || r.Exit.Code != 7 {
		t.Errorf("the same as input: %q, %+v, %v", kept(r.Stdout), r.Exit, err)
	}
	long := argv("true", strings.Repeat("x", 200<<10))
	env := shell("true")
	env.Env = make(map[string]string)
	for i := range 30 {
		env.Env["V"+strconv.Itoa(i)] = strings.Repeat("x", 100<<10)
	}
	for _, tt := range []struct {
		name, limit string
		spec        dayfly.ProcessSpec
	}{
		{"one argument of 200 KiB", "131071", long},
		{"3 MiB of environment", "2 MiB", env},
	} {
		_, err := g.Run(ctx(t), tt.spec, nil)
		wantCode(t, tt.name, err, dayfly.CodeInvalid)
		if err != nil && !strings.Contains(err.Error(), tt.limit) {
			t.Errorf("%s: %v does not name the limit", tt.name, err)
		}
	}
}

func ownShare(t *testing.T, s *suite) {
	if !s.Isolated {
		t.Skip("under this driver commands see the host")
	}
	g := s.guest(t, func(spec *dayfly.InstanceSpec) {
		spec.Limits.VCPU = 1
		spec.Env = map[string]string{"DAYFLY_MEMORY_MB": "512"}
	})
	slack := "cat /proc/self/timerslack_ns" // the kernel's own, not the agent's
	if s.UserKernel {
		slack = "echo 50000" // which has none
	}
	if got := g.sh(t, "nproc; "+s.Inside+" cpus; echo $DAYFLY_MEMORY_MB; "+slack); got != "1\n1\n512\n50000\n" {
		t.Errorf("CPUs, CPUs to Go, MiB: %q", got)
	}
}

func noTerminal(t *testing.T, s *suite) {
	g := s.guest(t)
	r, err := g.Run(soon(t), shell("read x </dev/tty && echo read; tty; test -t 0 || test -t 1 || test -t 2 || echo none"), nil)
	if err != nil || !strings.HasSuffix(kept(r.Stdout), "not a tty\nnone\n") || strings.Contains(kept(r.Stdout), "read\n") {
		t.Errorf("%q, %v", kept(r.Stdout), err)
	}
	if got := g.sh(t, `ps -o sid=,pid= -p $$ | tr -s ' '; echo $TERM`); !strings.HasSuffix(got, "\ndumb\n") {
		t.Errorf("session and terminal: %q", got)
	} else if f := strings.Fields(got); f[0] != f[1] {
		t.Errorf("not a session of its own: %q", got)
	}
}

func utf8Default(t *testing.T, s *suite) {
	g := s.guest(t)
	for _, tt := range []struct{ name, needs, command, want string }{
		{"environment", "", "echo $LANG", "C.UTF-8\n"},
		{"names", "ls", "touch ü && ls", "ü\n"},
		{"the shell counts characters", "bash", `bash -c 'x=█; echo ${#x}'`, "1\n"},
		{"locale", "locale", "locale charmap", "UTF-8\n"},
		{"python", "/usr/bin/python3", `/usr/bin/python3 -c "print('█')"`, "█\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.needs != "" && g.call(t, shell("command -v "+tt.needs)).Exit.Code != 0 {
				t.Skipf("the machine has no %s", tt.needs)
			}
			if got := g.sh(t, tt.command); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
