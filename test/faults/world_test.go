package faults_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// settleMax is how long host and records may disagree after everything is ready and settled.
const settleMax = 6 * time.Second

// boxesMax bounds the sandboxes at once.
const boxesMax = 10

// world is one server and all that this program knows of it.
type world struct {
	client
	tag    string // makes idempotency keys of this run its own
	image  []byte
	points string // the file that arms failpoints
	blind  blind

	mu    sync.Mutex
	boxes []*box
}

func newWorld(t testing.TB, flags ...string) *world {
	s, points := start(t, flags...)
	key, err := s.Key()
	if err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(smallImage(t))
	if err != nil {
		t.Fatal(err)
	}
	return &world{client: client{s, key}, tag: fmt.Sprintf("t%x", time.Now().UnixNano()), image: image, points: points}
}

// addBox takes a sandbox into what is looked after, once.
func (w *world) addBox(r record) *box {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range w.boxes {
		if b.id == r.ID {
			return b
		}
	}
	b := newBox(w.s, r)
	w.boxes = append(w.boxes, b)
	return b
}

func (w *world) all() []*box {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.boxes)
}

// anyBox chooses a sandbox that one may do something with, or nil.
func (w *world) anyBox(rng *rand.Rand) *box {
	usable := slices.DeleteFunc(w.all(), func(b *box) bool { return !b.usable(300 * time.Millisecond) })
	if len(usable) == 0 {
		return nil
	}
	return usable[rng.IntN(len(usable))]
}

// closeBoxes holds each sandbox that has ended against its record and forgets it. Those that should have ended and live are
// findings too.
func (w *world) closeBoxes() error {
	var errs []error
	var open []*box
	for _, b := range w.all() {
		b.mu.Lock()
		death, hi, ended := b.death, b.hi, b.ended
		b.mu.Unlock()
		if death.IsZero() {
			if late := time.Since(hi); late > w.blind.late(hi, hi)+slack {
				errs = append(errs, fmt.Errorf("%s lives %s after its deadline\n\t%s", b.id, late, b.history()))
				continue
			}
			if !ended.IsZero() && time.Since(ended) > 2*settleMax {
				errs = append(errs, fmt.Errorf("%s lives %s after its delete\n\t%s", b.id, time.Since(ended), b.history()))
				continue
			}
			open = append(open, b)
			continue
		}
		err := within(settleMax, func() error {
			r, err := w.sandbox(b.id)
			if err != nil {
				return err
			}
			if !r.ended() {
				return fmt.Errorf("%s is dead since %s; its record says %s", b.id, clock(death), r.Status)
			}
			return nil
		})
		if err == nil {
			var r record
			if r, err = w.sandbox(b.id); err == nil {
				err = b.check(r, &w.blind)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%w\n\t%s", err, b.history()))
		}
	}
	w.mu.Lock()
	w.boxes = open
	w.mu.Unlock()
	return errors.Join(errs...)
}

// agree holds the records against the host, both ways, until they agree.
func (w *world) agree() error {
	return within(settleMax, func() error {
		if err := w.sameMachines(); err != nil {
			return err
		}
		if err := w.sameFiles(); err != nil {
			return err
		}
		if err := w.samePauses(); err != nil {
			return err
		}
		return w.audited()
	})
}

// sign is the last sign of life of the warden, by the wall clock, if neither it nor the server runs; else it is zero.
func (w *world) sign() time.Time {
	if w.s.Running() || w.s.Warden() != 0 {
		return time.Time{}
	}
	var beat struct {
		Wall time.Time `json:"wall"`
	}
	b, err := os.ReadFile(filepath.Join(w.s.Data, "warden", "heartbeat"))
	if err == nil {
		err = json.Unmarshal(b, &beat)
	}
	if err != nil {
		return time.Time{}
	}
	return beat.Wall
}

// live gives the ids that are on record as not ended, and those that are running.
func (w *world) live() (live, running []string, err error) {
	all, err := w.sandboxes("")
	for _, r := range all {
		live = append(live, r.ID)
		if r.Status == "running" || r.Status == "paused" {
			running = append(running, r.ID)
		}
	}
	return live, running, err
}

// sameMachines: no machine without a record, and no record that says running or paused without a machine.
func (w *world) sameMachines() error {
	_, running, err := w.live()
	if err != nil {
		return err
	}
	machines, err := w.s.Machines()
	if err != nil {
		return err
	}
	for _, id := range running {
		if lives, err := w.s.Lives(id); err != nil || !lives {
			return fmt.Errorf("%s is on record as running and does not live (%v)", id, err)
		}
	}
	live, _, err := w.live() // after the host: what is being made has its record first
	if err != nil {
		return err
	}
	for _, id := range machines {
		if !slices.Contains(live, id) {
			return fmt.Errorf("%s is on the host and not on record", id)
		}
	}
	return nil
}

// sameFiles looks at what is on the host by itself: lease and state files, run directories, unpacked images.
func (w *world) sameFiles() error {
	live, _, err := w.live()
	if err != nil {
		return err
	}
	for _, dir := range []string{filepath.Join(w.s.Data, "leases"), filepath.Join(w.s.Data, "state"), filepath.Join("/run/dayfly", w.s.Installation)} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			id, _, _ := strings.Cut(strings.TrimPrefix(e.Name(), ".new-"), ".")
			if strings.HasPrefix(id, "sb") && len(id) == 22 && !slices.Contains(live, id) {
				return fmt.Errorf("%s is left of a sandbox that is not live", filepath.Join(dir, e.Name()))
			}
		}
	}
	return w.sameImages()
}

func (w *world) sameImages() error {
	var page struct {
		Data []struct{ ID, Name string }
	}
	a := w.do("GET", "/v1/images?limit=100", "", nil)
	if err := a.into(&page); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(w.s.Data, "images"))
	if err != nil {
		return err
	}
	var recorded, real []string
	for _, im := range page.Data {
		recorded = append(recorded, im.ID)
	}
	for _, e := range entries {
		real = append(real, e.Name())
	}
	slices.Sort(recorded)
	slices.Sort(real)
	if !slices.Equal(recorded, real) {
		return fmt.Errorf("images on record: %v, on the disk: %v", recorded, real)
	}
	return nil
}

// audited has the program itself look.
func (w *world) audited() error {
	out := w.s.Dayfly(testContext(), "audit", "-o", "json")
	var got struct {
		Unaccounted int            `json:"unaccounted"`
		Counts      map[string]int `json:"counts"`
		Objects     []struct{ Kind, Name, Owner, State string }
	}
	if err := json.Unmarshal([]byte(out.Stdout), &got); err != nil {
		return fmt.Errorf("audit: exit %d: %s%s", out.Code, out.Stdout, out.Stderr)
	}
	if got.Unaccounted > 0 || got.Counts["missing"] > 0 || out.Code != 0 {
		bad := slices.DeleteFunc(got.Objects, func(o struct{ Kind, Name, Owner, State string }) bool {
			return o.State == "owned" || o.State == "reclaiming"
		})
		return fmt.Errorf("audit: exit %d: %+v", out.Code, bad)
	}
	return nil
}

// panicked tells what of the server's and the warden's logs is a crash that nobody ordered.
func (w *world) panicked() error {
	for _, name := range []string{"server.log", "warden.log"} {
		b, _ := os.ReadFile(filepath.Join(w.s.Data, "logs", name))
		if i := strings.Index(string(b), "panic:"); i >= 0 {
			return fmt.Errorf("%s: %.2000s", name, b[i:])
		}
	}
	return nil
}
