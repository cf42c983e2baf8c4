package faults_test

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/test/host"
)

// toldMax is how long a server that is well may take to have a crash on record.
const toldMax = time.Second

// moments are when a part of a sandbox is killed: while the server stands at a point on the way of an operation, or a while into it.
var moments = []struct {
	name  string
	point string        // where the server is stopped meanwhile, or empty
	delay time.Duration // without a point: after the operation began
	first string        // pause, or empty: what was done before
	op    func(w *world, b *box) operation
}{
	{"idle", "", 0, "", func(*world, *box) operation { return nil }},
	{"paused", "", 0, "pause", func(*world, *box) operation { return nil }},
	{"early in a command", "", 30 * time.Millisecond, "", command},
	{"in a command", "", 400 * time.Millisecond, "", command},
	{"before a command", "control.exec.claimed", 0, "", command},
	{"in an upload", "", 10 * time.Millisecond, "", func(w *world, b *box) operation {
		return &writeOp{b: b, path: "f", content: strings.Repeat("x", 8<<20)}
	}},
	{"before a freeze", "node.pause.begin", 0, "", func(_ *world, b *box) operation { return ask(b, "pause") }},
	{"in a freeze", "node.pause.frozen", 0, "", func(_ *world, b *box) operation { return ask(b, "pause") }},
	{"before a thaw", "node.resume.begin", 0, "pause", func(_ *world, b *box) operation { return ask(b, "resume") }},
	{"after a thaw", "node.resume.thawed", 0, "pause", func(_ *world, b *box) operation { return ask(b, "resume") }},
	{"in an extend", "node.renew.settled", 0, "", func(_ *world, b *box) operation { return ask(b, "extend") }},
	{"before a destroy", "node.destroy.begin", 0, "", func(_ *world, b *box) operation { return &deleteOp{b} }},
	{"in a destroy", "node.destroy.killed", 0, "", func(_ *world, b *box) operation { return &deleteOp{b} }},
}

func command(w *world, b *box) operation { return &execOp{b: b, key: w.tag + b.id, sleep: 30} }

// askOp asks for a pause, a resume or an extend of a sandbox that may die of something else.
type askOp struct {
	b    *box
	step string
}

func ask(b *box, step string) operation { return &askOp{b, step} }

func (o *askOp) String() string { return o.step + " " + o.b.id }

func (o *askOp) run(w *world) (bool, error) {
	a := w.do("POST", "/v1/sandboxes/"+o.b.id+"/"+o.step, "", map[string]any{})
	o.b.note("%s: %s", o, a)
	if a.status != http.StatusOK && a.status != http.StatusGone && !a.cut() {
		return true, fmt.Errorf("%s answered %s", o, a)
	}
	return true, nil
}

func (o *askOp) check(*world) error { return nil }

// TestAPartThatDiesIsACrashOfItsSandboxAlone: the record says so within toldMax, nothing is left, and nobody else notices.
func TestAPartThatDiesIsACrashOfItsSandboxAlone(t *testing.T) {
	t.Parallel()
	for _, part := range parts() {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			other := w.one(t, 120)
			for _, m := range moments {
				t.Run(m.name, func(t *testing.T) {
					b := w.one(t, 60)
					if m.first != "" {
						if _, err := ask(b, m.first).run(w); err != nil {
							t.Fatal(err)
						}
					}
					var g sync.WaitGroup
					if o := m.op(w, b); o != nil {
						if m.point != "" {
							w.arm(plan{point: m.point, action: "stop", hit: 1}, nil)
						}
						g.Go(func() {
							if _, err := o.run(w); err != nil {
								t.Error(err)
							}
						})
					}
					w.atPoint(t, m.point, m.delay, func() {
						if err := b.kill(w.s, part); err != nil {
							t.Error(err)
						}
					})
					g.Wait()
					w.toldSoon(t, b)
					w.alive(t, other)
				})
			}
			w.agrees(t)
		})
	}
}

