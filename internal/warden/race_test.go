package warden_test

import (
	"sync"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/clock"
)

// Extends are fired each millisecond around the deadline of many machines, with the warden and this process's reaper both
// enforcing. Whoever was told "extended" lives; everybody else is dead.
func TestExtendRacesTheDeadline(t *testing.T) {
	const machines, around = 200, 15 * time.Millisecond
	s := newSite(t)
	s.ensure()
	var wg sync.WaitGroup
	var mu sync.Mutex
	won, lost, unknown := 0, 0, 0
	for i := range machines {
		m := s.machine(400 * time.Millisecond)
		lease, err := s.guard.Read(m.id)
		if err != nil {
			t.Fatal(err)
		}
		at := lease.Deadline - around + time.Duration(i%31)*time.Millisecond
		wg.Go(func() {
			<-time.After(at - clock.Boot())
			if i%2 == 0 {
				wg.Go(func() { _, _, _ = s.guard.End(ctxFor(waitLong), m.id) })
			}
			longer, _, err := lease.Extend(s.clock.Now(), time.Hour)
			if err == nil {
				err = s.guard.Renew(ctxFor(waitLong), m.id, longer)
			}
			<-time.After(300 * time.Millisecond) // any enforcer that is going to kill has begun by then
			mu.Lock()
			defer mu.Unlock()
			switch code := dayfly.ErrorCode(err); {
			case err == nil && s.alive(m):
				won++
			case code == dayfly.CodeGone:
				lost++
				if _ = m.cmd.Wait(); s.alive(m) { // a lost race ends the machine
					t.Error("told gone, and it lives")
				}
			case code == dayfly.CodeUnavailable:
				unknown++
			default:
				t.Errorf("extend = %v, alive = %v", err, s.alive(m))
			}
		})
	}
	wg.Wait()
	t.Logf("%d won, %d lost, %d not known", won, lost, unknown)
	if won == 0 || lost == 0 {
		t.Errorf("%d won and %d lost: the race was none", won, lost)
	}
}
