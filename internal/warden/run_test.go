package warden_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/clock"
	"dayfly.dev/dayfly/internal/warden"
)

// lateMax is what these tests allow on a loaded machine; the benchmark says what is usual.
const lateMax = 2 * time.Second

func TestEndsAtTheDeadline(t *testing.T) {
	s := newSite(t)
	s.ensure()
	if err := s.guard.Alive(); err != nil {
		t.Fatalf("Alive: %v", err)
	}
	m := s.machine(300 * time.Millisecond)
	longer := s.machine(time.Hour)
	lease, err := s.guard.Read(m.id)
	if err != nil {
		t.Fatal(err)
	}
	if late := s.until(m, lease.Deadline); late < 0 || late > lateMax {
		t.Errorf("ended %v after its deadline", late)
	}
	e := s.end(m.id)
	if e.Cause != warden.CauseLeaseExpired || !e.Killed || e.BootID != s.clock.Now().BootID || e.Boot < lease.Deadline {
		t.Errorf("end = %+v", e)
	}
	if !s.alive(longer) {
		t.Error("a machine whose time has not come is dead")
	}
	if err := s.guard.Remove(m.id); err != nil {
		t.Fatal(err)
	}
	if entries, _ := filepath.Glob(filepath.Join(s.dir.Path(), m.id+"*")); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestCrashIsRecorded(t *testing.T) {
	s := newSite(t)
	s.ensure()
	m := s.machine(time.Hour)
	s.end(s.machine(100 * time.Millisecond).id) // by then the warden has seen the first one live
	before := clock.Boot()
	_ = m.cmd.Process.Kill()
	s.dies(m)
	if e := s.end(m.id); e.Cause != warden.CauseEmptied || e.Killed || e.Boot < before {
		t.Errorf("end = %+v", e)
	}
}

func TestOutlivesKill9(t *testing.T) {
	s := newSite(t)
	s.ensure()
	m := s.machine(1500 * time.Millisecond)
	lease, _ := s.guard.Read(m.id)
	first := s.wardenPID()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kill is seen", func() bool { return dayfly.ErrorCode(s.guard.Alive()) == dayfly.CodeUnavailable })
	s.ensure()
	if second := s.wardenPID(); second == first || second == 0 {
		t.Fatalf("warden is %d, was %d", second, first)
	}
	if late := s.until(m, lease.Deadline); late < 0 || late > lateMax {
		t.Errorf("ended %v after its deadline", late)
	}
}

func TestStoppedWardenIsReplaced(t *testing.T) {
	s := newSite(t)
	s.ensure()
	first := s.wardenPID()
	if err := syscall.Kill(first, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	m := s.machine(time.Second)
	lease, _ := s.guard.Read(m.id)
	eventually(t, "its heartbeat is old", func() bool { return dayfly.ErrorCode(s.guard.Alive()) == dayfly.CodeUnavailable })
	if !s.alive(m) {
		t.Fatal("something else than the stopped warden ended it")
	}
	s.ensure()
	if s.wardenPID() == first {
		t.Error("the stopped warden is still in office")
	}
	s.until(m, lease.Deadline)
}

func TestSecondWardenRefuses(t *testing.T) {
	s := newSite(t)
	s.ensure()
	err := warden.Run(t.Context(), warden.Options{DataDir: s.data, Build: "two", Clock: s.clock, Log: discard()})
	if dayfly.ErrorCode(err) != dayfly.CodeConflict {
		t.Errorf("Run = %v, want conflict", err)
	}
}

func TestNewerBuildTakesOver(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		name := "willing"
		if stopped {
			name = "stopped"
		}
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.ensure()
			first := s.wardenPID()
			m := s.machine(time.Hour)
			soon := s.machine(500 * time.Millisecond)
			lease, _ := s.guard.Read(soon.id)
			if stopped {
				_ = syscall.Kill(first, syscall.SIGSTOP)
			}
			if err := s.newGuard("two").Ensure(ctxFor(waitLong)); err != nil {
				t.Fatalf("Ensure: %v", err)
			}
			b, err := warden.ReadHeartbeat(s.data)
			if err != nil || b.Build != "two" || b.PID == first || b.PID != s.wardenPID() {
				t.Errorf("heartbeat = %+v, %v", b, err)
			}
			s.until(soon, lease.Deadline)
			if !s.alive(m) {
				t.Error("the takeover ended a machine")
			}
			if _, err := os.Stat(filepath.Join(s.data, "warden", "handover")); !os.IsNotExist(err) {
				t.Errorf("the handover file is left: %v", err)
			}
		})
	}
}

func TestLeavesWhenNobodyNeedsIt(t *testing.T) {
	t.Run("server runs", func(t *testing.T) {
		s := newSite(t)
		s.ensure()
		m := s.machine(200 * time.Millisecond)
		s.dies(m)
		s.end(m.id)
		_ = s.guard.Remove(m.id)
		pid := s.wardenPID()
		first, _ := warden.ReadHeartbeat(s.data)
		eventually(t, "three more heartbeats", func() bool {
			b, err := warden.ReadHeartbeat(s.data)
			return err == nil && b.Boot > first.Boot+2500*time.Millisecond
		})
		if s.wardenPID() != pid {
			t.Error("it left although the server runs")
		}
		if err := s.guard.Leaving(ctxFor(waitLong)); err != nil {
			t.Errorf("Leaving: %v", err)
		}
	})
	t.Run("server is gone", func(t *testing.T) {
		s := newSite(t)
		s.ensure()
		m := s.machine(1500 * time.Millisecond)
		s.unlock()
		_ = syscall.Kill(s.wardenPID(), syscall.SIGTERM) // not while it is needed
		s.dies(m)
		eventually(t, "it leaves after the last machine", func() bool { return s.wardenPID() == 0 })
		if e := s.end(m.id); e.Cause != warden.CauseLeaseExpired {
			t.Errorf("end = %+v", e)
		}
	})
}

func TestLastBootIsRemembered(t *testing.T) {
	s := newSite(t)
	if at, ok := s.guard.LastSeen(); ok {
		t.Fatalf("LastSeen = %v before any warden ran", at)
	}
	died := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	before := fmt.Sprintf(`{"boot_id":"another","boottime_ns":1,"wall":%q,"pid":1,"build":"one"}`, died.Format(time.RFC3339))
	file := filepath.Join(s.data, "warden", "heartbeat")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(before), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"before a warden of this boot runs", "with a warden of this boot", "with a second one of this boot"} {
		if at, ok := s.guard.LastSeen(); !ok || !at.Equal(died) {
			t.Errorf("%s LastSeen = %v, %v, want %v", when, at, ok, died)
		}
		if pid := s.wardenPID(); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			eventually(t, "it is dead", func() bool { return s.wardenPID() == 0 })
		}
		s.ensure()
	}
}
