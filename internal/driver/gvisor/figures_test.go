package gvisor_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/drivertest"
)

// times are durations of one step.
type times []time.Duration

func (d times) report(b *testing.B, name string) {
	slices.Sort(d)
	ms := func(at int) float64 { return float64(d[at].Microseconds()) / 1000 }
	b.ReportMetric(ms(len(d)/2), name+"-p50-ms")
	b.ReportMetric(ms(len(d)*95/100), name+"-p95-ms")
}

// BenchmarkLife measures whole lives of machines against a bare spawn of the same command, in turns.
func BenchmarkLife(b *testing.B) {
	w := drivertest.NewWorld(b)
	d := open(b, w)
	var floor, start, first, again, end times
	for b.Loop() {
		begun := time.Now()
		if out, err := exec.Command(w.Lower+"/bin/inside", "true").CombinedOutput(); err != nil {
			b.Fatal(err, string(out))
		}
		floor = append(floor, time.Since(begun))
		spec := w.Spec(b)
		begun = time.Now()
		inst, err := d.Start(context.Background(), spec)
		if err != nil {
			b.Fatal(err)
		}
		start = append(start, time.Since(begun))
		conn, err := inst.Dial(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		shell, err := connect(context.Background(), conn)
		if err != nil {
			b.Fatal(err)
		}
		once := func() {
			r, err := shell.Run(context.Background(), dayfly.ProcessSpec{ID: dayfly.NewID(dayfly.PrefixProcess), Argv: []string{"/bin/inside", "true"}}, nil)
			if err != nil || r.Exit.Code != 0 {
				b.Fatalf("%+v, %v", r, err)
			}
		}
		once()
		first = append(first, time.Since(begun))
		begun = time.Now()
		once()
		again = append(again, time.Since(begun))
		_ = shell.Close()
		begun = time.Now()
		if err := inst.Destroy(context.Background()); err != nil {
			b.Fatal(err)
		}
		end = append(end, time.Since(begun))
		_ = os.RemoveAll(spec.RunDir)
		_ = os.RemoveAll(spec.Root.Upper)
	}
	floor.report(b, "bare")
	start.report(b, "start")
	first.report(b, "first")
	again.report(b, "exec")
	end.report(b, "destroy")
}
