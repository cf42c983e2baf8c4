package control_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agentwire"
	"dayfly.dev/dayfly/internal/control"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestExec(t *testing.T) {
	exec := func(b *bed, id string, req control.Idempotency) (control.Outcome[dayfly.Result], error) {
		return b.plane.Exec(b.t.Context(), b.admin, id, dayfly.ProcessSpec{Command: "true"}, nil, req)
	}
	bubble(t, "without a key it runs each time", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		for range 3 {
			out, err := exec(b, sb.ID, control.Idempotency{})
			if err != nil || out.Replayed || !dayfly.ValidID(dayfly.PrefixProcess, out.Value.ID) {
				t.Errorf("%+v, %v", out, err)
			}
		}
		if n := b.node.machine(sb.ID).starts(); n != 3 {
			t.Errorf("%d starts", n)
		}
	})
	bubble(t, "with a key it runs once", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		first, err := exec(b, sb.ID, idempotent("k"))
		wantCode(t, err, "")
		again, err := exec(b, sb.ID, idempotent("k"))
		if err != nil || !again.Replayed || again.Value.ID != first.Value.ID || b.node.machine(sb.ID).starts() != 1 {
			t.Errorf("%+v, %v", again, err)
		}
		s, err := b.plane.ExecStream(t.Context(), b.admin, sb.ID, dayfly.ProcessSpec{}, nil, false, idempotent("k"))
		if err != nil || !s.Replayed || s.Value.Process.ID != first.Value.ID {
			t.Errorf("stream: %+v, %v", s, err)
		}
		other := idempotent("k")
		other.Hash = "another body"
		_, err = exec(b, sb.ID, other)
		wantCode(t, err, dayfly.CodeKeyReused)
		b.node.machine(sb.ID).forget(first.Value.ID)
		_, err = exec(b, sb.ID, idempotent("k"))
		wantCode(t, err, dayfly.CodeGone) // its record was dropped; it is not run again
		b.restart(control.Config{})
		_, err = exec(b, sb.ID, idempotent("k"))
		wantCode(t, err, dayfly.CodeGone)
	})
	bubble(t, "twenty at once, while it starts", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		m := b.node.machine(sb.ID)
		m.run = func(context.Context, dayfly.ProcessSpec) error { time.Sleep(100 * time.Millisecond); return nil }
		m.during = func(context.Context, string) error { time.Sleep(time.Hour); return nil }
		var g sync.WaitGroup
		var mu sync.Mutex
		ids := map[string]int{}
		for range 20 {
			g.Go(func() {
				out, err := exec(b, sb.ID, idempotent("k"))
				wantCode(t, err, "")
				mu.Lock()
				defer mu.Unlock()
				ids[out.Value.ID]++
			})
		}
		time.Sleep(200 * time.Millisecond) // it runs, and the others are attached to it
		other := idempotent("k")
		other.Hash = "another body"
		_, err := exec(b, sb.ID, other)
		wantCode(t, err, dayfly.CodeKeyReused)
		if m.starts() != 1 || m.read != 19 {
			t.Errorf("%d starts, %d joined", m.starts(), m.read)
		}
		_, err = b.plane.DeleteSandbox(t.Context(), b.admin, sb.ID)
		wantCode(t, err, "")
		g.Wait()
		if len(ids) != 1 {
			t.Errorf("ids = %v", ids)
		}
	})
	bubble(t, "a refused one gives the key back", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		m := b.node.machine(sb.ID)
		m.run = func(context.Context, dayfly.ProcessSpec) error {
			time.Sleep(time.Millisecond)
			return dayfly.Errorf(dayfly.CodeInvalid, "no such cwd")
		}
		var g sync.WaitGroup
		for range 5 {
			g.Go(func() { _, err := exec(b, sb.ID, idempotent("k")); wantCode(t, err, dayfly.CodeInvalid) })
		}
		g.Wait()
		m.run = nil
		other := idempotent("k")
		other.Hash = "another body"
		if out, err := exec(b, sb.ID, other); err != nil || out.Replayed {
			t.Errorf("%+v, %v", out, err)
		}
	})
	for name, cause := range map[string]error{
		"the session broke": dayfly.Errorf(dayfly.CodeUnavailable, "outcome unknown"),
		"the client left":   context.Canceled,
		"the agent is lost": fmt.Errorf("run: %w", agentwire.ErrLost),
	} {
		bubble(t, "outcome unknown, and it had started: "+name, control.Config{}, func(t *testing.T, b *bed) {
			sb := b.create(control.CreateSandbox{})
			m := b.node.machine(sb.ID)
			m.during = func(context.Context, string) error { return cause }
			if _, err := exec(b, sb.ID, idempotent("k")); err == nil {
				t.Error("it succeeded")
			}
			m.during = nil
			if out, err := exec(b, sb.ID, idempotent("k")); err != nil || !out.Replayed || m.starts() != 1 {
				t.Errorf("%+v, %v, %d starts", out, err, m.starts())
			}
		})
		bubble(t, "outcome unknown, and it had not started: "+name, control.Config{}, func(t *testing.T, b *bed) {
			sb := b.create(control.CreateSandbox{})
			m := b.node.machine(sb.ID)
			m.run = func(context.Context, dayfly.ProcessSpec) error { return cause }
			if _, err := exec(b, sb.ID, idempotent("k")); err == nil {
				t.Error("it succeeded")
			}
			m.run = nil
			if out, err := exec(b, sb.ID, idempotent("k")); err != nil || out.Replayed || m.starts() != 1 {
				t.Errorf("%+v, %v, %d starts", out, err, m.starts())
			}
		})
	}
	bubble(t, "the sandbox ends in the middle", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.node.machine(sb.ID).during = func(context.Context, string) error {
			b.node.dies(sb.ID, dayfly.EndLeaseExpired, time.Now())
			return dayfly.Errorf(dayfly.CodeGone, "ended").WithDetail("sandbox", sb.ID)
		}
		_, err := exec(b, sb.ID, control.Idempotency{})
		wantGone(t, err, dayfly.EndLeaseExpired)
		_, err = exec(b, sb.ID, control.Idempotency{})
		wantGone(t, err, dayfly.EndLeaseExpired)
		_, err = b.plane.Exec(t.Context(), b.account("other"), sb.ID, dayfly.ProcessSpec{}, nil, control.Idempotency{})
		wantCode(t, err, dayfly.CodeNotFound)
	})
}

