package agent_test

import (
	"testing"
	"time"
)

// modes are the two ways in which an agent tells commands apart.
var modes = []struct {
	name string
	options
}{
	{"plain process", options{}},
	{"root with cgroups", options{cgroup: true, root: true}},
}

// inEachMode runs a test against an agent of each kind.
func inEachMode(t *testing.T, test func(t *testing.T, m *machine)) {
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) { test(t, startAgent(t, mode.options)) })
	}
}

func TestRunResults(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		for _, tt := range []struct {
			name, command, stdout string
			code                  int
			signal                string
		}{
			{"output", "echo ok", "ok\n", 0, ""},
			{"no newline added", "printf late", "late", 0, ""},
			{"exit code", "exit 3", "", 3, ""},
			{"set -e", "set -e; false; echo no", "", 1, ""},
			{"killed itself", "kill -KILL $$", "", 137, "KILL"},
			{"term", "kill $$", "", 143, "TERM"},
			{"stdin is empty", "cat; echo end", "end\n", 0, ""},
			{"bug 2: background child holds the pipe", "sleep 61 & echo ok", "ok\n", 0, ""},
			{"bug 86: broken pipe", "yes | head -1", "y\n", 0, ""},
		} {
			t.Run(tt.name, func(t *testing.T) {
				start := time.Now()
				r := m.run(t, shell(tt.command))
				if out(r.Stdout) != tt.stdout || r.Exit.Code != tt.code || r.Exit.Signal != tt.signal {
					t.Errorf("got %q code %d signal %q stderr %q", out(r.Stdout), r.Exit.Code, r.Exit.Signal, out(r.Stderr))
				}
				if d := time.Since(start); d > promptly {
					t.Errorf("took %s", d)
				}
			})
		}
	})
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, m *machine) {
		for _, tt := range []struct{ name, command string }{
			{"bug 1: TERM ignored by a child", `(trap "" TERM; exec -a dayfly-victim sleep 407) & echo out; sleep 408`},
			{"bug 1: setsid", `setsid sh -c 'trap "" TERM; while :; do sleep 1; done' & echo out; sleep 409`},
			{"double fork", `(setsid sleep 412 & ) ; echo out; sleep 410`},
			{"stopped", `echo out; kill -STOP $$`},
		} {
			t.Run(tt.name, func(t *testing.T) {
				spec := shell(tt.command)
				spec.Timeout = time.Second
				start := time.Now()
				r := m.run(t, spec)
				if d := time.Since(start); d > promptly {
					t.Errorf("took %s", d)
				}
				if !r.Exit.TimedOut || out(r.Stdout) != "out\n" {
					t.Errorf("timed out %v, output %q", r.Exit.TimedOut, out(r.Stdout))
				}
				if left := m.living(t); left != "" {
					t.Errorf("still alive:\n%s", left)
				}
			})
		}
	})
}
