package drivertest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

// terminalIsReal: a terminal is the command's own in every respect, whoever runs it and whatever the sandbox did to its devices.
func terminalIsReal(t *testing.T, s *suite) {
	g := s.guest(t)
	foreground := "ps -o tpgid= -p $$ | (read a; test $a = $$ && echo yes)"
	if s.UserKernel {
		foreground = "stty echo && echo yes" // /proc does not tell there; nobody else may change the terminal
	}
	for _, tt := range []struct{ name, command, want string }{
		{"its three streams", "test -t 0 -a -t 1 -a -t 2 && echo yes", "yes\n"},
		{"owner", `test -O "$(tty)" && echo yes`, "yes\n"},
		{"controlling", "echo yes > /dev/tty", "yes\n"},
		{"in the foreground", foreground, "yes\n"},
		{"environment", "echo $TERM ${COLUMNS-no} ${LINES-no}", "xterm-256color no no\n"},
		{"opened by name", `exec 3<>"$(tty)"; echo yes >&3`, "yes\n"},
		{"another one", `script -qc "stty size; echo yes" /dev/null < /dev/null | tr -d '\r' | tail -n 1`, "yes\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if strings.HasPrefix(tt.command, "script") && g.call(t, shell("type script")).Exit.Code != 0 {
				t.Skip("the machine has no script(1)")
			}
			r := g.call(t, onTerminal(tt.command))
			if got := plain(kept(r.Stdout)); got != tt.want || r.Exit.StderrBytes != 0 {
				t.Errorf("%q, %+v", got, r.Exit)
			}
		})
	}
	if !s.Isolated {
		return
	}
	t.Run("root", func(t *testing.T) {
		spec := onTerminal(`test -O "$(tty)" && id -u`)
		spec.User = "root"
		if r := g.call(t, spec); plain(kept(r.Stdout)) != "0\n" {
			t.Errorf("%q, %+v", kept(r.Stdout), r.Exit)
		}
	})
	t.Run("a false device", func(t *testing.T) {
		spec := shell("rm -f /dev/ptmx && mkfifo /dev/ptmx && echo done")
		spec.User = "root"
		if r := g.call(t, spec); kept(r.Stdout) != "done\n" {
			t.Fatalf("%+v %s", r.Exit, kept(r.Stderr))
		}
		if r := g.call(t, onTerminal("test -t 0 && echo yes")); plain(kept(r.Stdout)) != "yes\n" {
			t.Errorf("%q, %+v", kept(r.Stdout), r.Exit)
		}
	})
}

// terminalHangsUp: the end of a terminal's command hangs it up for those who are left, except for who ignores that.
func terminalHangsUp(t *testing.T, s *suite) {
	g := s.guest(t)
	dies, stays := nap(), nap()
	stream, p := g.begin(t, onTerminal(fmt.Sprintf("%s & nohup %s > /dev/null 2>&1 & sleep 0.1; echo bye", dies, stays)))
	got, exit := collect(t, stream, 0)
	if !strings.HasSuffix(plain(got), "bye\n") || exit.Code != 0 {
		t.Errorf("%q, %+v", got, exit)
	}
	eventually(t, "what is left is hung up", func() bool { return !g.runs(t, dies) })
	if !g.runs(t, stays) {
		t.Error("what ignores a hang-up was ended")
	}
	if err := g.Signal(ctx(t), p.ID, "KILL", true /* the whole tree */); err != nil {
		t.Error(err)
	}
	if g.runs(t, stays) {
		t.Error("the kill did not reach it")
	}
}

