package measure

import (
	"slices"
	"time"
)

// Bare is what takes the place of an isolation in figures of the host itself.
const Bare = "bare"

// Units of figures.
const (
	Milliseconds = "ms"
	Mebibytes    = "MiB"
	Count        = "count"
)

// Figure is one measured thing. Ids stay; new ones may be added.
type Figure struct {
	ID        string  `json:"id"`
	Text      string  `json:"text"`
	Isolation string  `json:"isolation"` // or bare
	Unit      string  `json:"unit"`
	N         int     `json:"n"` // samples
	P50       float64 `json:"p50"`
	P95       float64 `json:"p95"`
	P99       float64 `json:"p99"`
	Floor     *Floor  `json:"floor"`          // nil: compared with nothing
	Note      string  `json:"note,omitempty"` // what to know when reading it, or empty
	floor     string  // id of the bare figure that it is compared with, or empty
}

// Floor is the same on the bare host, and how often it goes into the figure.
type Floor struct {
	ID       string  `json:"id"`
	RatioP50 float64 `json:"ratio_p50"`
	RatioP99 float64 `json:"ratio_p99"`
}

// Skipped is what could not be measured, and why.
type Skipped struct {
	ID        string `json:"id"`        // of a figure or a part
	Isolation string `json:"isolation"` // or bare; empty: all
	Reason    string `json:"reason"`
}

// quantiles makes a figure of samples. Percentiles are order statistics without interpolation: the p99 of 50 samples is the
// largest.
func quantiles(id, text, isolation, unit string, samples []float64) Figure {
	v := slices.Sorted(slices.Values(samples))
	at := func(q float64) float64 { return v[min(len(v)-1, int(q*float64(len(v))))] }
	return Figure{ID: id, Text: text, Isolation: isolation, Unit: unit, N: len(v), P50: at(0.50), P95: at(0.95), P99: at(0.99)}
}

// samples collects durations by figure and isolation, in milliseconds.
type samples map[sampleKey][]float64

type sampleKey struct{ id, isolation string }

func (s samples) add(id, isolation string, d time.Duration) {
	k := sampleKey{id, isolation}
	s[k] = append(s[k], float64(d.Microseconds())/1000)
}

// compare fills in the ratios to the floors.
func compare(figures []Figure) {
	bare := map[string]Figure{}
	for _, f := range figures {
		if f.Isolation == Bare {
			bare[f.ID] = f
		}
	}
	for i, f := range figures {
		floor, ok := bare[f.floor]
		if ok && f.Isolation != Bare && floor.P50 > 0 && floor.P99 > 0 {
			figures[i].Floor = &Floor{ID: f.floor, RatioP50: f.P50 / floor.P50, RatioP99: f.P99 / floor.P99}
		}
	}
}
