package faults_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var races = flag.Int("races", 175, "extends that race their deadline")

// How a batch of races goes.
const (
	raceBatch  = 25
	raceLease  = 5                     // seconds
	raceMore   = 3                     // seconds that an extend asks for
	raceSpread = 30 * time.Millisecond // around the deadline, both ways
)

// TestRacingExtends is bug 4: it aims extends at the deadline while server, warden or both are stopped or killed: whoever was answered 200
// lives at the old deadline and dies at the new one; everybody else is dead, and told so.
func TestRacingExtends(t *testing.T) {
	w := newWorld(t)
	rng := rand.New(rand.NewPCG(*seed, 0))
	t.Logf("seed %d", *seed)
	kinds := []string{"nothing", "server stopped", "warden stopped", "both stopped", "server killed", "warden killed", "both killed"}
	count := map[string]int{}
	done := 0
	for batch := 0; done < *races && !t.Failed(); batch++ {
		kind := kinds[batch%len(kinds)]
		var boxes []*box
		for i := range raceBatch {
			o := &createOp{key: fmt.Sprintf("%s-race-%d-%d", w.tag, batch, i), seconds: raceLease}
			if settled, err := o.run(w); err != nil || !settled {
				t.Fatalf("make a sandbox to race: %v", err)
			}
		}
		boxes = w.all()
		for what, n := range w.race(t, rng, kind, boxes) {
			count[kind+": "+what] += n
		}
		done += len(boxes)
		if err := w.ready(); err != nil {
			t.Fatal(err)
		}
		err := within(boxMax, func() error {
			for _, b := range boxes {
				b.mu.Lock()
				dead, hi := !b.death.IsZero(), b.hi
				b.mu.Unlock()
				if !dead && time.Since(hi) < agentMax {
					return errNotYet
				}
			}
			return nil
		})
		if err == nil {
			err = w.closeBoxes()
		}
		if err != nil {
			t.Errorf("batch %d, %s: %v", batch, kind, err)
		}
	}
	if err := w.agree(); err != nil {
		t.Error(err)
	}
	for what, n := range count {
		t.Logf("%5d %s", n, what)
	}
}

// race extends each box around its deadline, with the fault in between, and counts the answers.
func (w *world) race(t *testing.T, rng *rand.Rand, kind string, boxes []*box) map[string]int {
	middle := boxes[len(boxes)/2].lo
	var g sync.WaitGroup
	var mu sync.Mutex
	got := map[string]int{}
	ops := make([]*extendOp, len(boxes))
	for i, b := range boxes {
		aim := time.Duration(rng.Int64N(int64(2*raceSpread))) - raceSpread
		ops[i] = &extendOp{b: b, key: fmt.Sprintf("%s-%s", w.tag, b.id), aim: aim, seconds: raceMore, patient: true}
		g.Go(func() {
			before := b.hi
			_, err := ops[i].run(w)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				t.Error(err)
			case b.toldEnd:
				got["gone"]++
			case b.lo.After(before):
				got["extended"]++
			default:
				got["not known"]++
			}
		})
	}
	g.Go(func() {
		pause(time.Until(middle.Add(time.Duration(rng.Int64N(int64(4*raceSpread))) - 2*raceSpread)))
		w.hinder(kind, time.Duration(rng.IntN(800))*time.Millisecond)
	})
	g.Wait()
	return got
}

// hinder stops or kills.
func (w *world) hinder(kind string, length time.Duration) {
	began := time.Now()
	warden := w.s.Warden()
	signal := func(sig unix.Signal, pids ...int) {
		for _, pid := range pids {
			if pid > 1 {
				_ = unix.Kill(pid, sig)
			}
		}
	}
	switch kind {
	case "server stopped":
		signal(unix.SIGSTOP, w.s.PID)
	case "warden stopped":
		signal(unix.SIGSTOP, warden)
	case "both stopped":
		signal(unix.SIGSTOP, w.s.PID, warden)
	case "server killed":
		_ = w.s.Kill()
	case "warden killed":
		signal(unix.SIGKILL, warden)
	case "both killed":
		_ = w.s.Kill()
		signal(unix.SIGKILL, warden)
	default:
		return
	}
	sign := w.sign()
	pause(length)
	signal(unix.SIGCONT, warden)
	if w.s.Running() {
		signal(unix.SIGCONT, w.s.PID)
	} else {
		_ = w.s.Up(testContext()) // the round looks whether it is ready
	}
	w.blind.add(began, time.Now().Add(time.Second), sign)
}
