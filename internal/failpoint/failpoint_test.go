package failpoint_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestAReleaseHasNoTraceOfPoints looks for the package and for the names of points in binaries of both kinds. The agent stands
// for all programs: it is the small one that has points.
func TestAReleaseHasNoTraceOfPoints(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it builds the program")
	}
	for _, tt := range []struct {
		name, tags string
		want       bool
	}{
		{"release", "", false},
		{"with the tag", "failpoints", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bin := filepath.Join(t.TempDir(), "agent")
			build := exec.Command("go", "build", "-tags", tt.tags, "-o", bin, "dayfly.dev/dayfly/cmd/dayfly-agent")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("build: %v: %s", err, out)
			}
			b, err := os.ReadFile(bin)
			if err != nil {
				t.Fatal(err)
			}
			for _, trace := range []string{"internal/failpoint", "agent.exec.", "DAYFLY_FAILPOINTS"} {
				if got := bytes.Contains(b, []byte(trace)); got != tt.want {
					t.Errorf("%q in the binary: %v, want %v", trace, got, tt.want)
				}
			}
		})
	}
}
