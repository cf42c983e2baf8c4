package store_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/store"
)

// open opens a fresh database in a file.
func open(tb testing.TB) *store.DB {
	tb.Helper()
	db, err := store.Open(tb.Context(), filepath.Join(tb.TempDir(), "dayfly.db"), store.Options{})
	if err != nil {
		tb.Fatalf("Open: %v", err)
	}
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return db
}

// epoch is when the tests' records were made.
var epoch = time.Date(2031, 5, 1, 12, 0, 0, 0, time.UTC)

func newSandbox(account string, age time.Duration) dayfly.Sandbox {
	return dayfly.Sandbox{
		ID: dayfly.NewID(dayfly.PrefixSandbox), Account: account, Status: dayfly.StatusProvisioning, Wanted: dayfly.StatusRunning,
		Labels: map[string]string{"team": "blue", "task": "t" + fmt.Sprint(int64(age)%97)},
		Spec: dayfly.SandboxSpec{
			Size: "small", Limits: dayfly.Limits{VCPU: 1, MemoryBytes: 1 << 30, DiskBytes: 8 << 30}, Image: dayfly.ImageBase,
			Isolation: dayfly.IsolationAuto, Timeout: dayfly.LeaseDefault,
		},
		Lease: dayfly.Lease{BootID: "boot", Born: time.Hour, Deadline: 2 * time.Hour, Ceiling: 25 * time.Hour},
		Times: dayfly.SandboxTimes{CreatedAt: epoch.Add(age)},
	}
}

// BenchmarkHotPath measures the three writes of a sandbox's birth, each with two labels and 100 live neighbours.
func BenchmarkHotPath(b *testing.B) {
	db, ctx := open(b), b.Context()
	for i := range 100 {
		create(b, db, newSandbox("ac1", time.Duration(i)))
	}
	var creates, moves, begins, finishes, reads []time.Duration
	timed := func(to *[]time.Duration, f func() error) {
		start := time.Now()
		if err := f(); err != nil {
			b.Fatal(err)
		}
		*to = append(*to, time.Since(start))
	}
	for i := 0; b.Loop(); i++ {
		sb := newSandbox("ac1", time.Hour+time.Duration(i))
		timed(&creates, func() (err error) {
			sb, _, err = db.CreateSandbox(ctx, sb, request("POST /v1/sandboxes", "k"+sb.ID, "hash"), 200)
			return err
		})
		sb.Status, sb.Times.ReadyAt = dayfly.StatusRunning, epoch
		timed(&moves, func() (err error) { sb, err = db.MoveSandbox(ctx, sb); return err })
		timed(&reads, func() (err error) { _, err = db.Sandbox(ctx, "ac1", sb.ID); return err })
		req := request("POST /v1/sandboxes/x/exec", "e"+sb.ID, "hash")
		timed(&begins, func() (err error) { _, err = db.BeginRequest(ctx, *req); return err })
		timed(&finishes, func() error { return db.FinishRequest(ctx, *req) })
		sb.Status, sb.End, sb.Times.EndedAt = dayfly.StatusDeleted, dayfly.EndRequested, epoch
		timed(&moves, func() (err error) { sb, err = db.MoveSandbox(ctx, sb); return err })
	}
	for _, m := range []struct {
		name string
		took []time.Duration
	}{{"create", creates}, {"move", moves}, {"begin", begins}, {"finish", finishes}, {"read", reads}} {
		slices.Sort(m.took)
		b.ReportMetric(float64(m.took[len(m.took)/2].Microseconds()), m.name+"-p50-µs")
		b.ReportMetric(float64(m.took[len(m.took)*99/100].Microseconds()), m.name+"-p99-µs")
	}
}

func create(tb testing.TB, db *store.DB, sb dayfly.Sandbox) dayfly.Sandbox {
	tb.Helper()
	stored, _, err := db.CreateSandbox(context.Background(), sb, nil /* no key */, 0)
	if err != nil {
		tb.Fatalf("CreateSandbox: %v", err)
	}
	return stored
}

func request(operation, key, hash string) *dayfly.Request {
	return &dayfly.Request{Account: "ac1", Key: key, Operation: operation, Hash: hash, CreatedAt: epoch}
}
