package measure

import (
	"context"
	"errors"
	"fmt"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// burstRounds is how often the burst is repeated, beside its floor each time.
const burstRounds = 5

// Ids of the figures of the burst.
const (
	bareBurst   = "python_at_once"
	boxBurst    = "burst"
	burstDelete = "burst_delete"
)

// burst makes many sandboxes at the same instant and waits for the last one's Python.
func (r *run) burst(ctx context.Context) error {
	if r.Burst == 0 {
		r.skip(PartBurst, "", "it was not asked for")
		return nil
	}
	s, failed := samples{}, map[string]bool{}
	for i := range burstRounds {
		r.Progress(fmt.Sprintf("%d at once, %d of %d", r.Burst, i+1, burstRounds))
		if r.python != "" {
			began := time.Now()
			if err := together(r.Burst, r.Burst, func(int) error { return r.barePrint(ctx) }); err != nil {
				return err
			}
			s.add(bareBurst, Bare, time.Since(began))
		}
		err := r.eachIsolation(ctx, PartBurst, failed, func(isolation string) error {
			err := r.burstOf(ctx, isolation, s)
			if err != nil {
				err = errors.Join(err, r.boxes.sweep(ctx)) // those that came to be
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, isolation := range append([]string{Bare}, r.isolations...) {
		for _, f := range []struct{ id, text, floor string }{
			{bareBurst, fmt.Sprintf("%d python3 at once, to the last one's end", r.Burst), ""},
			{boxBurst, fmt.Sprintf("%d creates at once → last output of python3", r.Burst), bareBurst},
			{burstDelete, fmt.Sprintf("%d DELETEs at once → last one gone", r.Burst), ""},
		} {
			if v := s[sampleKey{f.id, isolation}]; len(v) > 0 {
				m := quantiles(f.id, f.text, isolation, Milliseconds, v)
				m.floor = f.floor
				r.keep(m)
			}
		}
	}
	return nil
}

func (r *run) burstOf(ctx context.Context, isolation string, s samples) error {
	made := make([]*sdk.Sandbox, r.Burst)
	began := time.Now()
	err := together(r.Burst, r.Burst, func(i int) (err error) {
		if made[i], err = r.boxes.create(ctx, isolation); err != nil {
			return err
		}
		return expect(ctx, made[i], "1\n", pythonArgv...)
	})
	if err != nil {
		return first(err)
	}
	s.add(boxBurst, isolation, time.Since(began))
	began = time.Now()
	if err := together(r.Burst, r.Burst, func(i int) error { return r.boxes.remove(ctx, made[i]) }); err != nil {
		return first(err)
	}
	s.add(burstDelete, isolation, time.Since(began))
	return nil
}

// first is one of joined errors: a hundred alike say no more than one.
func first(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	all := joined.Unwrap()
	if len(all) == 1 {
		return all[0]
	}
	return fmt.Errorf("%w (and %d more)", all[0], len(all)-1)
}
