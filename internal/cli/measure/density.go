package measure

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const (
	idleAtOnce    = 16     // creates under way
	idleSample    = 32     // of the sandboxes that must still run a command at the end
	stepsFewest   = 4      // readings, beside the one before the first sandbox
	stepsMost     = 8      // of many sandboxes
	stepOf        = 100    // sandboxes, where there are that many
	densityFewest = 0.05   // MiB a sandbox: a slope below it is none
	gibibyte      = 1024.0 // MiB
	fitInto       = 20     // GiB: what the goal of density counts in
)

// The free memory stands still when it moves by less than this much for so long in a row. What deletions leave behind
// (namespaces, control groups, disks) is freed for seconds after them, and would count against what is weighed.
const (
	stillStep   = time.Second
	stillDrift  = 2.0 // MiB in one step
	stillInRow  = 2
	stillBefore = 30 // steps at most, before the first sandbox
	stillAmong  = 5  // and before each other reading
)

// Ids of the figures of density.
const (
	boxMemory  = "idle_memory"
	boxPSS     = "idle_pss"
	boxThreads = "idle_threads"
	boxAlive   = "idle_alive"
	boxReach   = "idle_exec"
	boxDensity = "idle_density"
	boxPer20   = "idle_per_20gib"
)

// IdlePoint is one reading while idle sandboxes become more.
type IdlePoint struct {
	Isolation    string  `json:"isolation"`
	Count        int     `json:"count"`         // sandboxes alive
	AvailableMiB float64 `json:"available_mib"` // MemAvailable of the host
	PSSMiB       float64 `json:"pss_mib"`       // of all their processes; 0 when it cannot be read
	Threads      int     `json:"threads"`       // of all their processes
	Seconds      float64 `json:"seconds"`       // since the first create
}

// density weighs idle sandboxes: by what they take of the host's available memory, kernel memory among it, and by their processes.
func (r *run) density(ctx context.Context) error {
	switch {
	case r.Idle == 0:
		r.skip(PartDensity, "", "it was not asked for")
		return nil
	case r.Remote:
		r.skip(PartDensity, "", "the server is on another machine, whose memory cannot be seen from here")
		return nil
	}
	return r.eachIsolation(ctx, PartDensity, map[string]bool{}, func(isolation string) error {
		return errors.Join(r.crowd(ctx, isolation), r.boxes.sweep(ctx))
	})
}

// crowd is the idle sandboxes of one isolation, while they become more.
type crowd struct {
	*run
	isolation string
	boxes     []*sdk.Sandbox
	began     time.Time
	points    []IdlePoint
	last      map[string]weight // of each sandbox, at the last reading; nil when they cannot be weighed
	refused   error             // why no more fit, or nil
}

// crowd makes idle sandboxes step by step, until there are as many as were asked for or no more fit, which is no failure. It
// looks at each step, and at the end whether a sample of them still works.
func (r *run) crowd(ctx context.Context, isolation string) error {
	c := &crowd{run: r, isolation: isolation}
	r.Progress(fmt.Sprintf("%s: wait until the free memory stands still", isolation))
	if err := c.read(ctx, stillBefore); err != nil {
		return err
	}
	c.began = time.Now()
	steps := min(stepsMost, max(stepsFewest, r.Idle/stepOf))
	for i := range steps {
		if err := c.grow(ctx, r.Idle*(i+1)/steps); err != nil {
			return err
		}
		if err := c.read(ctx, stillAmong); err != nil {
			return err
		}
		if c.refused != nil {
			break
		}
	}
	if len(c.boxes) == 0 {
		return c.refused // nil: none were asked for
	}
	if err := c.reach(ctx); err != nil {
		return err
	}
	c.tell()
	return nil
}

