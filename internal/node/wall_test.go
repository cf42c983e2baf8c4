package node_test

import (
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/node"
)

func TestWallClockSteps(t *testing.T) {
	for name, by := range map[string]time.Duration{"an hour forward": time.Hour, "an hour back": -time.Hour, "decades forward": 40 * 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			sb, crashed, due := w.create(), w.create(), w.create()
			sb.StampReady(w.clock.Now())
			w.clock.step(10 * time.Minute)
			w.clock.setWall(by)
			if _, err := w.manager.Sweep(ctxFor(t), []dayfly.Sandbox{sb, crashed, due}, false, w.note); err != nil || !w.lives(sb) {
				t.Errorf("Sweep = %v, it lives: %v", err, w.lives(sb))
			}
			if lease, ended, err := w.manager.Expire(ctxFor(t), sb.ID); err != nil || ended || lease.Remaining(w.clock.Now()) != 50*time.Minute {
				t.Errorf("Expire = %+v, %v, %v", lease, ended, err)
			}
			rec, err := w.restart(sb, crashed, due)
			if err != nil || len(rec.Running) != 3 || rec.Running[0].Lease.Remaining(w.clock.Now()) != 50*time.Minute {
				t.Fatalf("Recover = %+v, %v", rec, err)
			}
			w.manager.Close()
			died := w.clock.Now()
			w.leases.seen = died.Wall // the warden's last sign of life, by the clock of now
			w.kill(crashed.ID)
			w.kill(due.ID)
			w.leases.ends[due.ID] = node.LeaseEnd{BootID: bootTest, Boot: died.Boot - time.Minute}
			w.clock.setWall(by)
			w.leases.seen = w.leases.seen.Add(by)
			w.clock.step(10 * time.Minute)
			rec, err = w.restart(sb, crashed, due)
			if err != nil || len(rec.Running) != 1 || len(rec.Ended) != 2 {
				t.Fatalf("Recover = %+v, %v", rec, err)
			}
			for _, e := range rec.Ended {
				want := died.Boot
				if e.ID == due.ID {
					want -= time.Minute
				}
				if e.Boot != want || e.Reason != dayfly.EndCrashed || !e.At.Equal(w.clock.Now().WallAt(want)) {
					t.Errorf("end %+v, want at %s of the boot, which is %s", e, want, w.clock.Now().WallAt(want))
				}
			}
			w.clock.step(40*time.Minute - 1)
			if _, ended, err := w.manager.Expire(ctxFor(t), sb.ID); err != nil || ended {
				t.Errorf("ended before its deadline: %v, %v", ended, err)
			}
			w.clock.step(1)
			if _, ended, err := w.manager.Expire(ctxFor(t), sb.ID); err != nil || !ended {
				t.Errorf("not ended at its deadline: %v", err)
			}
		})
	}
}
