package measure

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	densitySteps  = 4               // readings, beside the one before the first sandbox
	densitySettle = 2 * time.Second // before each reading: what a create leaves behind ends
	densityFewest = 0.05            // MiB of one sandbox, below which other work on the machine drowned it
)

// Ids of the figures of density.
const (
	boxMemory  = "idle_memory"
	boxDensity = "idle_density"
)

// density weighs idle sandboxes by what they take of the host's available memory, kernel memory among it.
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
		return errors.Join(r.weigh(ctx, isolation), r.boxes.sweep(ctx))
	})
}

// weigh makes idle sandboxes of one isolation step by step. Their weight is the slope of the memory that is left over their
// number, so that one reading that other work disturbed moves it little.
func (r *run) weigh(ctx context.Context, isolation string) error {
	var counts, left []float64
	read := func(n int) error {
		select {
		case <-time.After(densitySettle):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		counts, left = append(counts, float64(n)), append(left, float64(memoryKiB("MemAvailable"))/1024)
		return nil
	}
	r.Progress(fmt.Sprintf("%s: weigh %d idle sandboxes", isolation, r.Idle))
	if err := read(0); err != nil {
		return err
	}
	for made := 0; made < r.Idle; {
		n := min(max(1, r.Idle/densitySteps), r.Idle-made)
		err := together(n, n, func(int) error { _, err := r.boxes.create(ctx, isolation); return err })
		if err != nil {
			return first(err)
		}
		made += n
		if err := read(made); err != nil {
			return err
		}
	}
	each := -slope(counts, left)
	if each < densityFewest {
		r.skip(boxMemory, isolation, "other work on the machine changed the free memory by more than the sandboxes did; try again on an idle one")
		return nil
	}
	m := quantiles(boxMemory, "idle sandbox", isolation, Mebibytes, []float64{each})
	m.N, m.Note = r.Idle, "slope of the host's available memory over their number"
	d := quantiles(boxDensity, "idle sandboxes that fit into the free memory", isolation, Count, []float64{float64(int(left[0] / each))})
	d.N, d.Note = r.Idle, fmt.Sprintf("extrapolated from %d to the %.1f GiB that were free", r.Idle, left[0]/1024)
	r.keep(m, d)
	return nil
}

// slope is the least squares one of y over x, which has at least two different values.
func slope(x, y []float64) float64 {
	var mx, my, xy, xx float64
	for i := range x {
		mx, my = mx+x[i]/float64(len(x)), my+y[i]/float64(len(x))
	}
	for i := range x {
		xy, xx = xy+(x[i]-mx)*(y[i]-my), xx+(x[i]-mx)*(x[i]-mx)
	}
	return xy / xx
}