// grow makes sandboxes until there are n. One that does not fit ends the creates at once; then they go on one by one, so that a
// refusal is never one of many at the same instant, and the first that is refused alone ends them for good.
func (c *crowd) grow(ctx context.Context, n int) error {
	for atOnce := idleAtOnce; len(c.boxes) < n && c.refused == nil; {
		made, err := c.more(ctx, min(atOnce, n-len(c.boxes)))
		c.boxes = append(c.boxes, made...)
		switch {
		case err == nil:
		case !full(err):
			return fmt.Errorf("create one beside %d: %w", len(c.boxes), err)
		case atOnce == 1:
			c.refused = err
		default:
			atOnce = 1
		}
	}
	return nil
}

// more makes n at once and gives those that came to be. An error that is not for lack of room comes first.
func (c *crowd) more(ctx context.Context, n int) (made []*sdk.Sandbox, err error) {
	boxes, errs := make([]*sdk.Sandbox, n), make([]error, n)
	_ = together(n, n, func(i int) error {
		boxes[i], errs[i] = c.run.boxes.create(ctx, c.isolation)
		return nil
	})
	for i, box := range boxes {
		switch {
		case errs[i] == nil:
			made = append(made, box)
		case err == nil || full(err):
			err = errs[i]
		}
	}
	return made, err
}

// full tells that a create failed because there is no room for it, or none for this account.
func full(err error) bool {
	code := sdk.ErrorCode(err)
	return code == sdk.CodeNoCapacity || code == sdk.CodeQuotaExceeded
}

// read takes a reading when the free memory stands still, or after so many steps of waiting for that.
func (c *crowd) read(ctx context.Context, steps int) error {
	if err := still(ctx, steps); err != nil {
		return err
	}
	p := IdlePoint{Isolation: c.isolation, Count: len(c.boxes), AvailableMiB: availableMiB()}
	if !c.began.IsZero() {
		p.Seconds = time.Since(c.began).Round(time.Millisecond).Seconds()
	}
	if p.Count > 0 {
		ids := map[string]bool{}
		for _, box := range c.boxes {
			ids[box.ID] = true
		}
		c.last, _ = weights(ids) // without root there is none, which tell says
		sum := total(c.last)
		p.PSSMiB, p.Threads = float64(sum.pssKiB)/1024, sum.threads
	}
	c.points = append(c.points, p)
	c.result.Idle = append(c.result.Idle, p)
	c.Progress(fmt.Sprintf("%s: %d idle sandboxes, %.1f GiB available, %.1f MiB and %.1f threads each", c.isolation, p.Count,
		p.AvailableMiB/gibibyte, p.PSSMiB/float64(max(1, p.Count)), float64(p.Threads)/float64(max(1, p.Count))))
	return nil
}

