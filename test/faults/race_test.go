package faults_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

var races = flag.Int("races", 175, "extends that race their deadline, over all kinds of faults")

// How a batch of races goes.
const (
	raceBatch  = 25
	raceMakers = 3                     // creates at once
	raceLease  = 12 * time.Second      // of the first one: time for a busy machine to make all
	raceLeast  = 8                     // seconds of the last one: a start that takes longer than the lease fails
	raceMore   = 3                     // seconds that an extend asks for
	raceSpread = 30 * time.Millisecond // around the deadline, both ways
)

// TestRacingExtends is bug 4: it aims extends at the deadline while server, warden or both are stopped or killed: whoever was answered 200
// lives at the old deadline and dies at the new one; everybody else is dead, and told so.
func TestRacingExtends(t *testing.T) {
	t.Parallel()
	kinds := []string{"nothing", "server stopped", "warden stopped", "both stopped", "server killed", "warden killed", "both killed"}
	for first := range worldsMax {
		t.Run(fmt.Sprint("world ", first), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			rng := rand.New(rand.NewPCG(*seed, uint64(first)))
			t.Logf("seed %d", *seed)
			for i := first; i < len(kinds); i += worldsMax {
				t.Run(kinds[i], func(t *testing.T) {
					count := map[string]int{}
					for done := 0; done < *races/len(kinds) && !t.Failed(); {
						done += w.raceBatch(t, rng, kinds[i], count)
					}
					for what, n := range count {
						t.Logf("%5d %s", n, what)
					}
				})
			}
			w.agrees(t)
		})
	}
}

// raceBatch races a number of sandboxes and looks how each of them ended; how many there were.
func (w *world) raceBatch(t *testing.T, rng *rand.Rand, kind string, count map[string]int) int {
	t.Helper()
	w.raceBoxes(t)
	boxes := w.all()
	for what, n := range w.race(t, rng, kind, boxes) {
		count[what] += n
	}
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
		t.Error(err)
	}
	return len(boxes)
}

// raceBoxes makes sandboxes that are due at about the same time: those that are made later get less.
func (w *world) raceBoxes(t *testing.T) {
	t.Helper()
	due := time.Now().Add(raceLease)
	var g errgroup.Group
	g.SetLimit(raceMakers)
	for i := range raceBatch {
		g.Go(func() error {
			seconds := max(raceLeast, int(time.Until(due)/time.Second))
			return w.settle(&createOp{key: fmt.Sprintf("%s-race-%d-%d", w.tag, time.Now().UnixNano(), i), seconds: seconds})
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatalf("make sandboxes to race: %v", err)
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
