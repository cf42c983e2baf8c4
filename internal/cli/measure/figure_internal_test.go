package measure

import (
	"math"
	"testing"
)

func TestQuantiles(t *testing.T) {
	for _, tt := range []struct {
		name          string
		samples       []float64
		p50, p95, p99 float64
	}{
		{"one", []float64{7}, 7, 7, 7},
		{"two", []float64{2, 1}, 2, 2, 2},
		{"twenty", []float64{20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, 11, 20, 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := quantiles("id", "text", "linux", Milliseconds, tt.samples)
			if f.N != len(tt.samples) || f.P50 != tt.p50 || f.P95 != tt.p95 || f.P99 != tt.p99 {
				t.Errorf("%+v", f)
			}
		})
	}
}

func TestRatiosAreToTheFloorOfTheSameRun(t *testing.T) {
	floor := quantiles(barePython, "", Bare, Milliseconds, []float64{10})
	box := quantiles(boxFirst, "", "linux", Milliseconds, []float64{25})
	box.floor = barePython
	alone := quantiles(boxExec, "", "linux", Milliseconds, []float64{25})
	alone.floor = bareSpawn // not measured
	all := []Figure{floor, box, alone}
	compare(all)
	if all[1].Floor == nil || all[1].Floor.RatioP50 != 2.5 || all[0].Floor != nil || all[2].Floor != nil {
		t.Errorf("%+v", all)
	}
}

func TestSlope(t *testing.T) {
	for _, tt := range []struct {
		name string
		y    []float64
		want float64
	}{
		{"a line", []float64{100, 90, 80, 70}, -1},
		{"level", []float64{5, 5, 5, 5}, 0},
		{"one reading disturbed", []float64{100, 90, 83, 70}, -1},
		{"the first far off", []float64{40, 90, 80, 70, 60}, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := slope([]float64{0, 10, 20, 30, 40}[:len(tt.y)], tt.y); math.Abs(got-tt.want) > 0.02 {
				t.Errorf("slope %v, want %v", got, tt.want)
			}
		})
	}
}

func TestWhatTheProgramOfTheCostsPrints(t *testing.T) {
	whole := `{"cost_cpu":1,"cost_syscalls":2,"cost_processes":3,"cost_files":4,"cost_tree":5,"cost_network":6,"other":7}`
	for _, tt := range []struct {
		name, out string
		ok        bool
	}{
		{"all", whole, true},
		{"nothing", "", false},
		{"no JSON", "Traceback (most recent call last)", false},
		{"one is missing", `{"cost_cpu":1}`, false},
		{"below nothing", `{"cost_cpu":-1,"cost_syscalls":2,"cost_processes":3,"cost_files":4,"cost_tree":5,"cost_network":6}`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := map[sampleKey][]float64{}
			err := spent(s, "linux", tt.out)
			if (err == nil) != tt.ok {
				t.Errorf("error %v", err)
			}
			if tt.ok && len(s) != len(costFigures) {
				t.Errorf("%d figures were taken, want the %d that are known", len(s), len(costFigures))
			}
		})
	}
}
