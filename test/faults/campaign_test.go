package faults_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/test/host"
)

// firedMax is how long a round waits for its failpoint: not every round comes past it.
const firedMax = 1500 * time.Millisecond

// badMax ends a campaign that has shown enough.
const badMax = 20

// stopLate is how long a process may take between reading that it shall stop and stopping.
const stopLate = 100 * time.Millisecond

func testContext() context.Context { return context.Background() }

// worldsMax is how many servers the rounds of a campaign are dealt to, which work at once.
const worldsMax = 3

// tally counts what became of the failpoints of all worlds.
type tally struct {
	sync.Mutex
	fired, missed map[string]int
	bad           int
}

// TestCampaign kills at random, restarts, and looks whether every promise was kept.
func TestCampaign(t *testing.T) {
	t.Parallel()
	points, err := failpoints()
	if err != nil || len(points) < 50 {
		t.Fatalf("%d failpoints found in the source (%v)", len(points), err)
	}
	all := &tally{fired: map[string]int{}, missed: map[string]int{}}
	began := time.Now()
	t.Cleanup(func() {
		t.Logf("%d rounds in %s, %d with a broken promise, %d of %d failpoints fired", *rounds, time.Since(began).Round(time.Second), all.bad, len(all.fired), len(points))
		maps.DeleteFunc(all.missed, func(point string, _ int) bool { return all.fired[point] > 0 })
		t.Logf("armed and never fired: %v", all.missed)
	})
	for first := range min(worldsMax, *rounds) {
		t.Run(fmt.Sprint("world ", first), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for i := first; i < *rounds && t.Context().Err() == nil; i += worldsMax {
				if w.campaignRound(t, i, points, all) >= badMax {
					break
				}
			}
			if err := w.panicked(); err != nil {
				t.Error(err)
			}
		})
	}
}

// campaignRound is one round and its report; how many were bad up to now.
func (w *world) campaignRound(t *testing.T, i int, points []string, all *tally) (bad int) {
	t.Helper()
	n := *seed + uint64(i)
	p, err := w.round(n, points)
	all.Lock()
	defer all.Unlock()
	if p.fired {
		all.fired[p.point]++
	} else if p.point != "" {
		all.missed[p.point]++
	}
	took := "ok"
	if err != nil {
		all.bad++
		took = "FAILED"
		t.Errorf("round %d, seed %d: %s\n\t%v\n\tagain: go test ./test/faults -run Campaign -rounds 1 -seed %d", i, n, p, err, n)
	}
	t.Logf("round %d, seed %d: %s: %s", i, n, p, took)
	return all.bad
}

var hitPattern = regexp.MustCompile(`failpoint\.Hit\("([^"]+)"\)`)

