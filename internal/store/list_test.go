package store_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/store"
)

// filters are the pages that must cost the same however many records there are.
var filters = []struct {
	name string
	f    dayfly.SandboxFilter
}{
	{"all live", dayfly.SandboxFilter{}},
	{"all", dayfly.SandboxFilter{IncludeEnded: true}},
	{"account live", dayfly.SandboxFilter{Account: "ac1"}},
	{"account all", dayfly.SandboxFilter{Account: "ac1", IncludeEnded: true}},
	{"account one status", dayfly.SandboxFilter{Account: "ac1", Statuses: []dayfly.Status{dayfly.StatusPaused}}},
	{"account two statuses", dayfly.SandboxFilter{Account: "ac1", Statuses: []dayfly.Status{dayfly.StatusRunning, dayfly.StatusDeleted}}},
	{"label live", dayfly.SandboxFilter{Account: "ac1", Labels: map[string]string{"team": "blue"}}},
	{"label all", dayfly.SandboxFilter{Account: "ac1", Labels: map[string]string{"task": "t1"}, IncludeEnded: true}},
	{"label of all accounts", dayfly.SandboxFilter{Labels: map[string]string{"task": "t1"}, IncludeEnded: true}},
	{"label nobody has", dayfly.SandboxFilter{Account: "ac1", Labels: map[string]string{"task": "none"}, IncludeEnded: true}},
	{"label and status", dayfly.SandboxFilter{Account: "ac1", Labels: map[string]string{"team": "blue"}, Statuses: []dayfly.Status{dayfly.StatusFailed}}},
	{"two labels", dayfly.SandboxFilter{Account: "ac1", Labels: map[string]string{"task": "t1", "team": "blue"}, IncludeEnded: true}},
	{"name and label", dayfly.SandboxFilter{Account: "ac1", Name: "x", Labels: map[string]string{"team": "blue"}}},
	{"image", dayfly.SandboxFilter{Account: "ac1", Image: dayfly.ImageBase}},
	{"name of all accounts", dayfly.SandboxFilter{Name: "x", IncludeEnded: true}},
	{"name live", dayfly.SandboxFilter{Account: "ac1", Name: "x"}},
	{"name all", dayfly.SandboxFilter{Account: "ac1", Name: "x", IncludeEnded: true}},
}

func TestPageNeedsNoScanAndNoSort(t *testing.T) {
	db := open(t)
	for _, tt := range filters {
		for _, page := range []struct {
			name  string
			first bool
		}{{"first page", true}, {"later page", false}} {
			t.Run(tt.name+"/"+page.name, func(t *testing.T) {
				plan, err := db.Plan(t.Context(), tt.f, page.first)
				if err != nil {
					t.Fatalf("Plan: %v", err)
				}
				if strings.Contains(plan, "SCAN") || strings.Contains(plan, "TEMP B-TREE") {
					t.Errorf("the page scans or sorts:\n%s", plan)
				}
				if tt.f.Name != "" && !strings.Contains(plan, "name=?") {
					t.Errorf("the name does not lead:\n%s", plan)
				}
				if ranged := strings.Contains(plan, ")<(?,?)"); ranged == page.first {
					t.Errorf("the cursor is a range of an index: %v\n%s", ranged, plan)
				}
			})
		}
	}
}

// BenchmarkPage measures one page of 50 in the middle of many records, 90 % of them ended.
func BenchmarkPage(b *testing.B) {
	for _, records := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(records), func(b *testing.B) {
			db, middle := filled(b, records)
			for _, tt := range filters {
				b.Run(tt.name, func(b *testing.B) {
					tt.f.Cursor = middle
					for b.Loop() {
						if _, _, err := db.Sandboxes(b.Context(), tt.f); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		})
	}
}

// filled makes a database of n sandboxes and gives a cursor to the middle of them.
func filled(b *testing.B, n int) (db *store.DB, middle string) {
	db = open(b)
	for i := range n {
		sb := newSandbox("ac1", time.Duration(i)*time.Second)
		sb.Status = []dayfly.Status{dayfly.StatusRunning, dayfly.StatusPaused, dayfly.StatusFailed, dayfly.StatusDeleted}[min(i%20, 3)]
		if sb.Status.Ended() {
			sb.Name = "x"
		}
		if _, err := db.AdoptSandbox(b.Context(), sb); err != nil {
			b.Fatal(err)
		}
	}
	for range n / 2 / 100 {
		_, next, err := db.Sandboxes(b.Context(), dayfly.SandboxFilter{IncludeEnded: true, Limit: 100, Cursor: middle})
		if err != nil {
			b.Fatal(err)
		}
		middle = next
	}
	return db, middle
}

func TestCursorThatWasNotGiven(t *testing.T) {
	db := open(t)
	for i := range 3 {
		create(t, db, newSandbox("ac1", time.Duration(i)*time.Second))
	}
	_, good, err := db.Sandboxes(t.Context(), dayfly.SandboxFilter{Limit: 1})
	if err != nil || good == "" {
		t.Fatalf("Sandboxes = %q, %v", good, err)
	}
	raw, _ := base64.RawURLEncoding.DecodeString(good)
	raw[3] ^= 1
	for _, tt := range []struct{ name, cursor string }{
		{"word", "next"},
		{"half", good[:len(good)/2]},
		{"twice", good + good},
		{"padded", good + "="},
		{"line break", good[:4] + "\n" + good[4:]},
		{"changed byte", base64.RawURLEncoding.EncodeToString(raw)},
		{"NUL", "\x00"},
		{"long", strings.Repeat("A", 1<<20)},
		{"SQL", "' OR 1=1 --"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := db.Sandboxes(t.Context(), dayfly.SandboxFilter{Cursor: tt.cursor})
			if got := dayfly.ErrorCode(err); got != dayfly.CodeInvalid {
				t.Errorf("code = %q, want %q", got, dayfly.CodeInvalid)
			}
		})
	}
}

func FuzzCursor(f *testing.F) {
	db, err := store.Open(f.Context(), ":memory:", store.Options{})
	if err != nil {
		f.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for i := range 2 {
		create(f, db, newSandbox("ac1", time.Duration(i)))
	}
	_, good, err := db.Sandboxes(f.Context(), dayfly.SandboxFilter{Limit: 1})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{good, "", "AA", good + "A", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		again, err := store.ParseCursor(s)
		if err != nil {
			if dayfly.ErrorCode(err) != dayfly.CodeInvalid {
				t.Fatalf("ParseCursor(%q) = %v, not CodeInvalid", s, err)
			}
			return
		}
		if again != s {
			t.Fatalf("ParseCursor(%q) stands for %q", s, again)
		}
		if _, _, err := db.Sandboxes(t.Context(), dayfly.SandboxFilter{Cursor: s}); err != nil {
			t.Fatalf("Sandboxes at cursor %q: %v", s, err)
		}
	})
}
