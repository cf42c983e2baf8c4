package measure

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// Parts are what can be measured, in the order of measuring.
var Parts = []string{PartRounds, PartBurst, PartDensity, PartCosts}

// The parts.
const (
	PartRounds  = "rounds"  // create, exec, request, pause, delete: each once a round
	PartBurst   = "burst"   // many creates at once
	PartDensity = "density" // the memory of idle sandboxes
	PartCosts   = "costs"   // what a program pays inside: CPU, system calls, processes, files, network
)

// Options say what to measure.
type Options struct {
	Client     *sdk.Client
	Isolations []string // each measured in every round; not empty
	Parts      []string // of Parts
	Rounds     int      // samples of each figure of a round, > 0
	Burst      int      // creates at once
	Idle       int      // idle sandboxes that are weighed; fewer where no more fit
	Remote     bool     // the server is on another machine: no floor, no density
	Version    string   // of this program
	Progress   func(text string)
}

// Result is everything that was measured.
type Result struct {
	Version       string      `json:"version"`
	ServerVersion string      `json:"server_version"`
	StartedAt     time.Time   `json:"started_at"`
	Seconds       float64     `json:"seconds"` // that it took
	Host          Host        `json:"host"`
	Isolations    []string    `json:"isolations"` // that were measured
	Figures       []Figure    `json:"figures"`
	Idle          []IdlePoint `json:"idle"` // readings of density
	Skipped       []Skipped   `json:"skipped"`
}

// python is the interpreter inside.
const python = "python3"

// pythons are where the floor's interpreter is looked for: the distribution's own first, as images have.
var pythons = []string{"/usr/bin/python3", python}

// run is one measurement under way.
type run struct {
	Options
	boxes      *boxes
	isolations []string // that this server has
	python     string   // path of the host's python3, or empty
	bare       bool     // the floor is measured
	result     *Result
}

// Measure takes the figures. It destroys everything it made before it returns, also when ctx ends, which is then the error.
// Isolations and figures that cannot be measured are in Result.Skipped; it fails only when nothing can.
func Measure(ctx context.Context, o Options) (result *Result, err error) {
	ready, err := o.Client.Ready(ctx)
	if err != nil {
		return nil, err
	}
	r := &run{Options: o, boxes: newBoxes(o.Client), bare: !o.Remote, result: &Result{Version: o.Version, ServerVersion: ready.Version,
		StartedAt: time.Now().UTC().Truncate(time.Second), Host: thisHost(), Isolations: []string{}, Figures: []Figure{}, Idle: []IdlePoint{}, Skipped: []Skipped{}}}
	r.result.Host.Remote = o.Remote
	defer func() { err = errors.Join(err, r.boxes.sweep(ctx)) }()
	r.lookForPython(ctx)
	if err := r.choose(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	for _, part := range o.Parts {
		if err := r.part(ctx, part); err != nil {
			return nil, err
		}
	}
	compare(r.result.Figures)
	r.result.Host.LoadAfter = load()
	r.result.Seconds = time.Since(began).Round(time.Millisecond).Seconds()
	return r.result, nil
}

func (r *run) part(ctx context.Context, part string) error {
	measure := map[string]func(context.Context) error{
		PartRounds: r.rounds, PartBurst: r.burst, PartDensity: r.density, PartCosts: r.costs,
	}[part]
	if measure == nil {
		return fmt.Errorf("there is no part %q", part)
	}
	err := measure(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil { // the other parts still say something
		r.skip(part, "", err.Error())
		r.Progress(fmt.Sprintf("%s: left out: %v", part, err))
	}
	return r.boxes.sweep(ctx)
}

// eachIsolation does a thing for every isolation that has not failed yet. One that fails is told as skipped and
// left out from then on: the others still say something.
func (r *run) eachIsolation(ctx context.Context, part string, failed map[string]bool, do func(isolation string) error) error {
	for _, isolation := range r.isolations {
		if failed[isolation] {
			continue
		}
		err := do(isolation)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			continue
		}
		failed[isolation] = true
		r.skip(part, isolation, err.Error())
		r.Progress(fmt.Sprintf("%s, %s: left out: %v", part, isolation, err))
	}
	return nil
}

func (r *run) lookForPython(ctx context.Context) {
	if !r.bare {
		r.skip("floor", Bare, "the server is on another machine")
		return
	}
	for _, name := range pythons {
		// The interpreter tells its own path: a name may be a script that looks for it first.
		out, err := exec.CommandContext(ctx, name, "-c", "import sys; print(sys.executable)").Output()
		if path := strings.TrimSpace(string(out)); err == nil && path != "" {
			r.python = path
			return
		}
	}
	r.skip(barePython, Bare, "this machine has no python3, so what Python takes without a sandbox is not known")
}

// choose finds out which isolations this server has, by making one sandbox of each.
func (r *run) choose(ctx context.Context) error {
	var last error
	for _, isolation := range r.Isolations {
		box, err := r.boxes.create(ctx, isolation)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			last = err
			r.skip("all", isolation, err.Error())
			r.Progress(fmt.Sprintf("%s: left out: %v", isolation, err))
			continue
		}
		got := box.Info().Isolation
		if err := r.boxes.remove(ctx, box); err != nil {
			return err
		}
		r.isolations = append(r.isolations, got)
	}
	if len(r.isolations) == 0 {
		return last
	}
	r.result.Isolations = r.isolations
	return nil
}

func (r *run) skip(id, isolation, reason string) {
	r.result.Skipped = append(r.result.Skipped, Skipped{ID: id, Isolation: isolation, Reason: reason})
}

func (r *run) keep(f ...Figure) { r.result.Figures = append(r.result.Figures, f...) }
