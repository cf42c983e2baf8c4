package hostnet_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

// BenchmarkAttach attaches to ready namespaces, one after the other and thirty at once, and reports percentiles.
func BenchmarkAttach(b *testing.B) {
	for name, parallel := range map[string]int{"one": 1, "thirty at once": 30} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(b)
			n := w.open()
			times := make([]time.Duration, 0, b.N)
			detaches := make([]time.Duration, 0, b.N)
			for len(times) < b.N {
				boxes := make([]box, min(parallel, b.N-len(times)))
				for i := range boxes {
					boxes[i] = box{id: dayfly.NewID(dayfly.PrefixSandbox), slot: w.nextSlot(), ns: newNS(b)}
				}
				took := make([]time.Duration, len(boxes))
				var wg sync.WaitGroup
				for i, x := range boxes {
					wg.Go(func() {
						start := time.Now()
						must(b, n.Attach(context.Background(), x.slot, x.id, x.ns))
						took[i] = time.Since(start)
					})
				}
				wg.Wait()
				times = append(times, took...)
				for _, x := range boxes {
					start := time.Now()
					must(b, n.Detach(context.Background(), x.slot, x.id))
					detaches = append(detaches, time.Since(start))
					_ = x.ns.Close()
				}
			}
			report(b, "attach", times)
			report(b, "detach", detaches)
		})
	}
}

func report(b *testing.B, what string, times []time.Duration) {
	slices.Sort(times)
	at := func(q float64) float64 {
		return float64(times[int(q*float64(len(times)-1))].Microseconds()) / 1000
	}
	b.ReportMetric(at(0.50), what+"-p50-ms")
	b.ReportMetric(at(0.95), what+"-p95-ms")
	b.ReportMetric(at(0.99), what+"-p99-ms")
}
