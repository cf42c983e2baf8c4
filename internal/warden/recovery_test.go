package warden_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/warden"
)

// TestUnwatchedSurvivesStartsThatAreCutOff: what ended while nobody watched is dated by the warden that could have seen it,
// not by one that a cut-off start brought up.
func TestUnwatchedSurvivesStartsThatAreCutOff(t *testing.T) {
	dir := t.TempDir()
	beat := func(boot time.Duration) {
		t.Helper()
		path := filepath.Join(dir, "warden", "heartbeat")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		text := []byte(`{"boot_id":"b","boottime_ns":` + boot.String()[:len(boot.String())-1] + `000000000,"wall":"2031-05-01T12:00:00Z","pid":1,"build":"x"}`)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wall := time.Date(2031, 5, 1, 12, 0, 0, 0, time.UTC)
	clock := fixedClock{dayfly.Instant{Wall: wall, Boot: 50 * time.Second, BootID: "b"}}
	start := func() *warden.Guard {
		t.Helper()
		g, err := warden.NewGuard(warden.GuardOptions{DataDir: dir, Clock: clock, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.BeginRecovery(); err != nil {
			t.Fatal(err)
		}
		return g
	}
	want := func(g *warden.Guard, ago time.Duration) {
		t.Helper()
		if since, ok := g.Unwatched(); !ok || !since.Equal(wall.Add(-ago)) {
			t.Errorf("unwatched since %v, %v; want %v", since, ok, wall.Add(-ago))
		}
	}
	beat(10 * time.Second)
	want(start(), 40*time.Second)
	beat(30 * time.Second) // of the warden that the first start brought up before it was cut off
	g := start()
	want(g, 40*time.Second)
	if err := g.EndRecovery(); err != nil {
		t.Fatal(err)
	}
	want(start(), 20*time.Second)
}

type fixedClock struct{ now dayfly.Instant }

func (c fixedClock) Now() dayfly.Instant { return c.now }

// TestAWardenThatLivesHasWatched: a server that restarts beside a living warden has missed nothing; beside a new one it has.
func TestAWardenThatLivesHasWatched(t *testing.T) {
	s := newSite(t)
	if err := s.guard.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := s.newGuard("one")
	if since, ok := again.Unwatched(); ok {
		t.Errorf("unwatched since %v beside a warden that lives", since)
	}
	last := s.wardenPID()
	_ = syscall.Kill(last, syscall.SIGKILL)
	eventually(t, "it is dead", func() bool { return s.wardenPID() == 0 })
	if err := again.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, ok := again.Unwatched(); !ok {
		t.Error("a new warden passes for one that watched")
	}
}
