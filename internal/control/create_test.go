package control_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

func TestCreateDefaults(t *testing.T) {
	mib := func(n int64) int64 { return n << 20 }
	small := dayfly.Limits{VCPU: 1, MemoryBytes: mib(1024), DiskBytes: mib(8192), PIDs: dayfly.PIDsDefault}
	for _, tt := range []struct {
		name   string
		cfg    control.Config
		r      control.CreateSandbox
		size   string
		limits dayfly.Limits
		lease  time.Duration
		max    time.Duration
	}{
		{"nothing asked", control.Config{}, control.CreateSandbox{}, "small", small, 15 * time.Minute, 24 * time.Hour},
		{"a size", control.Config{}, control.CreateSandbox{Size: "medium", Timeout: time.Hour}, "medium",
			dayfly.Limits{VCPU: 2, MemoryBytes: mib(4096), DiskBytes: mib(16384), PIDs: dayfly.PIDsDefault}, time.Hour, 24 * time.Hour},
		{"single limits", control.Config{PIDs: 7}, control.CreateSandbox{MemoryMB: 200, DiskMB: 300}, "custom",
			dayfly.Limits{VCPU: 1, MemoryBytes: mib(200), DiskBytes: mib(300), PIDs: 7}, 15 * time.Minute, 24 * time.Hour},
		{"the operator's sizes", control.Config{Sizes: map[string]control.Size{"small": {3, 5, 7}}}, control.CreateSandbox{}, "small",
			dayfly.Limits{VCPU: 3, MemoryBytes: mib(5), DiskBytes: mib(7), PIDs: dayfly.PIDsDefault}, 15 * time.Minute, 24 * time.Hour},
		{"a lower lease.max", control.Config{LeaseMax: 90 * time.Second}, control.CreateSandbox{}, "small", small, 90 * time.Second, 90 * time.Second},
		{"a lease.max over the ceiling", control.Config{LeaseMax: 48 * time.Hour}, control.CreateSandbox{Timeout: 24 * time.Hour}, "small", small,
			24 * time.Hour, 24 * time.Hour},
	} {
		bubble(t, tt.name, tt.cfg, func(t *testing.T, b *bed) {
			tt.r.Env = map[string]string{"B": "secret", "A": "x"}
			tt.r.Labels = map[string]string{"k": "v"}
			sb := b.create(tt.r)
			if sb.Status != dayfly.StatusRunning || sb.Spec.Size != tt.size || sb.Spec.Limits != tt.limits || sb.Spec.Image != "base" ||
				sb.Driver != dayfly.IsolationFake || sb.Spec.Isolation != dayfly.IsolationAuto || !sb.Spec.Network.Internet {
				t.Errorf("made %+v", sb)
			}
			if got := sb.Lease.Granted(); got != tt.lease || sb.Lease.Ceiling-sb.Lease.Born != tt.max {
				t.Errorf("lease %+v grants %s, want %s of %s", sb.Lease, got, tt.lease, tt.max)
			}
			if fmt.Sprint(sb.EnvNames) != "[A B]" || len(sb.Spec.Env) != 0 || sb.Labels["k"] != "v" || sb.Times.ReadyAt.IsZero() {
				t.Errorf("recorded %+v", sb)
			}
			if m := b.node.machine(sb.ID); m == nil || !maps.Equal(m.env, tt.r.Env) {
				t.Errorf("machine %+v", m)
			}
		})
	}
}