// restarts: a command that fails is started again, as often as was allowed, with one id and one output; one that was ended is not.
func restarts(t *testing.T, s *suite) {
	g := s.guest(t)
	t.Run("until it works", func(t *testing.T) {
		spec := shell("n=$(($(cat n 2>/dev/null || echo 0)+1)); echo $n | tee n; exit $((n<3))")
		spec.Restart = dayfly.RestartOnFailure
		if r := g.call(t, spec); kept(r.Stdout) != "1\n2\n3\n" || r.Exit.Code != 0 {
			t.Errorf("%q, %+v", kept(r.Stdout), r.Exit)
		}
		if p, err := g.Process(ctx(t), spec.ID); err != nil || p.Restarts != 2 {
			t.Errorf("%d restarts, %v", p.Restarts, err)
		}
	})
	t.Run("no more often than allowed", func(t *testing.T) {
		left := nap()
		spec := shell(left + " & echo x; kill -SEGV $$")
		spec.Restart, spec.Restarts = dayfly.RestartOnFailure, 2
		if r := g.call(t, spec); kept(r.Stdout) != "x\nx\nx\n" || r.Exit.Signal != "SEGV" {
			t.Errorf("%q, %+v", kept(r.Stdout), r.Exit)
		}
		if n := strings.Count(g.sh(t, "ps -eo args"), left+"\n"); n != 1 {
			t.Errorf("the tries left %d children, not that of the last one", n)
		}
		if err := g.Signal(ctx(t), spec.ID, "KILL", true /* the whole tree */); err != nil {
			t.Error(err)
		}
	})
	t.Run("not what was ended", func(t *testing.T) {
		spec := shell("echo up; exec " + nap())
		spec.Restart, spec.Follow = dayfly.RestartOnFailure, true
		stream, _ := g.begin(t, spec)
		_ = line(t, stream)
		if err := g.Signal(ctx(t), spec.ID, "TERM", false /* only its group */); err != nil {
			t.Fatal(err)
		}
		if got, exit := collect(t, stream, 3); got != "" || exit.Signal != "TERM" {
			t.Errorf("%q, %+v", got, exit)
		}
	})
	t.Run("one timeout for all tries", func(t *testing.T) {
		spec := shell("sleep 0.05; exit 1")
		spec.Restart, spec.Restarts, spec.Timeout = dayfly.RestartOnFailure, dayfly.RestartsMax, time.Second
		if r := g.call(t, spec); !r.Exit.TimedOut {
			t.Errorf("%+v", r.Exit)
		}
	})
}

// processNames: a name belongs to one running process at a time.
func processNames(t *testing.T, s *suite) {
	g := s.guest(t)
	named := func(command string) dayfly.ProcessSpec {
		spec := shell(command)
		spec.Name = "web"
		return spec
	}
	_, first := g.begin(t, named(nap()))
	_, err := g.Run(ctx(t), named("true"), nil)
	wantCode(t, "the same name", err, dayfly.CodeConflict)
	if !strings.Contains(fmt.Sprint(err), first.ID) {
		t.Errorf("%v does not name the process that has it", err)
	}
	if err := g.Signal(ctx(t), first.ID, "KILL", true /* the whole tree */); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Result(ctx(t), first.ID); err != nil {
		t.Fatal(err)
	}
	g.call(t, named("true"))
}

// processUsage: a list of processes tells what each of them uses.
func processUsage(t *testing.T, s *suite) {
	g := s.guest(t)
	spec := shell(fmt.Sprintf("(for i in $(seq 300000); do :; done; echo burnt; exec %s) & wait", nap()))
	spec.Follow = true
	stream, _ := g.begin(t, spec)
	_ = line(t, stream)
	all, err := g.Processes(ctx(t))
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	if p := all[0]; p.Processes != 2 || p.MemoryBytes < 1<<20 || p.CPU < 10*time.Millisecond || p.PID == 0 {
		t.Errorf("%+v", p)
	}
	if err := g.Signal(ctx(t), spec.ID, "KILL", true /* the whole tree */); err != nil {
		t.Fatal(err)
	}
	if _, exit := collect(t, stream, int64(len("burnt\n"))); exit.Signal != "KILL" {
		t.Errorf("%+v", exit)
	}
	if p, err := g.Process(ctx(t), spec.ID); err != nil || p.Processes != 0 || p.MemoryBytes != 0 || p.CPU == 0 {
		t.Errorf("after its end: %+v, %v", p, err)
	}
}

// portIsAwaited: whoever waits for a port hears as soon as something listens on it.
func portIsAwaited(t *testing.T, s *suite) {
	g := s.guest(t)
	stream, p := g.begin(t, shell(s.Inside+" listen 0"))
	port, err := strconv.Atoi(strings.TrimSpace(line(t, stream)))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.AwaitPort(ctx(t), port); err != nil {
		t.Errorf("one that is open: %v", err)
	}
	if err := g.Signal(ctx(t), p.ID, "KILL", true /* the whole tree */); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx(t), 200*time.Millisecond)
	defer cancel()
	if err := g.AwaitPort(short, port); err == nil {
		t.Error("one that is closed is said to be open")
	}
	told := make(chan error, 1)
	go func() { told <- g.AwaitPort(ctx(t), port) }()
	g.sh(t, "sleep 0.1")
	g.begin(t, shell(fmt.Sprintf("%s listen %d", s.Inside, port)))
	if err := <-told; err != nil {
		t.Error(err)
	}
}
