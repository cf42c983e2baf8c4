package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/metrics"
)

func read(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func wantLines(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains("\n"+text, "\n"+line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
}

func quiet(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

func TestMeter(t *testing.T) {
	m := metrics.New("v1", quiet(t))
	m.Created(3 * time.Millisecond)
	m.Executed(1010*time.Millisecond, time.Second)
	m.Executed(time.Second, 2*time.Second) // clocks of two machines
	m.Executing(2)
	m.Executing(-1)
	m.Deleted(time.Minute)
	m.Ended(dayfly.EndOOM)
	m.LeaseEnded(40 * time.Millisecond)
	wantLines(t, read(t, m),
		`dayfly_sandbox_create_seconds_bucket{le="0.002"} 0`, `dayfly_sandbox_create_seconds_bucket{le="0.005"} 1`,
		`dayfly_exec_seconds_bucket{le="2"} 2`, `dayfly_exec_seconds_bucket{le="1"} 1`, `dayfly_exec_overhead_seconds_bucket{le="0.001"} 1`,
		`dayfly_exec_overhead_seconds_bucket{le="0.02"} 2`, `dayfly_execs_running 1`, `dayfly_sandbox_delete_seconds_bucket{le="60"} 1`,
		`dayfly_sandboxes_ended_total{reason="oom"} 1`, `dayfly_sandboxes_ended_total{reason="crashed"} 0`,
		`dayfly_lease_end_lateness_seconds_bucket{le="0.02"} 0`, `dayfly_lease_end_lateness_seconds_bucket{le="0.05"} 1`)
}

// TestKindsStayFew: whatever findings are called, the number of lines has a bound.
func TestKindsStayFew(t *testing.T) {
	m := metrics.New("v1", quiet(t))
	for i := range 1000 {
		m.Found(fmt.Sprint("kind", i))
	}
	m.Found("kind0")
	m.Found("")
	text := read(t, m)
	wantLines(t, text, `dayfly_reconcile_findings_total{kind="kind0"} 2`, `dayfly_reconcile_findings_total{kind="other"} 969`)
	if n := strings.Count(text, "\ndayfly_reconcile_findings_total{"); n != 33 {
		t.Errorf("%d kinds", n)
	}
}

// pool is a disk pool that is looked at.
type pool struct {
	dayfly.Pool // what is not here is not called
	looks       int
	err         error
}

func (p *pool) Usage(context.Context) (int64, int64, error) {
	p.looks++
	return 1000, 400, p.err
}

func (p *pool) Reclaiming(context.Context) (int, error) { return 3, nil }

func TestSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New("v1", quiet(t))
		disks := &pool{}
		var dead error
		m.Watch(metrics.Sources{Pool: disks, Warden: func() error { return dead }, Sandboxes: func(context.Context) (map[dayfly.Status]int, error) {
			return map[dayfly.Status]int{dayfly.StatusRunning: 7}, nil
		}})
		for range 5 {
			wantLines(t, read(t, m), `dayfly_sandboxes{status="running"} 7`, `dayfly_pool_bytes 1000`, `dayfly_pool_free_bytes 400`,
				`dayfly_pool_reclaiming_disks 3`, `dayfly_warden_alive 1`, `dayfly_metrics_source_failed{source="pool"} 0`)
		}
		if disks.looks != 1 {
			t.Errorf("%d looks at the pool for five who asked at once", disks.looks)
		}
		time.Sleep(2 * time.Second)
		dead, disks.err = errors.New("no warden"), io.ErrUnexpectedEOF
		text := read(t, m)
		wantLines(t, text, `dayfly_warden_alive 0`, `dayfly_metrics_source_failed{source="pool"} 1`, `dayfly_sandboxes{status="running"} 7`)
		if strings.Contains(text, "\ndayfly_pool_bytes ") {
			t.Error("a pool that could not be looked at has a size")
		}
	})
}

// TestNamesAreTyped: every figure of ours has a help text and a name that says its unit.
func TestNamesAreTyped(t *testing.T) {
	m := metrics.New("v1", quiet(t))
	m.Watch(metrics.Sources{Pool: &pool{}, Warden: func() error { return nil }})
	for line := range strings.Lines(read(t, m)) {
		name, ok := strings.CutPrefix(line, "# TYPE dayfly_")
		if !ok {
			continue
		}
		name, kind, _ := strings.Cut(strings.TrimSpace(name), " ")
		if kind == "histogram" && !strings.HasSuffix(name, "_seconds") || kind == "counter" && !strings.HasSuffix(name, "_total") {
			t.Errorf("%s is a %s", name, kind)
		}
	}
}