func TestCreateRefused(t *testing.T) {
	for _, tt := range []struct {
		name  string
		r     control.CreateSandbox
		spoil func(b *bed)
		want  dayfly.Code
		field string
	}{
		{"unknown image", control.CreateSandbox{Image: "nix"}, nil, dayfly.CodeInvalid, "image"},
		{"unknown size", control.CreateSandbox{Size: "giant"}, nil, dayfly.CodeInvalid, "size"},
		{"unknown isolation", control.CreateSandbox{Isolation: "box"}, nil, dayfly.CodeInvalid, ""},
		{"longer than lease.max", control.CreateSandbox{Timeout: 2 * time.Hour}, nil, dayfly.CodeInvalid, ""},
		{"never fits", control.CreateSandbox{}, func(b *bed) {
			b.node.change(func() {
				b.node.admit = func() error { return dayfly.Errorf(dayfly.CodeSizeUnavailable, "never") }
			})
		}, dayfly.CodeSizeUnavailable, ""},
		{"does not fit now", control.CreateSandbox{}, func(b *bed) {
			b.node.change(func() {
				b.node.admit = func() error { return dayfly.Errorf(dayfly.CodeNoCapacity, "not now") }
			})
		}, dayfly.CodeNoCapacity, ""},
		{"draining", control.CreateSandbox{}, func(b *bed) { b.plane.Drain() }, dayfly.CodeUnavailable, ""},
		{"database down", control.CreateSandbox{}, func(b *bed) {
			b.store.set("CreateSandbox", dayfly.Errorf(dayfly.CodeUnavailable, "down"))
		}, dayfly.CodeUnavailable, ""},
	} {
		bubble(t, tt.name, control.Config{LeaseMax: time.Hour}, func(t *testing.T, b *bed) {
			if tt.spoil != nil {
				tt.spoil(b)
			}
			tt.r.Request = idempotent("k")
			_, err := b.plane.CreateSandbox(t.Context(), b.admin, tt.r)
			wantCode(t, err, tt.want)
			e := dayfly.AsError(err)
			if tt.field != "" && (e == nil || fmt.Sprint(e.Details["fields"]) == "<nil>" || e.Hint == "") {
				t.Errorf("error %+v does not name %s", e, tt.field)
			}
			if n := len(b.all()); n != 0 || b.node.lives() != 0 {
				t.Errorf("%d records and %d machines of a refused create", n, b.node.lives())
			}
		})
	}
}

// TestCreateFails is bug 29 as well: the same create works once its reason is gone.
func TestCreateFails(t *testing.T) {
	for _, tt := range []struct {
		name   string
		create func(ctx context.Context, sb dayfly.Sandbox) error
		want   dayfly.Code
	}{
		{"for a reason of ours", func(context.Context, dayfly.Sandbox) error { return errTest }, dayfly.CodeInternal},
		{"for lack of slots", func(context.Context, dayfly.Sandbox) error { return dayfly.Errorf(dayfly.CodeNoCapacity, "slots") }, dayfly.CodeNoCapacity},
		{"for lack of disk", func(context.Context, dayfly.Sandbox) error { return dayfly.Errorf(dayfly.CodeDiskFull, "disk") }, dayfly.CodeDiskFull},
		{"because it died", func(context.Context, dayfly.Sandbox) error { return dayfly.Errorf(dayfly.CodeGone, "ended") }, dayfly.CodeInternal},
		{"because it takes too long", func(ctx context.Context, _ dayfly.Sandbox) error { <-ctx.Done(); return ctx.Err() }, dayfly.CodeInternal},
	} {
		bubble(t, tt.name, control.Config{}, func(t *testing.T, b *bed) {
			start := time.Now()
			b.node.change(func() {
				b.node.create = tt.create
			})
			r := control.CreateSandbox{Name: "web", Request: idempotent("k")}
			out, err := b.plane.CreateSandbox(t.Context(), b.admin, r)
			wantCode(t, err, tt.want)
			if d := time.Since(start); d > control.ProvisionTimeout {
				t.Errorf("it took %s", d)
			}
			sb := b.wantEnd(out.Value.ID, dayfly.StatusFailed, dayfly.EndStartupFailed)
			if e := dayfly.AsError(err); e.Details["sandbox"] != sb.ID {
				t.Errorf("error %+v does not name the sandbox", e)
			}
			b.node.change(func() {
				b.node.create = nil // key, name and quota are free again
			})
			again, err := b.plane.CreateSandbox(t.Context(), b.admin, r)
			if err != nil || again.Replayed || again.Value.ID == sb.ID || again.Value.Status != dayfly.StatusRunning {
				t.Errorf("again: %+v, %v", again, err)
			}
		})
	}
	bubble(t, "and cannot be undone at once", control.Config{}, func(t *testing.T, b *bed) {
		b.node.change(func() {
			b.node.create = func(context.Context, dayfly.Sandbox) error { return errTest }
		})
		b.node.change(func() {
			b.node.destroy = func(_ context.Context, id string) error {
				if b.node.destroyed(id) < 4 {
					return errTest
				}
				return nil
			}
		})
		out, err := b.plane.CreateSandbox(t.Context(), b.admin, control.CreateSandbox{})
		wantCode(t, err, dayfly.CodeInternal)
		b.wantEnd(out.Value.ID, dayfly.StatusDeleting, dayfly.EndStartupFailed)
		time.Sleep(time.Second)
		b.wantEnd(out.Value.ID, dayfly.StatusFailed, dayfly.EndStartupFailed)
	})
	bubble(t, "no more time than its lease", control.Config{}, func(t *testing.T, b *bed) {
		start := time.Now()
		b.node.change(func() {
			b.node.create = func(ctx context.Context, _ dayfly.Sandbox) error { <-ctx.Done(); return ctx.Err() }
		})
		_, err := b.plane.CreateSandbox(t.Context(), b.admin, control.CreateSandbox{Timeout: 5 * time.Second})
		wantCode(t, err, dayfly.CodeInternal)
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("it took %s", d)
		}
	})
	bubble(t, "and its end cannot be recorded", control.Config{}, func(t *testing.T, b *bed) {
		b.node.change(func() {
			b.node.create = func(context.Context, dayfly.Sandbox) error {
				b.store.set("MoveSandbox", dayfly.Errorf(dayfly.CodeUnavailable, "down"))
				return errTest
			}
		})
		out, err := b.plane.CreateSandbox(t.Context(), b.admin, control.CreateSandbox{})
		wantCode(t, err, dayfly.CodeInternal)
		b.wantEnd(out.Value.ID, dayfly.StatusProvisioning, "")
		b.store.set("MoveSandbox", nil)
		time.Sleep(time.Minute) // a later pass gives it up
		b.wantEnd(out.Value.ID, dayfly.StatusFailed, dayfly.EndStartupFailed)
	})
	bubble(t, "its image went away at this moment", control.Config{}, func(t *testing.T, b *bed) {
		b.node.change(func() {
			b.node.admit = func() error { // after the image was chosen
				_, err := b.plane.ImportBase(t.Context(), control.ImportImage{Name: dayfly.ImageBase})
				return err
			}
		})
		_, err := b.plane.CreateSandbox(t.Context(), b.admin, control.CreateSandbox{Request: idempotent("k")})
		wantCode(t, err, dayfly.CodeUnavailable)
		if b.node.lives() != 0 {
			t.Error("a machine was made from a removed image")
		}
		b.node.change(func() {
			b.node.admit = nil
		})
		b.create(control.CreateSandbox{Request: idempotent("k")})
	})
}

