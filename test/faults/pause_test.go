package faults_test

import (
	"fmt"
	"testing"
)

// pauseSeconds is the lease of a sandbox that is paused: no agent's clock ends it while it stands still, so it outlives its round.
const pauseSeconds = 60

// pauseOp pauses and resumes a sandbox of its own, which nobody else asks for anything meanwhile.
type pauseOp struct {
	key   string
	steps []string // each pause or resume
	id    string   // once it is made
	done  int      // steps that were answered
}

func (o *pauseOp) String() string {
	return fmt.Sprintf("pause %s %v of %s", o.key, o.steps[:o.done], o.id)
}

func (o *pauseOp) run(w *world) (bool, error) {
	var r record
	if o.id == "" {
		a := w.do("POST", "/v1/sandboxes", o.key, map[string]any{"timeout_seconds": pauseSeconds, "disk_mb": 256, "memory_mb": 128})
		if a.cut() {
			return false, nil
		}
		if err := a.into(&r); err != nil || a.status != 201 || r.ended() {
			return true, fmt.Errorf("%s: create answered %s", o, a)
		}
		o.id = r.ID
	}
	for o.done < len(o.steps) {
		step := o.steps[o.done]
		a := w.do("POST", "/v1/sandboxes/"+o.id+"/"+step, fmt.Sprint(o.key, "-", o.done), map[string]any{})
		if a.cut() || a.status == 409 { // the latter: the first request with this key is still running
			return false, nil
		}
		if err := a.into(&r); err != nil || a.status != 200 || r.Status != statusAfter(step) {
			return true, fmt.Errorf("%s: %s answered %s", o, step, a)
		}
		o.done++
	}
	return true, nil
}

func statusAfter(step string) string {
	if step == "pause" {
		return "paused"
	}
	return "running"
}

// check: what was answered last is so, on record and on the host; then the sandbox works, or works once it is resumed, and ends.
func (o *pauseOp) check(w *world) error {
	if o.id == "" || o.done == 0 {
		return nil
	}
	want := statusAfter(o.steps[o.done-1])
	r, err := w.sandbox(o.id)
	if err == nil && r.Status != want {
		err = fmt.Errorf("%s: it is %s, want %s", o, r.Status, want)
	}
	if err != nil {
		return err
	}
	if err := within(settleMax, func() error { return w.samePause(r) }); err != nil {
		return fmt.Errorf("%s: %w", o, err)
	}
	command := map[string]any{"command": "true"}
	if want == "paused" {
		if a := w.do("POST", "/v1/sandboxes/"+o.id+"/exec", "", command); a.status != 409 {
			return fmt.Errorf("%s: exec in a paused one answered %s", o, a)
		}
	}
	if a := w.do("POST", "/v1/sandboxes/"+o.id+"/resume", "", map[string]any{}); a.status != 200 {
		return fmt.Errorf("%s: the last resume answered %s", o, a)
	}
	if a := w.do("POST", "/v1/sandboxes/"+o.id+"/exec", "", command); a.status != 200 {
		return fmt.Errorf("%s: exec after the last resume answered %s", o, a)
	}
	if a := w.do("POST", "/v1/sandboxes/"+o.id+"/pause", "", map[string]any{}); a.status != 200 {
		return fmt.Errorf("%s: the last pause answered %s", o, a)
	}
	a := w.do("DELETE", "/v1/sandboxes/"+o.id, "", nil)
	if err := a.into(&r); err != nil || a.status != 200 || r.Status != "deleted" {
		return fmt.Errorf("%s: delete of a paused one answered %s", o, a)
	}
	if lives, err := w.s.Lives(o.id); lives || err != nil {
		return fmt.Errorf("%s: it lives after its end (%v)", o, err)
	}
	return nil
}

// samePause: a sandbox is on record as paused if, and only if, the kernel has it frozen.
func (w *world) samePause(r record) error {
	frozen, err := w.s.Frozen(r.ID)
	if err != nil || frozen != (r.Status == "paused") {
		return fmt.Errorf("%s is on record as %s, frozen %t (%v)", r.ID, r.Status, frozen, err)
	}
	return nil
}

// samePauses is samePause of all sandboxes that are up.
func (w *world) samePauses() error {
	all, err := w.sandboxes("status=running&status=paused")
	for _, r := range all {
		if err == nil {
			err = w.samePause(r)
		}
	}
	return err
}

// TestPauseIsRecordedAfterACrash kills the server at every step of a pause and of a resume.
func TestPauseIsRecordedAfterACrash(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, step := range []string{"pause", "resume"} {
		done := map[string]string{"pause": "node.pause.frozen", "resume": "node.resume.thawed"}[step]
		for _, point := range []string{"control.pause.begin", "node." + step + ".begin", done, "control.pause.done", "control.pause.recorded"} {
			t.Run(step+" "+point, func(t *testing.T) {
				before := map[string]string{"pause": "resume", "resume": "pause"}[step]
				o := &pauseOp{key: w.tag + "-" + step + "-" + point, steps: []string{before}}
				if settled, err := o.run(w); err != nil || !settled {
					t.Fatalf("before the crash: %v", err)
				}
				o.steps = append(o.steps, step)
				w.arm(plan{point: point, action: "kill", hit: 1}, nil)
				settled, err := o.run(w)
				if err != nil || settled {
					t.Fatalf("the server lived on: %v", err)
				}
				w.crashed(t)
				w.disarm()
				restart(t, w.s)
				if err := within(settleMax, w.samePauses); err != nil {
					t.Errorf("before the retry: %v", err)
				}
				if err := w.settle(o); err != nil {
					t.Error(err)
				}
				if err := o.check(w); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