// still waits until the host's free memory stands still, for so many steps at most: on a busy machine it never does.
func still(ctx context.Context, steps int) error {
	last, row := availableMiB(), 0
	for range steps {
		select {
		case <-time.After(stillStep):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		now := availableMiB()
		if row++; math.Abs(now-last) > stillDrift {
			row = 0
		}
		if last = now; row == stillInRow {
			return nil
		}
	}
	return nil
}

func availableMiB() float64 { return float64(memoryKiB("MemAvailable")) / 1024 }

// total is the weight of all.
func total(all map[string]weight) (sum weight) {
	for _, w := range all {
		sum.add(w)
	}
	return sum
}

// reach runs a command in a sample of the sandboxes, the oldest and the youngest among them. Each must answer.
func (c *crowd) reach(ctx context.Context) error {
	n := min(idleSample, len(c.boxes))
	s := samples{}
	for i := range n {
		at := len(c.boxes) - 1
		if n > 1 {
			at = i * (len(c.boxes) - 1) / (n - 1)
		}
		began := time.Now()
		if err := expect(ctx, c.boxes[at], "1\n", "echo", "1"); err != nil {
			return fmt.Errorf("a command in one of %d idle sandboxes, the %d. made: %w", len(c.boxes), at+1, err)
		}
		s.add(boxReach, c.isolation, time.Since(began))
	}
	c.keep(quantiles(boxReach, fmt.Sprintf("exec echo in one of %d idle sandboxes", len(c.boxes)), c.isolation, Milliseconds,
		s[sampleKey{boxReach, c.isolation}]))
	return nil
}

// tell makes the figures.
func (c *crowd) tell() {
	n := len(c.boxes)
	alive := quantiles(boxAlive, "idle sandboxes alive at once", c.isolation, Count, []float64{float64(n)})
	alive.N, alive.Note = n, fmt.Sprintf("as many as were asked for; a command ran in each of a sample of %d", min(n, idleSample))
	if c.refused != nil {
		alive.Note = fmt.Sprintf("of %d asked for; a command ran in each of a sample of %d; the next create was refused: %v", c.Idle, min(n, idleSample), c.refused)
	}
	c.keep(alive)
	var pss, threads []float64
	for _, w := range c.last {
		pss, threads = append(pss, float64(w.pssKiB)/1024), append(threads, float64(w.threads))
	}
	if len(pss) == 0 {
		c.skip(boxPSS, c.isolation, "their processes can be weighed by root alone")
	} else {
		c.keep(quantiles(boxPSS, "idle sandbox, proportional share of its processes", c.isolation, Mebibytes, pss),
			quantiles(boxThreads, "threads of an idle sandbox", c.isolation, Count, threads))
	}
	each, how := c.each()
	if each == 0 {
		return
	}
	before := c.points[0].AvailableMiB
	fit, bound := before/each, fmt.Sprintf("the %.1f GiB that were free", before/gibibyte)
	if sum := total(c.last); sum.threads > 0 {
		if byThreads := float64(threadsFree()+sum.threads) * float64(n) / float64(sum.threads); byThreads < fit {
			fit, bound = byThreads, "the threads that this host allows (kernel.pid_max, kernel.threads-max)"
		}
	}
	d := quantiles(boxDensity, "idle sandboxes that fit on this host", c.isolation, Count, []float64{math.Floor(fit)})
	d.N, d.Note = n, fmt.Sprintf("extrapolated from %d, by %s, to %s", n, how, bound)
	per := quantiles(boxPer20, fmt.Sprintf("idle sandboxes for each %d GiB", fitInto), c.isolation, Count, []float64{math.Floor(fitInto * gibibyte / each)})
	per.N, per.Note = n, "by "+how
	c.keep(d, per)
}

// each is what a sandbox weighs in MiB and how that is known, or 0. The slope of the available memory holds what the kernel
// keeps for it too, so it is more than its processes' own pages; where it is less, or far more, other work on the machine moved it.
func (c *crowd) each() (mib float64, how string) {
	var counts, left []float64
	for _, p := range c.points {
		counts, left = append(counts, float64(p.Count)), append(left, p.AvailableMiB)
	}
	n, sum := float64(len(c.boxes)), total(c.last)
	slope, own := -slope(counts, left), float64(sum.privateKiB)/1024/n
	if plausible(slope, own) {
		m := quantiles(boxMemory, "idle sandbox, of the available memory", c.isolation, Mebibytes, []float64{slope})
		m.N, m.Note = len(c.boxes), "slope of the host's available memory over their number"
		c.keep(m)
		return slope, "the available memory"
	}
	c.skip(boxMemory, c.isolation, fmt.Sprintf("other work on the machine changed the available memory meanwhile (%.1f MiB for each sandbox, whose own pages are %.1f); try again on an idle one, or with more (--idle)", slope, own))
	return float64(sum.pssKiB) / 1024 / n, "the proportional share of its processes, without what the kernel keeps for it"
}

// plausible tells whether a slope in MiB can be the weight of sandboxes whose own pages weigh so much; 0: that is not known.
func plausible(slope, own float64) bool {
	const slack, times, more = 0.8, 2, 8 // of own, which shares of files in memory are counted in; of own, and MiB beside it for the kernel's part
	return slope >= densityFewest && slope >= slack*own && (own == 0 || slope <= times*own+more)
}

// slope is how y changes with x: the middle of the slopes of all pairs of readings, which a few disturbed ones do not move. x has
// at least two different values.
func slope(x, y []float64) float64 {
	var all []float64
	for i := range x {
		for j := range i {
			if x[i] != x[j] {
				all = append(all, (y[i]-y[j])/(x[i]-x[j]))
			}
		}
	}
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}