// atPoint does something while the server stands at a point that was armed, or after a delay.
func (w *world) atPoint(t *testing.T, point string, delay time.Duration, do func()) {
	t.Helper()
	if point == "" {
		pause(delay)
		do()
		return
	}
	pid, ok := w.waitFired(plan{point: point}, nil)
	w.disarm()
	if !ok {
		t.Fatalf("the point %s was not passed", point)
	}
	do()
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// toldSoon fails the test unless a sandbox that was hurt is dead, and on record as ended, within toldMax each. One that stands still
// cannot see that it lost a part: it dies when it goes on.
func (w *world) toldSoon(t *testing.T, b *box) {
	t.Helper()
	if r, err := w.sandbox(b.id); err == nil && r.Status == "paused" {
		if _, err := ask(b, "resume").run(w); err != nil {
			t.Error(err)
		}
	}
	var died time.Time
	err := within(toldMax, func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if died = b.death; died.IsZero() {
			return errNotYet
		}
		return nil
	})
	if err != nil {
		t.Errorf("it lives: %v\n\t%s", err, b.history())
	}
	err = within(toldMax, func() error {
		r, err := w.sandbox(b.id)
		if err == nil && !r.ended() {
			err = fmt.Errorf("dead at %s, it is on record as %s", clock(died), r.Status)
		}
		return err
	})
	if err != nil {
		t.Errorf("%v\n\t%s", err, b.history())
	}
	if r := w.settledEnd(t, b); r.EndReason != "crashed" && (r.EndReason != "requested" || b.ended.IsZero()) {
		t.Errorf("it ended as %s, %s", r.Status, r.EndReason)
	}
}

// TestAPartThatDiesInAStart: the start fails, or the sandbox has crashed, and either is what is on record.
func TestAPartThatDiesInAStart(t *testing.T) {
	t.Parallel()
	isolation := "gvisor"
	if os.Getenv(host.EnvIsolation) == "linux" {
		isolation = "linux"
	}
	points := []string{"", "node.create.started", "node.create.instance", "node.create.greeted", "control.create.made"}
	all, err := failpoints()
	for _, p := range all {
		if strings.HasPrefix(p, isolation+".start.") {
			points = append(points, p)
		}
	}
	if err != nil || len(points) < 8 {
		t.Fatalf("points of a start: %v (%v)", points, err)
	}
	for _, part := range parts() {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			other := w.one(t, 120)
			for _, point := range points {
				t.Run(cmp.Or(point, "as soon as it is there"), func(t *testing.T) { w.hurtInStart(t, part, point) })
			}
			w.alive(t, other)
			w.agrees(t)
		})
	}
}

// hurtInStart kills a part of a sandbox that is being made, if it is there when the server stands at the point; without a point, once it is.
func (w *world) hurtInStart(t *testing.T, part, point string) {
	before, err := w.s.Machines()
	if err != nil {
		t.Fatal(err)
	}
	if point != "" {
		w.arm(plan{point: point, action: "stop", hit: 1}, nil)
	}
	var a answer
	var g sync.WaitGroup
	g.Go(func() {
		a = w.do("POST", "/v1/sandboxes", w.tag+part+point, map[string]any{"timeout_seconds": 60, "disk_mb": 256, "memory_mb": 128})
	})
	var victim string
	var killed bool
	strike := func() error {
		after, err := w.s.Machines()
		for _, id := range slices.DeleteFunc(after, func(id string) bool { return slices.Contains(before, id) }) {
			victim = id
			all, err := w.s.Parts(id)
			if pid := all[part]; err == nil && pid != 0 {
				killed = unix.Kill(pid, unix.SIGKILL) == nil
			}
		}
		if err == nil && !killed {
			err = errNotYet
		}
		return err
	}
	if point == "" {
		if err := within(callMax, strike); err != nil {
			t.Error(err)
		}
	} else {
		w.atPoint(t, point, 0, func() { _ = strike() })
	}
	g.Wait()
	var r record
	switch {
	case a.status == http.StatusCreated:
		if err := a.into(&r); err != nil {
			t.Fatal(err)
		}
		victim = r.ID
	case !killed || !a.cut() || a.err != nil:
		t.Fatalf("the create answered %s", a)
	}
	if !killed {
		t.Log("no such part yet")
		w.drop(t, victim)
		return
	}
	err = within(toldMax, func() error {
		if r, err = w.sandbox(victim); err == nil && !r.ended() {
			err = fmt.Errorf("it is on record as %s", r.Status)
		}
		return err
	})
	if err != nil {
		t.Fatalf("the create answered %s; %v", a, err)
	}
	want := "crashed"
	if a.status != http.StatusCreated {
		want = "startup_failed"
	}
	if r.Status != "failed" || r.EndReason != want {
		t.Errorf("it ended as %s, %s, want %s; the create answered %s", r.Status, r.EndReason, want, a)
	}
	if lives, err := w.s.Lives(victim); lives || err != nil {
		t.Errorf("it lives (%v)", err)
	}
}

func (w *world) drop(t *testing.T, id string) {
	t.Helper()
	if a := w.do("DELETE", "/v1/sandboxes/"+id, "", nil); a.status != http.StatusOK {
		t.Errorf("delete: %s", a)
	}
}
