package linux_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
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

// BenchmarkLife measures whole lives of machines against a bare spawn of the same command: with python if the host has one,
// on the host's own root as the lower directory.
func BenchmarkLife(b *testing.B) {
	w := drivertest.NewWorld(b)
	d := open(b, w)
	argv := []string{"/bin/inside", "true"}
	bare := []string{w.Lower + "/bin/inside", "true"}
	if _, err := os.Stat("/usr/bin/python3"); err == nil {
		argv = []string{"/usr/bin/python3", "-c", "print(1)"}
		bare = argv
		w.Lower = "/"
	}
	var floor, start, first, again, end times
	var pss int64
	n := 0
	for b.Loop() {
		n++
		begun := time.Now()
		if out, err := exec.Command(bare[0], bare[1:]...).Output(); err != nil {
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
		pss += share(b, inst.State())
		shell := dialShell(b, inst)
		runOnce(b, shell, argv)
		first = append(first, time.Since(begun))
		begun = time.Now()
		runOnce(b, shell, argv)
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
	b.ReportMetric(float64(pss)/float64(n)/1024, "pss-KiB")
	floor.report(b, "bare")
	start.report(b, "start")
	first.report(b, "first")
	again.report(b, "exec")
	end.report(b, "destroy")
}

func dialShell(b testing.TB, inst dayfly.Instance) drivertest.Shell {
	b.Helper()
	conn, err := inst.Dial(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	s, err := connect(context.Background(), conn)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func runOnce(b testing.TB, s drivertest.Shell, argv []string) {
	b.Helper()
	r, err := s.Run(context.Background(), dayfly.ProcessSpec{ID: dayfly.NewID(dayfly.PrefixProcess), Argv: argv, User: "0"}, nil)
	if err != nil || r.Exit.Code != 0 {
		b.Fatalf("%v: %+v, %v", argv, r, err)
	}
}

// share reads the proportional set size of PID 1, in bytes.
func share(b *testing.B, state json.RawMessage) int64 {
	b.Helper()
	var st struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(state, &st); err != nil {
		b.Fatal(err)
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", st.PID))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "Pss: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	b.Fatal("no Pss line")
	return 0
}
