// Command bench measures the figures of RESULTS.md on this machine: a real server with its own data directory, real
// sandboxes over HTTP, and in the same run the floor, which is the same program started on the bare host. Rounds are
// interleaved, because other load moves the milliseconds: read the ratios. It needs root and the base image.
//
//	go run ./bench [-rounds 60] [-only first,exec,pause,output,files,burst,idle] [-o results.json]
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sort"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// figure is one measured thing.
type figure struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"` // ms, MiB, ×, %
	N     int     `json:"n"`
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	Floor string  `json:"floor,omitempty"` // name of the figure that it is compared with
	Ratio float64 `json:"ratio_p50,omitempty"`
	Tail  float64 `json:"ratio_p99,omitempty"`
	Goal  string  `json:"goal,omitempty"`
}

type results struct {
	Machine string   `json:"machine"`
	Date    string   `json:"date"`
	Version string   `json:"version"`
	Load    string   `json:"load"` // the host's load averages before and after: other work moves the milliseconds
	Figures []figure `json:"figures"`
}

func main() {
	rounds := flag.Int("rounds", 60, "rounds of each interleaved figure")
	binary := flag.String("bin", "bin/dayfly", "the binary to measure")
	image := flag.String("image", "bin/base.tar.zst", "the base image")
	only := flag.String("only", "", "comma-separated groups: first, exec, pause, output, files, burst, idle (default all)")
	out := flag.String("o", "", "write the results as JSON to this file too")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *binary, *image, *rounds, *only, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, binary, image string, rounds int, only, out string) error {
	srv, err := startServer(ctx, binary, image)
	if err != nil {
		return err
	}
	defer srv.stop()
	r := results{Machine: machine(), Date: time.Now().UTC().Format("2006-01-02 15:04 UTC"), Version: srv.version}
	before := load()
	groups := []struct {
		name    string
		measure func(context.Context, *server, int) ([]figure, error)
	}{
		{"first", measureRounds}, {"exec", measureExec}, {"pause", measurePause}, {"output", measureOutput}, {"files", measureFiles},
		{"burst", measureBurst}, {"idle", measureIdle},
	}
	for _, g := range groups {
		if only != "" && !strings.Contains(","+only+",", ","+g.name+",") {
			continue
		}
		fmt.Fprintf(os.Stderr, "measuring %s …\n", g.name)
		found, err := g.measure(ctx, srv, rounds)
		if err != nil {
			return fmt.Errorf("measure %s: %w", g.name, err)
		}
		r.Figures = append(r.Figures, found...)
	}
	r.Load = before + " → " + load()
	compare(r.Figures)
	print(os.Stdout, r)
	if out == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(b, '\n'), 0o644)
}

// summarize turns samples into a figure. Percentiles are order statistics without interpolation.
func summarize(name string, samples []time.Duration) figure {
	ms := make([]float64, len(samples))
	for i, d := range samples {
		ms[i] = float64(d.Microseconds()) / 1000
	}
	return quantiles(name, "ms", ms)
}

func quantiles(name, unit string, v []float64) figure {
	sort.Float64s(v)
	at := func(q float64) float64 { return v[min(len(v)-1, int(q*float64(len(v))))] }
	return figure{Name: name, Unit: unit, N: len(v), P50: at(0.50), P95: at(0.95), P99: at(0.99)}
}

// compare fills in ratios to the floors.
func compare(figures []figure) {
	floors := map[string]figure{}
	for _, f := range figures {
		floors[f.Name] = f
	}
	for i, f := range figures {
		if floor, ok := floors[f.Floor]; ok && floor.P50 > 0 && floor.P99 > 0 {
			figures[i].Ratio, figures[i].Tail = f.P50/floor.P50, f.P99/floor.P99
		}
	}
}

func print(w io.Writer, r results) {
	fmt.Fprintf(w, "%s · %s · %s · load %s\n\n", r.Machine, r.Version, r.Date, r.Load)
	fmt.Fprintln(w, "| figure | unit | n | p50 | p95 | p99 | × floor p50 | × floor p99 | goal |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|")
	for _, f := range r.Figures {
		ratio, tail := "", ""
		if f.Ratio > 0 {
			ratio, tail = fmt.Sprintf("%.2f", f.Ratio), fmt.Sprintf("%.2f", f.Tail)
		}
		fmt.Fprintf(w, "| %s | %s | %d | %.2f | %.2f | %.2f | %s | %s | %s |\n", f.Name, f.Unit, f.N, f.P50, f.P95, f.P99, ratio, tail, f.Goal)
	}
}

// load is the host's load average over the last minute.
func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	minute, _, _ := strings.Cut(string(b), " ")
	return minute
}

// machine describes where this ran.
func machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	model := "unknown CPU"
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d × %s, Linux %s", runtime.NumCPU(), model, unix.ByteSliceToString(u.Release[:]))
}
