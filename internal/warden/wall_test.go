package warden_test

import (
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/warden"
)

// TestWallClockSteps has a warden whose wall clock reads another time at each look.
func TestWallClockSteps(t *testing.T) {
	for _, by := range []time.Duration{time.Hour, 40 * 365 * 24 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			s := newSite(t)
			s.guard = s.newGuard("one", wallEnv+"="+by.String())
			unreadable := s.machine(200 * time.Millisecond)
			s.damage(unreadable.id, "garbage")
			s.ensure()
			m, longer := s.machine(700*time.Millisecond), s.machine(time.Hour)
			lease, err := s.guard.Read(m.id)
			if err != nil {
				t.Fatal(err)
			}
			first := s.wardenPID()
			if late := s.until(m, lease.Deadline); late < 0 || late > lateMax {
				t.Errorf("ended %v after its deadline", late)
			}
			if e := s.end(m.id); e.Cause != warden.CauseLeaseExpired || e.Boot < lease.Deadline {
				t.Errorf("end = %+v", e)
			}
			if !s.alive(longer) || !s.alive(unreadable) {
				t.Errorf("a step ended a machine: of a lease of an hour %v, of one that cannot be read %v", !s.alive(longer), !s.alive(unreadable))
			}
			if err := s.guard.Alive(); err != nil || s.wardenPID() != first {
				t.Errorf("Alive: %v", err)
			}
		})
	}
}

// TestUnreadableLeaseOfAnOldMachine: what has run for longer than any lease ends, whenever its file says that it was written.
func TestUnreadableLeaseOfAnOldMachine(t *testing.T) {
	s := newSite(t)
	m := s.machine(200 * time.Millisecond)
	s.damage(m.id, "garbage")
	s.guard = s.newGuard("one", aheadEnv+"="+(dayfly.LeaseCeiling+time.Minute).String())
	s.ensure()
	s.dies(m)
}
