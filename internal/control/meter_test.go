package control_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// notes is a meter that keeps what it is told.
type notes struct {
	mu   sync.Mutex
	told []string
}

func (n *notes) note(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = append(n.told, fmt.Sprintf(format, args...))
}

func (n *notes) Created(took time.Duration)       { n.note("created %s", took) }
func (n *notes) Executed(took, ran time.Duration) { n.note("executed %s %s", took, ran) }
func (n *notes) Executing(more int)               { n.note("executing %+d", more) }
func (n *notes) Deleted(took time.Duration)       { n.note("deleted %s", took) }
func (n *notes) Ended(reason dayfly.EndReason)    { n.note("ended %s", reason) }
func (n *notes) LeaseEnded(late time.Duration)    { n.note("late %s", late) }
func (n *notes) Found(kind string)                { n.note("found %s", kind) }

// want checks what was told since the last look, in any order.
func (n *notes) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	slices.Sort(n.told)
	slices.Sort(want)
	if !slices.Equal(n.told, want) {
		t.Errorf("told %s\nwant %s", strings.Join(n.told, ", "), strings.Join(want, ", "))
	}
	n.told = nil
}

func TestMeter(t *testing.T) {
	metered := func(name string, run func(t *testing.T, b *bed, n *notes)) {
		n := &notes{}
		bubble(t, name, control.Config{Meter: n}, func(t *testing.T, b *bed) { run(t, b, n) })
	}
	slowly := func(d time.Duration) func(context.Context, string) error {
		return func(context.Context, string) error { time.Sleep(d); return nil }
	}
	metered("a whole life", func(t *testing.T, b *bed, n *notes) {
		b.node.change(func() {
			b.node.create = func(context.Context, dayfly.Sandbox) error { time.Sleep(7 * time.Millisecond); return nil }
		})
		sb := b.create(control.CreateSandbox{})
		n.want(t, "created 7ms")
		b.node.change(func() { b.node.destroy = slowly(30 * time.Millisecond) })
		for range 2 {
			_, err := b.plane.DeleteSandbox(t.Context(), b.admin, sb.ID)
			wantCode(t, err, "")
		}
		n.want(t, "ended requested", "deleted 30ms")
	})
	metered("a start that fails", func(t *testing.T, b *bed, n *notes) {
		b.node.change(func() { b.node.create = func(context.Context, dayfly.Sandbox) error { return errTest } })
		_, err := b.plane.CreateSandbox(t.Context(), b.admin, control.CreateSandbox{})
		wantCode(t, err, dayfly.CodeInternal)
		n.want(t, "ended startup_failed")
	})
	metered("a lease that ends late", func(t *testing.T, b *bed, n *notes) {
		b.create(control.CreateSandbox{Timeout: time.Minute})
		n.want(t, "created 0s")
		b.node.change(func() { b.node.destroy = slowly(40 * time.Millisecond) })
		time.Sleep(2 * time.Minute)
		n.want(t, "ended lease_expired", "late 40ms", "deleted 40ms")
	})
	metered("commands", func(t *testing.T, b *bed, n *notes) {
		sb := b.create(control.CreateSandbox{})
		b.node.machine(sb.ID).during = slowly(time.Second)
		spec := dayfly.ProcessSpec{Command: "x"}
		run := func(key control.Idempotency) {
			_, err := b.plane.Exec(t.Context(), b.admin, sb.ID, spec, nil, key)
			wantCode(t, err, "")
		}
		n.want(t, "created 0s")
		run(control.Idempotency{})
		n.want(t, "executing +1", "executing -1", "executed 1s 0s")
		run(idempotent("k"))
		n.want(t, "executing +1", "executing -1", "executed 1s 0s")
		run(idempotent("k"))
		n.want(t, "executing +1", "executing -1")
		_, err := b.plane.Exec(t.Context(), b.admin, dayfly.NewID(dayfly.PrefixSandbox), spec, nil, control.Idempotency{})
		wantCode(t, err, dayfly.CodeNotFound)
		n.want(t, "executing +1", "executing -1")
	})
	metered("a command whose end was not seen", func(t *testing.T, b *bed, n *notes) {
		sb := b.create(control.CreateSandbox{})
		out, err := b.plane.ExecStream(t.Context(), b.admin, sb.ID, dayfly.ProcessSpec{Command: "x"}, nil, false, control.Idempotency{})
		wantCode(t, err, "")
		n.want(t, "created 0s", "executing +1")
		for err = error(nil); err == nil; {
			_, err = out.Value.Stream.Next()
		}
		if err != io.EOF {
			t.Error(err)
		}
		wantCode(t, out.Value.Stream.Close(), "")
		n.want(t, "executing -1")
	})
	metered("what a start of the server finds", func(t *testing.T, b *bed, n *notes) {
		seen, half := b.create(control.CreateSandbox{}), b.create(control.CreateSandbox{})
		lost := seen.Clone()
		lost.ID = dayfly.NewID(dayfly.PrefixSandbox)
		n.want(t, "created 0s", "created 0s")
		b.node.found = control.Recovery{
			Running: []dayfly.Sandbox{lost},
			Ended:   []control.Ending{{ID: seen.ID, At: time.Now(), Reason: dayfly.EndOOM}},
			Ending:  []control.Ending{{ID: half.ID, Reason: dayfly.EndReconciled}},
		}
		b.restart(control.Config{Meter: n})
		n.want(t, "found machine_without_record", "found ended_unseen", "found half_ended", "ended oom", "ended reconciled", "deleted 0s")
	})
}

func TestAwaitEvents(t *testing.T) {
	bubble(t, "wakes, and ends when the server drains", control.Config{}, func(t *testing.T, b *bed) {
		last, err := b.plane.AwaitEvents(t.Context(), 0)
		wantCode(t, err, "")
		woken := make(chan error, 1)
		wait := func() {
			next, err := b.plane.AwaitEvents(t.Context(), last)
			if err == nil && next <= last {
				t.Errorf("woken for %d after %d", next, last)
			}
			last = next
			woken <- err
		}
		go wait()
		synctest.Wait()
		b.create(control.CreateSandbox{})
		wantCode(t, <-woken, "")
		last, err = b.plane.AwaitEvents(t.Context(), 0)
		wantCode(t, err, "")
		go wait()
		synctest.Wait()
		b.plane.Drain()
		wantCode(t, <-woken, "") // that the server stops is an event too
		events, err := b.plane.Events(t.Context(), b.admin, dayfly.EventFilter{After: last - 1})
		if err != nil || len(events) != 1 || events[0].Type != dayfly.EventStopping {
			t.Errorf("last events: %v, %v", events, err)
		}
		_, err = b.plane.AwaitEvents(t.Context(), last)
		wantCode(t, err, dayfly.CodeUnavailable)
	})
	bubble(t, "ends with its context", control.Config{}, func(t *testing.T, b *bed) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := b.plane.AwaitEvents(ctx, 1<<40); err == nil {
			t.Error("no error")
		}
	})
}
