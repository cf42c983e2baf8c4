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
