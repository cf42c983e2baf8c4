package control_test

import (
	"context"
	"io"
	"sync"
	"testing"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// Launch begins a process that goes on. Its name is taken as long as the test does not forget it.
func (m *mapMachine) Launch(ctx context.Context, spec dayfly.ProcessSpec, _ io.Reader) (dayfly.Process, error) {
	m.mu.Lock()
	for _, p := range m.procs {
		if spec.Name != "" && p.Name == spec.Name {
			m.mu.Unlock()
			return dayfly.Process{}, dayfly.Errorf(dayfly.CodeConflict, "a running process has the name")
		}
	}
	m.mu.Unlock()
	if err := m.begin(ctx, spec); err != nil {
		return dayfly.Process{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p := dayfly.Process{ID: spec.ID, Status: dayfly.ProcessRunning, Name: spec.Name, OnDisconnect: spec.OnDisconnect, Terminal: spec.Terminal}
	m.procs[spec.ID] = p
	return p, nil
}

func TestLaunch(t *testing.T) {
	launch := func(b *bed, id string, spec dayfly.ProcessSpec, req control.Idempotency) (control.Outcome[dayfly.Process], error) {
		spec.Command = "sleep 1000"
		return b.plane.Launch(b.t.Context(), b.admin, id, spec, nil, req)
	}
	bubble(t, "defaults are those of the background", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		var got dayfly.ProcessSpec
		b.node.machine(sb.ID).run = func(_ context.Context, spec dayfly.ProcessSpec) error { got = spec; return nil }
		_, err := launch(b, sb.ID, dayfly.ProcessSpec{Terminal: &dayfly.TerminalSize{Cols: 80, Rows: 24}}, control.Idempotency{})
		if err != nil || got.Timeout != dayfly.NoTimeout || got.OnDisconnect != dayfly.DisconnectContinue || !got.OpenStdin || !got.Follow {
			t.Errorf("%+v, %v", got, err)
		}
		_, err = launch(b, sb.ID, dayfly.ProcessSpec{Timeout: 5, OnDisconnect: dayfly.DisconnectKill}, control.Idempotency{})
		if err != nil || got.Timeout != 5 || got.OnDisconnect != dayfly.DisconnectKill || got.OpenStdin {
			t.Errorf("%+v, %v", got, err)
		}
	})
	bubble(t, "twenty at once with a key start one", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		var g sync.WaitGroup
		var mu sync.Mutex
		ids, replays := map[string]bool{}, 0
		for range 20 {
			g.Go(func() {
				out, err := launch(b, sb.ID, dayfly.ProcessSpec{Name: "n"}, idempotent("k"))
				wantCode(t, err, "")
				mu.Lock()
				defer mu.Unlock()
				ids[out.Value.ID] = true
				if out.Replayed {
					replays++
				}
			})
		}
		g.Wait()
		if len(ids) != 1 || replays != 19 || b.node.machine(sb.ID).starts() != 1 {
			t.Errorf("%v, %d replays", ids, replays)
		}
		b.restart(control.Config{})
		again, err := launch(b, sb.ID, dayfly.ProcessSpec{Name: "n"}, idempotent("k"))
		if err != nil || !again.Replayed || !ids[again.Value.ID] {
			t.Errorf("after a restart: %+v, %v", again, err)
		}
		b.node.machine(sb.ID).forget(again.Value.ID)
		_, err = launch(b, sb.ID, dayfly.ProcessSpec{Name: "n"}, idempotent("k"))
		wantCode(t, err, dayfly.CodeGone) // its record was dropped; it is not started again
	})
	bubble(t, "a taken name gives the key back", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		first, err := launch(b, sb.ID, dayfly.ProcessSpec{Name: "n"}, control.Idempotency{})
		wantCode(t, err, "")
		_, err = launch(b, sb.ID, dayfly.ProcessSpec{Name: "n"}, idempotent("k"))
		wantCode(t, err, dayfly.CodeConflict)
		b.node.machine(sb.ID).forget(first.Value.ID)
		out, err := launch(b, sb.ID, dayfly.ProcessSpec{Name: "n"}, idempotent("k"))
		if err != nil || out.Replayed || out.Value.ID == first.Value.ID {
			t.Errorf("%+v, %v", out, err)
		}
	})
	bubble(t, "a server that stops starts nothing", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.plane.Drain()
		_, err := launch(b, sb.ID, dayfly.ProcessSpec{}, control.Idempotency{})
		wantCode(t, err, dayfly.CodeUnavailable)
	})
}
