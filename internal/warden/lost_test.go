package warden_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/warden"
)

// TestLostEventIsNoSpin: the kernel holds the news of a death back for ten milliseconds after that of a birth, and forgets it when
// the control group goes meanwhile. A warden that believes such a machine to live must not end it again and again.
func TestLostEventIsNoSpin(t *testing.T) {
	const machines, lives = 24, 5 * time.Millisecond
	s := newSite(t)
	s.ensure()
	s.end(s.machine(100 * time.Millisecond).id) // by then it watches where groups are made
	var ids []string
	var last time.Duration
	for i := range machines {
		id := dayfly.NewID(dayfly.PrefixSandbox)
		lease := dayfly.NewLease(s.clock.Now(), 1500*time.Millisecond, 0)
		if err := s.guard.Write(id, lease); err != nil {
			t.Fatal(err)
		}
		g, err := s.host.Group(s.installation, id)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Create(dayfly.Limits{}); err != nil {
			t.Fatal(err)
		}
		cmd := sleeper()
		if err := g.StartCmd(cmd); err != nil {
			t.Fatal(err)
		}
		alive := time.NewTimer(time.Duration(i) * lives / machines)
		<-alive.C // long enough for the warden to see it, for some of them
		if err := g.Kill(ctxFor(waitLong)); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
		ids, last = append(ids, id), lease.Deadline
	}
	eventually(t, "it beats a second after the last deadline", func() bool {
		b, err := warden.ReadHeartbeat(s.data)
		return err == nil && b.Boot > last+time.Second
	})
	log, err := os.ReadFile(filepath.Join(s.data, "logs", "warden.log"))
	if err != nil {
		t.Fatal(err)
	}
	ended := map[string]int{}
	for line := range strings.Lines(string(log)) {
		for _, id := range ids {
			if strings.Contains(line, "ended at its deadline") && strings.Contains(line, id) {
				ended[id]++
			}
		}
	}
	for id, n := range ended {
		if n > 2 {
			t.Errorf("%s was ended %d times", id, n)
		}
	}
	if len(ended) != machines {
		t.Errorf("%d of %d were ended", len(ended), machines)
	}
}