// failpoints finds the names of all failpoints in the source.
func failpoints() ([]string, error) {
	seen := map[string]bool{}
	for _, root := range []string{"../../internal", "../../cmd"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "internal/failpoint/") {
				return err
			}
			b, err := os.ReadFile(path)
			for _, m := range hitPattern.FindAllSubmatch(b, -1) {
				seen[string(m[1])] = true
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	var names []string
	for name := range seen {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// plan is what a round does to whom.
type plan struct {
	point   string        // armed, or empty
	action  string        // kill or stop
	hit     int           // which passage
	restart bool          // the point is on the way of a start: it is armed between two of them
	delay   time.Duration // before the signals, without a point
	server  bool          // killed
	warden  bool          // killed
	part    string        // of one sandbox killed, or empty
	freeze  string        // server or warden: stopped for a while instead of killed, or empty
	down    time.Duration // between the kill and the restart, or the length of the freeze
	fired   bool
}

func (p plan) String() string {
	var what []string
	if p.point != "" {
		what = append(what, fmt.Sprintf("%s at %s,%d fired=%v", p.action, p.point, p.hit, p.fired))
	} else {
		what = append(what, "after "+p.delay.String())
	}
	for name, on := range map[string]bool{"server": p.server, "warden": p.warden, "a sandbox's " + p.part: p.part != ""} {
		if on {
			what = append(what, "kill "+name)
		}
	}
	if p.freeze != "" {
		what = append(what, "freeze "+p.freeze)
	}
	slices.Sort(what)
	return strings.Join(what, ", ") + fmt.Sprintf(", %s down", p.down)
}

var startPoints = []string{"control.recover.", "node.recover.", "node.sweep.", "control.sweep.", "warden.finish.", "warden.resolve.", "first."}

// rarePoints are parts of the names of points that a round comes past once, if at all.
var rarePoints = []string{"image.", ".key.", "agent.write."}

// newPlan makes a plan; point is the failpoint whose turn it is, so that a long campaign comes past all of them.
func newPlan(rng *rand.Rand, point string) plan {
	p := plan{down: time.Duration(rng.IntN(1200)) * time.Millisecond}
	if rng.IntN(10) < 7 {
		p.point, p.hit, p.action = point, 1, "kill"
		if *only != "" {
			p.point = *only
		}
		p.restart = slices.ContainsFunc(startPoints, func(s string) bool { return strings.HasPrefix(p.point, s) })
		once := p.restart || *only != "" || slices.ContainsFunc(rarePoints, func(s string) bool { return strings.Contains(p.point, s) })
		if rng.IntN(4) == 0 && !once {
			p.hit = 2
		}
		if rng.IntN(3) == 0 && !p.restart && !strings.HasPrefix(p.point, "agent.") {
			p.action = "stop"
		}
	} else {
		p.delay = time.Duration(rng.IntN(600)) * time.Millisecond
	}
	switch rng.IntN(8) {
	case 0, 1, 2:
		p.server = true
	case 3:
		p.warden = true
	case 4:
		p.server, p.warden = true, true
	case 5:
		p.part = host.PartFirst
	case 6:
		p.server, p.warden, p.part = true, true, host.PartFirst
	case 7:
		p.freeze = []string{"server", "warden"}[rng.IntN(2)]
	}
	if all := parts(); len(all) > 1 && (p.part != "" || rng.IntN(3) == 0) { // more that can be killed, so more often
		p.part = all[rng.IntN(len(all))]
	}
	return p
}

// round is one fault among operations, a restart, and the check of everything.
func (w *world) round(n uint64, points []string) (plan, error) {
	rng := rand.New(rand.NewPCG(n, 0))
	p := newPlan(rng, points[n%uint64(len(points))])
	for len(w.all()) < 3 {
		if settled, err := (&createOp{key: fmt.Sprintf("%s-fill-%d-%d", w.tag, n, rng.IntN(1<<30)), seconds: 7}).run(w); err != nil || !settled {
			return p, errors.Join(errors.New("cannot make a sandbox before the round"), err)
		}
	}
	ops := w.choose(rng, int(n%1e6))
	if len(w.all()) > boxesMax {
		ops = append(ops, &deleteOp{w.all()[0]})
	}
	victim := w.anyBox(rng)
	if o := w.provoke(p.point, int(n%1e6), victim); o != nil {
		ops = append(ops, o)
	}
	if p.point != "" && !p.restart {
		w.arm(p, victim)
	}
	var g sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	var again []operation
	for _, o := range ops {
		wait := time.Duration(rng.IntN(400)) * time.Millisecond
		g.Go(func() {
			pause(wait)
			settled, err := o.run(w)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
			}
			if !settled {
				again = append(again, o)
			}
		})
	}
	if err := w.strike(&p, victim); err != nil {
		errs = append(errs, err)
	}
	g.Wait()
	w.disarm()
	errs = append(errs, w.ready())
	for _, o := range again {
		errs = append(errs, w.settle(o))
	}
	for _, o := range ops {
		errs = append(errs, o.check(w))
	}
	errs = append(errs, w.agree(), w.closeBoxes())
	return p, errors.Join(errs...)
}

// settle runs an operation again, as a client would, until its outcome is known.
func (w *world) settle(o operation) error {
	return within(settleMax, func() error {
		settled, err := o.run(w)
		if err == nil && !settled {
			err = fmt.Errorf("%s: %w", o, errNotYet)
		}
		return err
	})
}

// arm arms the point of the plan; an agent's in the victim alone.
func (w *world) arm(p plan, victim *box) {
	path := w.points
	if strings.HasPrefix(p.point, "agent.") {
		if victim == nil {
			return
		}
		path = filepath.Join("/run/dayfly", w.s.Installation, victim.id, "in", "failpoints")
		victim.mu.Lock()
		victim.hurt = time.Now() // from now on it may crash
		victim.tell("armed: %s", p)
		victim.mu.Unlock()
	}
	_ = os.WriteFile(path, fmt.Appendf(nil, "%s=%s,%d\n", p.point, p.action, p.hit), 0o444)
}

func (w *world) disarm() {
	files, _ := filepath.Glob(w.points + "*")
	for _, f := range files {
		_ = os.Remove(f)
	}
}

// waitFired waits until somebody obeyed the point, and gives the process. An agent tells by dying.
func (w *world) waitFired(p plan, victim *box) (pid int, ok bool) {
	err := within(firedMax, func() error {
		if strings.HasPrefix(p.point, "agent.") {
			if victim == nil || victim.usable(0) {
				return errNotYet
			}
			victim.mu.Lock()
			defer victim.mu.Unlock()
			if victim.death.IsZero() {
				return errNotYet
			}
			return nil
		}
		b, err := os.ReadFile(w.points + "." + p.point + ".fired")
		if err == nil && len(b) > 0 {
			pid, err = strconv.Atoi(string(b))
		}
		if err == nil && pid == 0 {
			err = errNotYet
		}
		return err
	})
	return pid, err == nil
}

// strike does what the plan says to server, warden and sandbox, and starts the server again if it is dead.
func (w *world) strike(p *plan, victim *box) error {
	began := time.Now()
	stopped := 0
	if p.point != "" && !p.restart {
		pid, ok := w.waitFired(*p, victim)
		p.fired = ok
		if ok && p.action == "stop" {
			stopped = pid
		}
	} else {
		pause(p.delay)
	}
	if !p.restart {
		w.disarm()
		if stopped == 0 && p.action == "stop" { // it may have come past its point just now
			pause(stopLate)
			for _, pid := range []int{w.s.PID, w.s.Warden()} {
				if pid > 1 {
					_ = unix.Kill(pid, unix.SIGCONT)
				}
			}
		}
	}
	warden := w.s.Warden()
	if p.part != "" && victim != nil {
		if err := victim.kill(w.s, p.part); err != nil {
			return err
		}
	}
	if p.freeze != "" && w.s.Running() {
		pid := w.s.PID
		if p.freeze == "warden" {
			pid = warden
		}
		if pid > 1 {
			_ = unix.Kill(pid, unix.SIGSTOP)
			pause(p.down)
			_ = unix.Kill(pid, unix.SIGCONT)
		}
	}
	if p.server || p.restart || stopped == w.s.PID && stopped != 0 {
		_ = w.s.Kill()
	}
	if (p.warden || stopped == warden) && warden != 0 {
		_, _ = w.s.KillWarden()
	}
	if w.s.Running() {
		if p.warden || p.freeze != "" || warden == 0 {
			w.blind.add(began, time.Now().Add(time.Second), time.Time{})
		}
		return nil
	}
	sign := w.sign()
	pause(p.down)
	err := w.restart(p)
	w.blind.add(began, time.Now(), sign)
	return err
}

// restart starts the server; with a point on its way it dies once more.
func (w *world) restart(p *plan) error {
	if p.restart {
		if strings.HasPrefix(p.point, "first.key.") {
			if err := w.firstKeyAgain(); err != nil {
				return err
			}
		}
		w.arm(*p, nil)
		_ = w.s.Up(testContext()) // dies at the point, or gets past it
		var pid int
		if pid, p.fired = w.waitFired(*p, nil); p.fired {
			_ = within(time.Second, func() error { // it is killed, but may not be dead yet
				if pid == w.s.PID && w.s.Running() {
					return errNotYet
				}
				return nil
			})
		}
		w.disarm()
	}
	if w.s.Running() {
		return nil
	}
	return w.s.Up(testContext())
}

// firstKeyAgain has the next start believe that the first one was cut off before it wrote its key.
func (w *world) firstKeyAgain() error {
	return os.WriteFile(filepath.Join(w.s.Data, "admin.key.new"), nil, 0o600)
}

// ready makes sure that a server and a warden run and take work.
func (w *world) ready() error {
	return within(15*time.Second, func() error {
		if !w.s.Running() {
			if err := w.s.Up(testContext()); err != nil {
				return err
			}
		}
		if a := w.do("GET", "/readyz", "", nil); a.status != 200 {
			return fmt.Errorf("not ready: %s", a)
		}
		return nil
	})
}
