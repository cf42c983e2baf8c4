package control

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"dayfly.dev/dayfly"
)

// stuckShown bounds how many failing steps are shown at once.
const stuckShown = 100

// Stuck is a step of a teardown that failed and is tried again. It holds up nobody else.
type Stuck struct {
	Sandbox string
	Step    string         // a phrase, like "remove disk"
	Since   dayfly.Instant // of the first attempt of this teardown that failed
	Tries   int            // attempts that failed since
}

// StepError names the step in which something failed. What it wraps is for the log.
type StepError struct {
	Step string // a phrase without names of the host's
	Err  error
}

// Error implements error.
func (e *StepError) Error() string { return e.Step + ": " + e.Err.Error() }

// Unwrap gives the cause.
func (e *StepError) Unwrap() error { return e.Err }

// failedSteps are the steps that err names, each once, outermost first.
func failedSteps(err error) []string {
	var steps []string
	add := func(more ...string) {
		for _, s := range more {
			if !slices.Contains(steps, s) {
				steps = append(steps, s)
			}
		}
	}
	switch e := err.(type) {
	case *StepError:
		add(e.Step)
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			add(failedSteps(one)...)
		}
	case interface{ Unwrap() error }:
		if inner := errors.Unwrap(err); inner != nil {
			add(failedSteps(inner)...)
		}
	}
	return steps
}

// failing notes that an attempt of a teardown failed.
func (p *Plane) failing(e *ending, cause error) {
	steps := failedSteps(cause)
	if len(steps) == 0 {
		steps = []string{"tear down"}
	}
	now := p.node.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.tries++; e.tries == 1 {
		e.since = now
	}
	e.steps = steps
}

// Stuck lists the steps of teardowns that failed and are tried again, the oldest first, stuckShown at most. A step leaves the
// list when it is done.
func (p *Plane) Stuck() []Stuck {
	var found []Stuck
	p.mu.Lock()
	for id, e := range p.endings {
		for _, step := range e.steps {
			found = append(found, Stuck{Sandbox: id, Step: step, Since: e.since, Tries: e.tries})
		}
	}
	p.mu.Unlock()
	slices.SortFunc(found, func(a, b Stuck) int {
		return cmp.Or(cmp.Compare(a.Since.Boot, b.Since.Boot), cmp.Compare(a.Sandbox, b.Sandbox), cmp.Compare(a.Step, b.Step))
	})
	return found[:min(len(found), stuckShown)]
}

// At is when it failed first, by the wall clock as it is now.
func (s Stuck) At(now dayfly.Instant) time.Time { return now.WallAt(s.Since.Boot) }