// slow has creates wait until the returned function is called.
func (b *bed) slow() (finish func()) {
	gate := make(chan struct{})
	b.node.change(func() {
		b.node.create = func(ctx context.Context, _ dayfly.Sandbox) error {
			select {
			case <-gate:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	return sync.OnceFunc(func() { close(gate) })
}

func TestCreateAsync(t *testing.T) {
	bubble(t, "answers at once", control.Config{}, func(t *testing.T, b *bed) {
		finish := b.slow()
		sb := b.create(control.CreateSandbox{Async: true})
		if sb.Status != dayfly.StatusProvisioning {
			t.Errorf("status = %s", sb.Status)
		}
		_, err := b.plane.Machine(t.Context(), b.admin, sb.ID)
		wantCode(t, err, dayfly.CodeNotRunning)
		_, err = b.plane.ExtendSandbox(t.Context(), b.admin, sb.ID, time.Minute)
		wantCode(t, err, dayfly.CodeNotRunning)
		finish()
		synctest.Wait()
		b.wantEnd(sb.ID, dayfly.StatusRunning, "")
	})
	bubble(t, "goes on when the client is gone", control.Config{}, func(t *testing.T, b *bed) {
		finish := b.slow()
		ctx, cancel := context.WithCancel(t.Context())
		go func() { synctest.Wait(); cancel() }()
		_, err := b.plane.CreateSandbox(ctx, b.admin, control.CreateSandbox{})
		wantCode(t, err, dayfly.CodeUnavailable)
		finish()
		synctest.Wait()
		b.wantEnd(b.all()[0].ID, dayfly.StatusRunning, "")
	})
}

func TestCreateReplay(t *testing.T) {
	r := control.CreateSandbox{Name: "web", Request: idempotent("k")}
	bubble(t, "while it is being made", control.Config{}, func(t *testing.T, b *bed) {
		finish := b.slow()
		var g sync.WaitGroup
		ids := make([]string, 20)
		replays := make([]bool, 20)
		for i := range ids {
			g.Go(func() {
				out, err := b.plane.CreateSandbox(t.Context(), b.admin, r)
				if err != nil || out.Value.Status != dayfly.StatusRunning {
					t.Errorf("%+v, %v", out, err)
				}
				ids[i], replays[i] = out.Value.ID, out.Replayed
			})
		}
		synctest.Wait()
		async := r
		async.Async = true
		out, err := b.plane.CreateSandbox(t.Context(), b.admin, async)
		if err != nil || !out.Replayed || out.Value.Status != dayfly.StatusProvisioning {
			t.Errorf("async replay = %+v, %v", out, err)
		}
		finish()
		g.Wait()
		slices.Sort(ids)
		fresh := 0
		for _, replayed := range replays {
			if !replayed {
				fresh++
			}
		}
		if len(slices.Compact(ids)) != 1 || fresh != 1 || b.node.lives() != 1 {
			t.Errorf("%d ids, %d fresh, %d machines", len(slices.Compact(ids)), fresh, b.node.lives())
		}
	})
	bubble(t, "afterwards", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(r)
		again := func(want dayfly.Status) {
			t.Helper()
			out, err := b.plane.CreateSandbox(t.Context(), b.admin, r)
			if err != nil || !out.Replayed || out.Value.ID != sb.ID || out.Value.Status != want {
				t.Errorf("replay = %+v, %v", out, err)
			}
		}
		again(dayfly.StatusRunning)
		b.node.change(func() {
			b.node.admit = func() error { return dayfly.Errorf(dayfly.CodeNoCapacity, "full") }
		})
		again(dayfly.StatusRunning)
		other := r
		other.Request.Hash = "another body"
		_, err := b.plane.CreateSandbox(t.Context(), b.admin, other)
		wantCode(t, err, dayfly.CodeKeyReused)
		b.node.change(func() {
			b.node.admit = nil
		})
		_, err = b.plane.CreateSandbox(t.Context(), b.admin, other)
		wantCode(t, err, dayfly.CodeKeyReused)
		if _, err := b.plane.DeleteSandbox(t.Context(), b.admin, sb.ID); err != nil {
			t.Error(err)
		}
		again(dayfly.StatusDeleted)
		if b.node.lives() != 1 {
			t.Errorf("%d machines were made", b.node.lives())
		}
	})
	bubble(t, "of another account", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(r)
		out, err := b.plane.CreateSandbox(t.Context(), b.account("other"), r)
		if err != nil || out.Replayed || out.Value.ID == sb.ID {
			t.Errorf("%+v, %v", out, err)
		}
	})
}

func TestQuotaAndNames(t *testing.T) {
	bubble(t, "quota is exact", control.Config{MaxLive: 5}, func(t *testing.T, b *bed) {
		who := b.account("team")
		finish := b.slow()
		var g sync.WaitGroup
		var mu sync.Mutex
		codes := map[dayfly.Code]int{}
		for range 20 {
			g.Go(func() {
				_, err := b.plane.CreateSandbox(t.Context(), who, control.CreateSandbox{})
				mu.Lock()
				defer mu.Unlock()
				codes[dayfly.ErrorCode(err)]++
			})
		}
		synctest.Wait()
		finish()
		g.Wait()
		if codes[""] != 5 || codes[dayfly.CodeQuotaExceeded] != 15 {
			t.Errorf("outcomes = %v", codes)
		}
		for range 20 { // the first account has no quota
			b.create(control.CreateSandbox{})
		}
	})
	bubble(t, "a name is taken while its sandbox lives", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{Name: "web"})
		_, err := b.plane.CreateSandbox(t.Context(), b.admin, control.CreateSandbox{Name: "web"})
		wantCode(t, err, dayfly.CodeConflict)
		if dayfly.AsError(err).Details["sandbox"] != sb.ID {
			t.Errorf("error %v does not name the holder", err)
		}
		other := b.create(control.CreateSandbox{})
		name := "web"
		_, err = b.plane.LabelSandbox(t.Context(), b.admin, other.ID, nil, &name)
		wantCode(t, err, dayfly.CodeConflict)
		_, err = b.plane.DeleteSandbox(t.Context(), b.admin, sb.ID)
		wantCode(t, err, "")
		got, err := b.plane.LabelSandbox(t.Context(), b.admin, other.ID, map[string]string{"x": "y"}, &name)
		if err != nil || got.Name != "web" || got.Labels["x"] != "y" {
			t.Errorf("LabelSandbox = %+v, %v", got, err)
		}
		_, err = b.plane.LabelSandbox(t.Context(), b.admin, sb.ID, nil, &name)
		wantGone(t, err, dayfly.EndRequested)
	})
}
