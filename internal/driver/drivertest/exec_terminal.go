package drivertest

import (
	"fmt"
	"strings"
	"testing"

	"dayfly.dev/dayfly"
)

// onTerminal puts a command onto a terminal.
func onTerminal(command string) dayfly.ProcessSpec {
	spec := shell(command)
	spec.Terminal = &dayfly.TerminalSize{Cols: 80, Rows: 24}
	spec.Follow, spec.OnDisconnect = true, dayfly.DisconnectContinue
	return spec
}

// plain is a terminal's output without what its line discipline added.
func plain(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }

// terminalOutput: with a terminal the output is as complete as without, also to one who leaves in the middle and comes back.
func terminalOutput(t *testing.T, s *suite) {
	g := s.guest(t)
	const lines = 50_000
	command := fmt.Sprintf("seq %d; echo END; exit 6", lines)
	want := g.sh(t, fmt.Sprintf("seq %d; echo END", lines))
	t.Run("to the end", func(t *testing.T) {
		stream, p := g.begin(t, onTerminal(command))
		if p.Terminal == nil || *p.Terminal != (dayfly.TerminalSize{Cols: 80, Rows: 24}) {
			t.Errorf("its size is %v", p.Terminal)
		}
		if got, exit := collect(t, stream, 0); plain(got) != want || exit.Code != 6 || exit.StdoutBytes != int64(len(got)) {
			t.Errorf("%d bytes of %d, %+v", len(plain(got)), len(want), exit)
		}
	})
	t.Run("a slow reader", func(t *testing.T) {
		const more = 1_500_000 // 10 MiB, more than any buffer on the way holds
		want := g.sh(t, fmt.Sprintf("seq %d | tail -n 3", more))
		stream, p := g.begin(t, onTerminal(fmt.Sprintf("seq %d; exit 6", more)))
		first := line(t, stream)
		for range 5 { // the command waits meanwhile, and others do not
			if r, err := g.Process(ctx(t), p.ID); err != nil || r.Status != dayfly.ProcessRunning {
				t.Fatalf("%+v, %v: it went on without its reader", r.Exit, err)
			}
			g.sh(t, "sleep 0.1")
		}
		got, exit := collect(t, stream, int64(len(first)))
		if got = plain(first + got); strings.Count(got, "\n") != more || !strings.HasSuffix(got, want) || exit.Code != 6 {
			t.Errorf("%d lines of %d, %+v", strings.Count(got, "\n"), more, exit)
		}
	})
	t.Run("a reader that leaves", func(t *testing.T) {
		stream, p := g.begin(t, onTerminal("read x; "+command))
		if err := g.WriteStdin(ctx(t), p.ID, strings.NewReader("go\n"), false /* stays open */); err != nil {
			t.Fatal(err)
		}
		first := line(t, stream)
		_ = stream.Close()
		r, err := g.Result(ctx(t), p.ID)
		if err != nil || r.Exit.Code != 6 {
			t.Fatalf("%+v, %v", r.Exit, err)
		}
		out, err := g.again(t).Output(ctx(t), p.ID, dayfly.Offsets{Stdout: int64(len(first))}, true /* follow */)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		got, exit := collect(t, out, int64(len(first)))
		if !strings.HasSuffix(plain(first+got), want) || exit.Code != 6 {
			t.Errorf("%d bytes of %d, %+v", len(plain(first+got)), len(want), exit)
		}
	})
	t.Run("without one nothing can be resized", func(t *testing.T) {
		_, p := g.begin(t, shell("cat"))
		wantCode(t, "resize", g.Resize(ctx(t), p.ID, dayfly.TerminalSize{Cols: 1, Rows: 1}), dayfly.CodeConflict)
	})
	t.Run("its size is what was asked for", func(t *testing.T) {
		stream, p := g.begin(t, onTerminal("trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done"))
		if got := plain(line(t, stream)); got != "24 80\n" {
			t.Errorf("at first %q", got)
		}
		if err := g.Resize(ctx(t), p.ID, dayfly.TerminalSize{Cols: 132, Rows: 43}); err != nil {
			t.Fatal(err)
		}
		if got := plain(line(t, stream)); got != "43 132\n" {
			t.Errorf("resized to %q", got)
		}
		if err := g.Signal(ctx(t), p.ID, "KILL", true /* the whole tree */); err != nil {
			t.Error(err)
		}
	})
}

// terminalJobs: when the leader of a terminal is gone, the foreground group is hung up, and so is a job that is stopped, which
// nobody could wake. Other jobs of the background live on, and so does who ignores it. This is what Linux does. A user-space
// kernel that tells nobody which group is in the foreground, and hangs none up, leaves a job there alone whose shell was killed:
// no shell exits while one runs.
func terminalJobs(t *testing.T, s *suite) {
	g := s.guest(t)
	for _, tt := range []struct {
		name    string
		command string // %[1]s is dead afterwards, %[2]s lives
		killed  bool   // the leader is killed, once both run; else it exits
	}{
		{"a job in the background, and the shell exits", "set -m; %[2]s & %[1]s & kill %%2; sleep 0.1", false},
		{"without job control the background is the shell's own group", "%[1]s & nohup %[2]s > /dev/null 2>&1 & sleep 0.1", false},
		{"a stopped job", "set -m; %[2]s & %[1]s & kill -STOP $!; until ps -o stat= -p $! | grep -q T; do :; done", false},
		{"a job in the foreground, and the shell is killed", "set -m; %[2]s & echo $$ > leader; %[1]s; echo after", true},
		{"the shell's own group in the background", "%[2]s & set -m; echo $$ > leader; %[1]s; echo after", true},
		{"a job in the foreground that ignores it", "set -m; %[1]s & kill $!; echo $$ > leader; (trap '' HUP; exec %[2]s); echo after", true},
		{"several processes in the foreground", "set -m; %[2]s & echo $$ > leader; %[1]s | cat; echo after", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dies, stays := nap(), nap()
			defer g.endNap(t, dies, stays)
			spec := onTerminal("")
			spec.Command, spec.Argv = "", []string{"bash", "-c", fmt.Sprintf(tt.command, dies, stays)}
			stream, p := g.begin(t, spec)
			if tt.killed {
				eventually(t, "the jobs run", func() bool { return g.runs(t, stays) && (g.runs(t, dies) || strings.Contains(tt.command, "kill $!")) })
				g.sh(t, "kill -KILL $(cat leader)")
			}
			if got, exit := collect(t, stream, 0); tt.killed && exit.Signal != "KILL" || !tt.killed && exit.Code != 0 {
				t.Errorf("%q, %+v", got, exit)
			}
			if !s.UserKernel || !tt.killed {
				eventually(t, "the one is hung up", func() bool { return !g.runs(t, dies) })
			}
			if s.UserKernel && strings.HasPrefix(tt.name, "the shell's own group") {
				t.Skip("it is taken to be in the foreground here")
			}
			if !g.runs(t, stays) {
				t.Error("the other one is gone, too")
			}
			if state := strings.TrimSpace(g.sh(t, "ps -o stat= -p $(pgrep -xf '"+stays+"')")); strings.HasPrefix(state, "T") {
				t.Errorf("it is left stopped: %s", state)
			}
			if err := g.Signal(ctx(t), p.ID, "KILL", true /* the whole tree */); err != nil {
				t.Error(err)
			}
			if g.runs(t, stays) || g.runs(t, dies) {
				t.Error("the kill did not reach them")
			}
		})
	}
}