func TestOnce(t *testing.T) {
	answer := func(text string) func(context.Context) (control.Answer, error) {
		return func(context.Context) (control.Answer, error) {
			return control.Answer{Status: 201, Body: []byte(`"secret"`), Kept: []byte(text)}, nil
		}
	}
	never := func(t *testing.T) func(context.Context) (control.Answer, error) {
		return func(context.Context) (control.Answer, error) {
			t.Error("it ran again")
			return control.Answer{}, nil
		}
	}
	bubble(t, "keeps the answer without its secrets", control.Config{}, func(t *testing.T, b *bed) {
		a, replayed, err := b.plane.Once(t.Context(), b.admin, idempotent("k"), answer(`{"a":1}`))
		if err != nil || replayed || string(a.Body) != `"secret"` {
			t.Errorf("%s, %v, %v", a.Body, replayed, err)
		}
		a, replayed, err = b.plane.Once(t.Context(), b.admin, idempotent("k"), never(t))
		if err != nil || !replayed || string(a.Body) != `{"a":1}` || a.Status != 201 {
			t.Errorf("%s, %v, %v", a.Body, replayed, err)
		}
		b.restart(control.Config{})
		if _, replayed, err := b.plane.Once(t.Context(), b.admin, idempotent("k"), never(t)); err != nil || !replayed {
			t.Errorf("after a restart: %v, %v", replayed, err)
		}
		other := idempotent("k")
		other.Hash = "another body"
		_, _, err = b.plane.Once(t.Context(), b.admin, other, never(t))
		wantCode(t, err, dayfly.CodeKeyReused)
	})
	bubble(t, "a failure and a panic give the key back", control.Config{}, func(t *testing.T, b *bed) {
		_, _, err := b.plane.Once(t.Context(), b.admin, idempotent("k"), func(context.Context) (control.Answer, error) { return control.Answer{}, errTest })
		wantCode(t, err, dayfly.CodeInternal)
		func() {
			defer func() { _ = recover() }()
			_, _, _ = b.plane.Once(t.Context(), b.admin, idempotent("k"), func(context.Context) (control.Answer, error) { panic("x") })
		}()
		if _, replayed, err := b.plane.Once(t.Context(), b.admin, idempotent("k"), answer("{}")); err != nil || replayed {
			t.Errorf("%v, %v", replayed, err)
		}
	})
	bubble(t, "a second one while the first runs", control.Config{}, func(t *testing.T, b *bed) {
		var g sync.WaitGroup
		g.Go(func() {
			_, _, err := b.plane.Once(t.Context(), b.admin, idempotent("k"), func(ctx context.Context) (control.Answer, error) {
				time.Sleep(time.Second)
				return answer("{}")(ctx)
			})
			wantCode(t, err, "")
		})
		synctest.Wait()
		_, _, err := b.plane.Once(t.Context(), b.admin, idempotent("k"), never(t))
		wantCode(t, err, dayfly.CodeConflict)
		g.Wait()
		if _, replayed, err := b.plane.Once(t.Context(), b.admin, idempotent("k"), never(t)); err != nil || !replayed {
			t.Errorf("%v, %v", replayed, err)
		}
	})
	bubble(t, "one that died with the server is made anew", control.Config{}, func(t *testing.T, b *bed) {
		req := idempotent("k")
		_, err := b.store.BeginRequest(t.Context(), dayfly.Request{
			Account: b.admin.Account.ID, Key: req.Key, Operation: req.Operation, Hash: req.Hash, CreatedAt: time.Now(),
		})
		wantCode(t, err, "")
		if _, replayed, err := b.plane.Once(t.Context(), b.admin, req, answer("{}")); err != nil || replayed {
			t.Errorf("%v, %v", replayed, err)
		}
		if _, replayed, err := b.plane.Once(t.Context(), b.admin, req, never(t)); err != nil || !replayed {
			t.Errorf("%v, %v", replayed, err)
		}
	})
	bubble(t, "an answer that cannot be kept is not given by a second run", control.Config{}, func(t *testing.T, b *bed) {
		b.store.set("FinishRequest", dayfly.Errorf(dayfly.CodeUnavailable, "down"))
		_, _, err := b.plane.Once(t.Context(), b.admin, idempotent("k"), answer("{}"))
		wantCode(t, err, "")
		_, _, err = b.plane.Once(t.Context(), b.admin, idempotent("k"), never(t))
		wantCode(t, err, dayfly.CodeConflict)
	})
	bubble(t, "keys are the account's own and end after a day", control.Config{}, func(t *testing.T, b *bed) {
		for _, who := range []control.Principal{b.admin, b.account("other")} {
			if _, replayed, err := b.plane.Once(t.Context(), who, idempotent("k"), answer("{}")); err != nil || replayed {
				t.Errorf("%v, %v", replayed, err)
			}
		}
		time.Sleep(dayfly.RequestKept + time.Minute)
		if _, replayed, err := b.plane.Once(t.Context(), b.admin, idempotent("k"), answer("{}")); err != nil || replayed {
			t.Errorf("a day later: %v, %v", replayed, err)
		}
	})
}
