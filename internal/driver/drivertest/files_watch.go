package drivertest

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"dayfly.dev/dayfly"
)

// watchSeesAll: below a watched directory nothing happens untold, also in directories that were not there when it began.
func watchSeesAll(t *testing.T, s *suite) {
	g := s.guest(t)
	home := strings.TrimSpace(g.sh(t, "mkdir -p w/old; pwd")) + "/w"
	watch := func(t *testing.T) dayfly.ChangeStream {
		t.Helper()
		w, err := g.Watch(ctx(t), "w", true /* recursive */)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Close() })
		return w
	}
	// until reads changes up to the one wanted.
	until := func(t *testing.T, w dayfly.ChangeStream, what string, wanted func(dayfly.FileChange) bool) {
		t.Helper()
		for {
			c, err := w.Next()
			if err != nil {
				t.Fatalf("before %s: %v", what, err)
			}
			if c.Kind == dayfly.ChangeOverflow {
				t.Fatalf("before %s changes were lost", what)
			}
			if wanted(c) {
				return
			}
		}
	}
	t.Run("directories made later", func(t *testing.T) {
		w := watch(t)
		for i := range 20 {
			g.sh(t, fmt.Sprintf("mkdir -p w/%d/b/c && touch w/%d/b/c/f", i, i))
			want := fmt.Sprintf("%s/%d/b/c/f", home, i)
			until(t, w, want, func(c dayfly.FileChange) bool { return c.Kind == dayfly.ChangeCreated && c.Path == want })
		}
	})
	t.Run("what changes, moves and goes", func(t *testing.T) {
		g.sh(t, "echo 1 >w/old/f")
		w := watch(t)
		for _, tt := range []struct {
			command string
			want    dayfly.FileChange
		}{
			{"echo 2 >>w/old/f", dayfly.FileChange{Kind: dayfly.ChangeModified, Path: "old/f"}},
			{"chmod 600 w/old/f", dayfly.FileChange{Kind: dayfly.ChangeMetadata, Path: "old/f"}},
			{"mv w/old/f w/old/g", dayfly.FileChange{Kind: dayfly.ChangeMoved, From: "old/f", Path: "old/g"}},
			{"mv w/old w/new", dayfly.FileChange{Kind: dayfly.ChangeMoved, From: "old", Path: "new"}},
			{"touch w/new/h", dayfly.FileChange{Kind: dayfly.ChangeCreated, Path: "new/h"}},
			{"rm w/new/g", dayfly.FileChange{Kind: dayfly.ChangeDeleted, Path: "new/g"}},
			{"mv w/new/h away", dayfly.FileChange{Kind: dayfly.ChangeDeleted, Path: "new/h"}},
			{"mv away w/back", dayfly.FileChange{Kind: dayfly.ChangeCreated, Path: "back"}},
		} {
			g.sh(t, tt.command)
			until(t, w, tt.command, func(c dayfly.FileChange) bool {
				from := tt.want.From == "" || c.From == home+"/"+tt.want.From
				return c.Kind == tt.want.Kind && c.Path == home+"/"+tt.want.Path && from
			})
		}
	})
	t.Run("ten thousand at once", func(t *testing.T) {
		const many = 10_000
		w := watch(t)
		g.sh(t, fmt.Sprintf("mkdir w/many; cd w/many; seq %d | xargs touch; touch ../last", many))
		seen := make(map[string]bool)
		for lost := false; !lost && !seen[home+"/last"]; {
			c, err := w.Next()
			if err != nil {
				t.Fatal(err)
			}
			lost = c.Kind == dayfly.ChangeOverflow
			seen[c.Path] = seen[c.Path] || c.Kind == dayfly.ChangeCreated
			if c.Path == home+"/last" && len(seen) < many {
				t.Errorf("%d of %d are told, and no loss", len(seen), many)
			}
		}
		g.sh(t, "touch w/after")
		for {
			c, err := w.Next()
			if err != nil {
				t.Fatal(err)
			}
			if c.Kind == dayfly.ChangeCreated && c.Path == home+"/after" {
				break
			}
		}
	})
	t.Run("the directory itself goes", func(t *testing.T) {
		w := watch(t)
		g.sh(t, "rm -rf w")
		for {
			if _, err := w.Next(); err == io.EOF {
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
	})
}
