package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"dayfly.dev/dayfly"
)

// Sources are looked at when somebody asks for the figures. Any may be nil.
type Sources struct {
	Sandboxes func(ctx context.Context) (map[dayfly.Status]int, error) // live ones by status
	Pool      dayfly.Pool
	Warden    func() error // why no warden is alive, or nil
}

const (
	lookMax  = 5 * time.Second // for all sources together
	lookKept = time.Second     // how long a look is good for: many who ask cost no more than one
)

var (
	sandboxesDesc  = describe("dayfly_sandboxes", "Live sandboxes, by status.", "status")
	poolDesc       = describe("dayfly_pool_bytes", "Size of the disk pool.")
	freeDesc       = describe("dayfly_pool_free_bytes", "What is free of the disk pool.")
	reclaimingDesc = describe("dayfly_pool_reclaiming_disks", "Removed disks whose space has not come back yet.")
	wardenDesc     = describe("dayfly_warden_alive", "1 while a warden of this server watches the leases, else 0.")
	failedDesc     = describe("dayfly_metrics_source_failed", "1 where a figure is missing because its source could not be looked at.", "source")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Watch adds the figures of the sources. Call it once.
func (m *Metrics) Watch(s Sources) { m.registry.MustRegister(&looker{metrics: m, sources: s}) }

// looker is a collector that looks at the sources.
type looker struct {
	metrics *Metrics
	sources Sources

	mu   sync.Mutex
	at   time.Time // of the last look
	seen []prometheus.Metric
}

// Describe implements prometheus.Collector.
func (l *looker) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{sandboxesDesc, poolDesc, freeDesc, reclaimingDesc, wardenDesc, failedDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (l *looker) Collect(to chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at.IsZero() || time.Since(l.at) > lookKept {
		ctx, cancel := context.WithTimeout(context.Background(), lookMax)
		l.seen = l.look(ctx)
		cancel()
		l.at = time.Now()
	}
	for _, one := range l.seen {
		to <- one
	}
}

// look asks every source. What cannot be looked at has no figure: it is not 0.
func (l *looker) look(ctx context.Context) (seen []prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		seen = append(seen, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...))
	}
	failed := func(source string, err error) bool {
		value := 0.0
		if err != nil {
			value = 1
			l.metrics.log.Error("look at a source of metrics", "source", source, "error", err)
		}
		gauge(failedDesc, value, source)
		return err != nil
	}
	if count := l.sources.Sandboxes; count != nil {
		if counts, err := count(ctx); !failed("sandboxes", err) {
			for status, n := range counts {
				gauge(sandboxesDesc, float64(n), string(status))
			}
		}
	}
	if pool := l.sources.Pool; pool != nil {
		if total, free, err := pool.Usage(ctx); !failed("pool", err) {
			gauge(poolDesc, float64(total))
			gauge(freeDesc, float64(free))
		}
		if n, err := pool.Reclaiming(ctx); !failed("reclaiming", err) {
			gauge(reclaimingDesc, float64(n))
		}
	}
	if alive := l.sources.Warden; alive != nil {
		if alive() == nil {
			gauge(wardenDesc, 1)
		} else {
			gauge(wardenDesc, 0)
		}
	}
	return seen
}
