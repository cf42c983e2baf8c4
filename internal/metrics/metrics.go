// Package metrics keeps the operator's figures and shows them in the format of Prometheus: it is told of what happens (a Meter
// of the control plane) and looks at the rest when somebody asks (Sources). It decides nothing, names no sandbox, account or
// image, and starts nothing in the background.
//
// To add a figure of something that happens, give control.Meter a method and Metrics a collector that it feeds; to add one of
// something that is there, give Sources a function and source.go a description. Labels take few, known values only.
package metrics

import (
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"dayfly.dev/dayfly"
)

// kindsMax is how many kinds of findings are told apart; further ones count as "other".
const kindsMax = 32

// Buckets in seconds, from what a good day looks like to where the limits are.
var (
	machineBuckets  = []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60}
	commandBuckets  = []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 300, 600, 3600}
	overheadBuckets = []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5}
	latenessBuckets = []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 3, 10, 60}
)

// endReasons are shown from the start, so that a first one is a step from 0.
var endReasons = []dayfly.EndReason{
	dayfly.EndRequested, dayfly.EndLeaseExpired, dayfly.EndStartupFailed, dayfly.EndOOM, dayfly.EndCrashed, dayfly.EndHostLost,
	dayfly.EndReconciled, dayfly.EndShutdown,
}

// Metrics is told what happens. It is a control.Meter, safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry
	log      *slog.Logger

	create, remove, command, overhead, lateness prometheus.Histogram

	ended     *prometheus.CounterVec
	found     *prometheus.CounterVec
	executing prometheus.Gauge

	mu    sync.Mutex
	kinds map[string]bool // of findings that have a label
}

// New makes the figures of a server of this version, all at 0.
func New(version string, log *slog.Logger) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), log: log, kinds: map[string]bool{}}
	m.create = m.histogram("dayfly_sandbox_create_seconds", "From the acceptance of a sandbox until it accepts commands.", machineBuckets)
	m.remove = m.histogram("dayfly_sandbox_delete_seconds", "From the beginning of a sandbox's teardown, for whatever reason, until nothing of it runs and its disk is unlinked.", machineBuckets)
	m.command = m.histogram("dayfly_exec_seconds", "From the request for a command until its end was seen.", commandBuckets)
	m.overhead = m.histogram("dayfly_exec_overhead_seconds", "What of dayfly_exec_seconds was not the command's own run time.", overheadBuckets)
	m.lateness = m.histogram("dayfly_lease_end_lateness_seconds", "From the deadline of a lease until the last process of its machine was dead.", latenessBuckets)
	m.ended = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dayfly_sandboxes_ended_total", Help: "Sandboxes that ended, by reason."}, []string{"reason"})
	m.found = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dayfly_reconcile_findings_total",
		Help: "Disagreements of host and records, by kind; each is an event too, or in the log."}, []string{"kind"})
	m.executing = prometheus.NewGauge(prometheus.GaugeOpts{Name: "dayfly_execs_running", Help: "Requests that wait for a command or follow it."})
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "dayfly_build_info", Help: "1, with the version of the server."}, []string{"version"})
	build.WithLabelValues(version).Set(1)
	for _, reason := range endReasons {
		m.ended.WithLabelValues(string(reason))
	}
	m.registry.MustRegister(m.ended, m.found, m.executing, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *Metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	m.registry.MustRegister(h)
	return h
}

// Created implements control.Meter.
func (m *Metrics) Created(took time.Duration) { m.create.Observe(took.Seconds()) }

// Executed implements control.Meter.
func (m *Metrics) Executed(took, ran time.Duration) {
	m.command.Observe(took.Seconds())
	m.overhead.Observe(max(0, took-ran).Seconds())
}

// Executing implements control.Meter.
func (m *Metrics) Executing(more int) { m.executing.Add(float64(more)) }

// Deleted implements control.Meter.
func (m *Metrics) Deleted(took time.Duration) { m.remove.Observe(took.Seconds()) }

// Ended implements control.Meter.
func (m *Metrics) Ended(reason dayfly.EndReason) { m.ended.WithLabelValues(string(reason)).Inc() }

// LeaseEnded implements control.Meter.
func (m *Metrics) LeaseEnded(late time.Duration) { m.lateness.Observe(late.Seconds()) }

// Found implements control.Meter.
func (m *Metrics) Found(kind string) { m.found.WithLabelValues(m.known(kind)).Inc() }

// known gives kind a label while there are few of them.
func (m *Metrics) known(kind string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if kind == "" || !m.kinds[kind] && len(m.kinds) == kindsMax {
		return "other"
	}
	m.kinds[kind] = true
	return kind
}

// Handler answers with all figures as text.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(m.log.Handler(), slog.LevelError), ErrorHandling: promhttp.ContinueOnError, DisableCompression: true,
	})
}
