package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	burst      = 100 // creates at once
	idlers     = 200 // idle sandboxes
	idleWindow = 10 * time.Second
	python     = "/usr/bin/python3" // the host's own, of the same Debian as the base image's where the host is Debian 12
)

var pythonArgv = []string{"python3", "-c", "print(1)"}

// Names of the interleaved figures.
const (
	bareFirst   = "bare python3, first byte"
	boxFirst    = "create → first python3 output"
	boxCreate   = "create → 201"
	bareSpawn   = "bare spawn of true"
	boxExec     = "exec true"
	boxPython   = "exec python3 in a live sandbox"
	boxDelete   = "DELETE → 200"
	warmUp      = 3 // rounds that do not count
	restBetween = 20 * time.Millisecond
)

// measureRounds takes the interleaved figures: each round does everything once, beside its floor.
func measureRounds(ctx context.Context, s *server, rounds int) ([]figure, error) {
	live, err := s.create(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.remove(context.WithoutCancel(ctx), live) }()
	samples := map[string][]time.Duration{}
	for i := range rounds + warmUp {
		took, err := round(ctx, s, live)
		if err != nil {
			return nil, err
		}
		if i < warmUp {
			continue
		}
		for name, d := range took {
			samples[name] = append(samples[name], d)
		}
	}
	out := []figure{}
	for _, f := range []figure{
		{Name: bareFirst}, {Name: boxFirst, Floor: bareFirst, Goal: "p50 ≤ 2.2×, p99 ≤ 3×"}, {Name: boxCreate},
		{Name: bareSpawn}, {Name: boxExec, Floor: bareSpawn, Goal: "p50 ≤ 2×"}, {Name: boxPython, Floor: bareFirst},
		{Name: boxDelete, Goal: "p50 ≤ 20 ms"},
	} {
		m := summarize(f.Name, samples[f.Name])
		m.Floor, m.Goal = f.Floor, f.Goal
		out = append(out, m)
	}
	return out, nil
}

