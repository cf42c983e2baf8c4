package warden_test

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/clock"
	"dayfly.dev/dayfly/internal/warden"
)

// dead makes a machine that died while nobody watched, a while before its deadline, and waits for that.
func (s *site) dead() machine {
	s.t.Helper()
	m := s.machine(200 * time.Millisecond)
	_ = m.cmd.Process.Kill()
	s.dies(m)
	lease, err := s.guard.Read(m.id)
	if err != nil {
		s.t.Fatal(err)
	}
	<-time.After(lease.Deadline - clock.Boot() + time.Millisecond) // the lease is over, with nobody there
	return m
}

// TestWhatDiedUnseenIsNotCalledExpired: an enforcer that comes to a dead machine knows no more than that.
func TestWhatDiedUnseenIsNotCalledExpired(t *testing.T) {
	for _, by := range []string{"warden", "server"} {
		t.Run(by, func(t *testing.T) {
			s := newSite(t)
			m := s.dead()
			before := clock.Boot()
			if by == "warden" {
				s.ensure()
			} else if _, ended, err := s.guard.End(ctxFor(waitLong), m.id); err != nil || !ended {
				t.Fatalf("End = %v, %v", ended, err)
			}
			if e := s.end(m.id); e.Cause != warden.CauseFound || e.Killed || e.Boot < before {
				t.Errorf("end = %+v", e)
			}
			lease, _ := s.guard.Read(m.id)
			lease.Deadline += time.Hour
			if err := s.guard.Renew(ctxFor(waitLong), m.id, lease); dayfly.ErrorCode(err) != dayfly.CodeGone {
				t.Errorf("Renew of a dead machine = %v", err)
			}
		})
	}
}

// TestAKillThatACrashCutOffIsDatedByItsMark: whoever finishes it comes late, and that is no later end.
func TestAKillThatACrashCutOffIsDatedByItsMark(t *testing.T) {
	for _, tt := range []struct {
		name  string
		marks []string
		later bool // an extend that lost to the kill left its lease
	}{
		{"its own", []string{"warden"}, false},
		{"another enforcer's", []string{"server"}, false},
		{"both", []string{"server", "warden"}, false},
		{"its own, of a lease that an extend replaced", []string{"warden"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			m := s.dead()
			lease, _ := s.guard.Read(m.id)
			alive := lease.Deadline + time.Microsecond
			for _, name := range tt.marks {
				content := "killing " + strconv.FormatInt(int64(alive), 10)
				if err := os.WriteFile(filepath.Join(s.dir.Path(), m.id+".ending."+name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if tt.later {
				lease.Deadline += time.Hour
				lease.Ceiling = max(lease.Ceiling, lease.Deadline)
				if err := s.guard.Write(m.id, lease); err != nil {
					t.Fatal(err)
				}
			}
			s.ensure()
			var e warden.End
			eventually(t, "the end is on record", func() (ok bool) {
				var err error
				if e, ok, err = s.dir.ReadEnd(m.id); err != nil {
					t.Fatal(err)
				}
				return ok
			})
			if e.Cause != warden.CauseLeaseExpired || e.Killed || e.Boot != alive {
				t.Errorf("end = %+v, want lease_expired at %s", e, alive)
			}
		})
	}
}

// TestAStoppedEnforcerDatesNothingToWhenItWoke: stopped between kill and record, it does not know when the machine died.
func TestAStoppedEnforcerDatesNothingToWhenItWoke(t *testing.T) {
	s := newSite(t)
	s.ensure()
	m := s.machine(500 * time.Millisecond)
	lease, _ := s.guard.Read(m.id)
	pid := s.wardenPID()
	mark := filepath.Join(s.dir.Path(), m.id+".ending.server")
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	<-time.After(lease.Deadline - clock.Boot())
	alive := clock.Boot() // another enforcer sees it alive, kills it, and is stopped too
	if err := os.WriteFile(mark, []byte("killing "+strconv.FormatInt(int64(alive), 10)), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = m.cmd.Process.Kill()
	s.dies(m)
	<-time.After(time.Second)
	_ = syscall.Kill(pid, syscall.SIGCONT)
	var e warden.End
	eventually(t, "the end is on record", func() (ok bool) { e, ok, _ = s.dir.ReadEnd(m.id); return ok })
	_ = os.Remove(mark)
	if e.Cause != warden.CauseLeaseExpired || e.Boot != alive {
		t.Errorf("end = %+v, want lease_expired at %s", e, alive)
	}
}

func TestDecision(t *testing.T) {
	for _, tt := range []struct {
		content string
		begun   bool
		alive   time.Duration
	}{
		{"", false, 0},
		{"killing", true, 0}, // of an earlier version
		{"killing 12", true, 12},
		{"killing 12\n", true, 12},
		{"killing -1", true, 0},
		{"killing 99999999999999999999", true, 0},
		{"killing x", true, 0},
		{"12", false, 0},
	} {
		t.Run(tt.content, func(t *testing.T) {
			if begun, alive := warden.Decision(tt.content); begun != tt.begun || alive != tt.alive {
				t.Errorf("%v, %v", begun, alive)
			}
		})
	}
}

func FuzzDecision(f *testing.F) {
	f.Add("killing 12")
	f.Fuzz(func(t *testing.T, content string) {
		if begun, alive := warden.Decision(content); alive < 0 || !begun && alive > 0 {
			t.Errorf("%v, %v", begun, alive)
		}
	})
}
