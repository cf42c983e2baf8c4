package agent_test

import (
	"os/exec"
	"slices"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

// BenchmarkRoundTrip compares a command through the agent with the same program started here, in turns, so that other load
// meets both.
func BenchmarkRoundTrip(b *testing.B) {
	for _, mode := range modes {
		b.Run(mode.name, func(b *testing.B) {
			m := startAgent(b, mode.options)
			var bare, inside []time.Duration
			for b.Loop() {
				start := time.Now()
				if err := exec.Command("/bin/true").Run(); err != nil {
					b.Fatal(err)
				}
				bare = append(bare, time.Since(start))
				start = time.Now()
				m.run(b, dayfly.ProcessSpec{ID: dayfly.NewID(dayfly.PrefixProcess), Argv: []string{"/bin/true"}})
				inside = append(inside, time.Since(start))
			}
			slices.Sort(bare)
			slices.Sort(inside)
			at := func(d []time.Duration, q int) float64 { return float64(d[len(d)*q/100].Microseconds()) }
			b.ReportMetric(at(bare, 50), "bare-p50-µs")
			b.ReportMetric(at(inside, 50), "run-p50-µs")
			b.ReportMetric(at(bare, 99), "bare-p99-µs")
			b.ReportMetric(at(inside, 99), "run-p99-µs")
			b.ReportMetric(at(inside, 50)/at(bare, 50), "ratio-p50")
		})
	}
}