// round does every interleaved thing once. The pause between them lets one's aftermath end before the next begins.
func round(ctx context.Context, s *server, live string) (map[string]time.Duration, error) {
	took := map[string]time.Duration{}
	var id string
	for _, step := range []struct {
		name string
		do   func(began time.Time) error
	}{
		{bareFirst, func(time.Time) error { return barePython(ctx) }},
		{boxFirst, func(began time.Time) (err error) {
			if id, err = s.create(ctx); err != nil {
				return err
			}
			took[boxCreate] = time.Since(began)
			return s.exec(ctx, id, pythonArgv, "1\n")
		}},
		{bareSpawn, func(time.Time) error { return exec.CommandContext(ctx, "/bin/true").Run() }},
		{boxExec, func(time.Time) error { return s.exec(ctx, live, []string{"true"}, "") }},
		{boxPython, func(time.Time) error { return s.exec(ctx, live, pythonArgv, "1\n") }},
		{boxDelete, func(time.Time) error { return s.remove(ctx, id) }},
	} {
		select {
		case <-time.After(restBetween):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		began := time.Now()
		if err := step.do(began); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
		took[step.name] = time.Since(began)
	}
	return took, nil
}

// barePython starts the interpreter on the bare host and waits for its first output.
func barePython(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, python, pythonArgv[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "1\n" {
		return fmt.Errorf("output %q: %w", line, err)
	}
	return cmd.Wait()
}

// burstRounds is how often the burst is repeated, interleaved with its floor.
const burstRounds = 5

// measureBurst creates many sandboxes at the same instant.
func measureBurst(ctx context.Context, s *server, _ int) ([]figure, error) {
	var bare, created, printed, gone []time.Duration
	for range burstRounds {
		began := time.Now()
		if err := together(burst, func(int) error { return barePython(ctx) }); err != nil {
			return nil, err
		}
		bare = append(bare, time.Since(began))

		ids := make([]string, burst)
		readyAt := make([]time.Duration, burst)
		began = time.Now()
		err := together(burst, func(i int) (err error) {
			if ids[i], err = s.create(ctx); err != nil {
				return err
			}
			readyAt[i] = time.Since(began)
			return s.exec(ctx, ids[i], pythonArgv, "1\n")
		})
		if err != nil {
			return nil, err
		}
		printed = append(printed, time.Since(began))
		last := time.Duration(0)
		for _, d := range readyAt {
			last = max(last, d)
		}
		created = append(created, last)
		began = time.Now()
		if err := together(burst, func(i int) error { return s.remove(ctx, ids[i]) }); err != nil {
			return nil, err
		}
		gone = append(gone, time.Since(began))
	}
	// Creates alone, without the interpreters that compete for the same cores.
	var alone []time.Duration
	for range burstRounds {
		ids := make([]string, burst)
		began := time.Now()
		err := together(burst, func(i int) (err error) { ids[i], err = s.create(ctx); return err })
		if err != nil {
			return nil, err
		}
		alone = append(alone, time.Since(began))
		if err := together(burst, func(i int) error { return s.remove(ctx, ids[i]) }); err != nil {
			return nil, err
		}
	}
	floor := fmt.Sprintf("%d bare python3 at once, last output", burst)
	out := []figure{
		summarize(floor, bare),
		summarize(fmt.Sprintf("%d creates at once, last 201", burst), alone),
		summarize(fmt.Sprintf("%d creates + python3 at once, last 201", burst), created),
		summarize(fmt.Sprintf("%d creates + python3 at once, last output", burst), printed),
		summarize(fmt.Sprintf("%d deletes at once, last 200", burst), gone),
	}
	out[1].Goal = "≤ 600 ms"
	out[3].Floor, out[3].Goal = floor, "≤ 2×"
	return out, nil
}

// together runs f n times at the same instant.
func together(n int, f func(i int) error) error {
	var g errgroup.Group
	start := make(chan struct{})
	for i := range n {
		g.Go(func() error { <-start; return f(i) })
	}
	close(start)
	return g.Wait()
}

// measureIdle weighs sandboxes that do nothing, and the server that holds them.
func measureIdle(ctx context.Context, s *server, _ int) ([]figure, error) {
	ids := make([]string, idlers)
	if err := together(idlers, func(i int) (err error) { ids[i], err = s.create(ctx); return err }); err != nil {
		return nil, err
	}
	defer func() {
		_ = together(idlers, func(i int) error { return s.remove(context.WithoutCancel(ctx), ids[i]) })
	}()
	var pss []float64
	for _, id := range ids {
		kib, err := pssOf(id)
		if err != nil {
			return nil, err
		}
		pss = append(pss, float64(kib)/1024)
	}
	pid, err := serverPID(s.data)
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(idleWindow): // let the burst of creates settle
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	before, err := cpuTicks(pid)
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(idleWindow):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	after, err := cpuTicks(pid)
	if err != nil {
		return nil, err
	}
	rss, err := statusKiB(pid, "VmRSS")
	if err != nil {
		return nil, err
	}
	const ticksPerSecond = 100
	cpu := float64(after-before) / ticksPerSecond / idleWindow.Seconds() * 100
	memory := quantiles("idle sandbox, PSS of its processes", "MiB", pss)
	memory.Goal = "≤ 4 MB"
	load := quantiles(fmt.Sprintf("server CPU with %d idle sandboxes", idlers), "% of a core", []float64{cpu})
	load.Goal = "~0 %"
	weight := quantiles(fmt.Sprintf("server RSS with %d idle sandboxes", idlers), "MiB", []float64{float64(rss) / 1024})
	weight.Goal = "≤ 80 MB"
	return []figure{memory, load, weight}, nil
}

// pssOf sums the proportional memory of every process whose cgroup bears the sandbox's id.
func pssOf(id string) (int64, error) {
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, p := range procs {
		b, err := os.ReadFile(p + "/cgroup")
		if err != nil || !strings.Contains(string(b), id) {
			continue
		}
		kib, err := fieldKiB(p+"/smaps_rollup", "Pss")
		if err != nil {
			return 0, err
		}
		sum += kib
	}
	if sum == 0 {
		return 0, fmt.Errorf("no process of %s found", id)
	}
	return sum, nil
}

func statusKiB(pid int, field string) (int64, error) {
	return fieldKiB(fmt.Sprintf("/proc/%d/status", pid), field)
}

func fieldKiB(path, field string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			return strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, field)
}

// cpuTicks reads user and system time of a process, in clock ticks.
func cpuTicks(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	user, err := strconv.ParseInt(f[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(f[12], 10, 64)
	return user + system, err
}

func serverPID(data string) (int, error) {
	b, err := os.ReadFile(filepath.Join(data, "server.json"))
	if err != nil {
		return 0, err
	}
	var info struct{ PID int }
	if err := json.Unmarshal(b, &info); err != nil || info.PID == 0 {
		return 0, fmt.Errorf("server.json names no process: %w", err)
	}
	return info.PID, nil
}
