package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// Sizes of the figures about commands.
const (
	execRounds  = 5 // interleaved spawns and execs for each round of the other figures
	execsAtOnce = 200
	dropBytes   = 4 << 30 // written by a command whose output is mostly dropped
	streamBytes = 1 << 30 // streamed to a client
	transfers   = 3       // repetitions of what moves much
)

// Names of the figures about commands.
const (
	spawnTrue = "bare spawn of true, again and again"
	execTrue  = "exec true, one idle sandbox"
)

// measureExec compares a command in an idle sandbox with the same on the bare host, and then runs many at once.
func measureExec(ctx context.Context, s *server, rounds int) ([]figure, error) {
	id, err := s.create(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.remove(context.WithoutCancel(ctx), id) }()
	var bare, boxed []time.Duration
	for i := range rounds*execRounds + warmUp {
		spawn, run, err := spawnAndExec(ctx, s, id)
		if err != nil {
			return nil, err
		}
		if i >= warmUp {
			bare, boxed = append(bare, spawn), append(boxed, run)
		}
	}
	var many, floor []time.Duration
	for range burstRounds {
		began := time.Now()
		if err := together(execsAtOnce, func(int) error { return exec.CommandContext(ctx, "/bin/true").Run() }); err != nil {
			return nil, err
		}
		floor = append(floor, time.Since(began))
		began = time.Now()
		if err := together(execsAtOnce, func(int) error { return s.exec(ctx, id, []string{"true"}, "") }); err != nil {
			return nil, err
		}
		many = append(many, time.Since(began))
	}
	out := []figure{
		summarize(spawnTrue, bare), summarize(execTrue, boxed),
		summarize(fmt.Sprintf("%d bare spawns of true at once, last end", execsAtOnce), floor),
		summarize(fmt.Sprintf("%d execs of true at once in one sandbox, last answer", execsAtOnce), many),
	}
	out[1].Floor, out[1].Goal = spawnTrue, "p50 ≤ 1.6×, p99 ≤ 3×"
	out[3].Floor, out[3].Goal = out[2].Name, "≤ 1 s"
	return out, nil
}

// spawnAndExec takes one interleaved pair, each after a rest.
func spawnAndExec(ctx context.Context, s *server, id string) (spawn, run time.Duration, err error) {
	if err := rest(ctx); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := exec.CommandContext(ctx, "/bin/true").Run(); err != nil {
		return 0, 0, err
	}
	spawn = time.Since(began)
	if err := rest(ctx); err != nil {
		return 0, 0, err
	}
	began = time.Now()
	err = s.exec(ctx, id, []string{"true"}, "")
	return spawn, time.Since(began), err
}

// rest lets the aftermath of one step end before the next begins.
func rest(ctx context.Context) error {
	select {
	case <-time.After(restBetween):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// measureOutput moves much output: dropped but for its ends, and streamed to a client of the SDK, as text and as bytes.
func measureOutput(ctx context.Context, s *server, _ int) ([]figure, error) {
	id, err := s.create(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.remove(context.WithoutCancel(ctx), id) }()
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	box := client.Sandbox(id)
	pid, err := serverPID(s.data)
	if err != nil {
		return nil, err
	}
	kinds := []struct {
		name, floor string
		command     string
		bytes       int64
		stream      bool
		goal        string
	}{
		{"output of 4 GiB, 1 MiB kept", "bare 4 GiB through a pipe", "head -c %d /dev/zero", dropBytes, false, "≥ 500 MB/s"},
		{"1 GiB of text streamed to a client", "bare 1 GiB of text through a pipe", "yes 'a line of text that is neither short nor long' | head -c %d", streamBytes, true, "≥ 200 MB/s"},
		{"1 GiB of bytes streamed to a client", "", "head -c %d /dev/zero | tr '\\0' '\\377'", streamBytes, true, "≥ 200 MB/s"},
	}
	var out []figure
	for _, k := range kinds {
		command := fmt.Sprintf(k.command, k.bytes)
		var bare, boxed []float64
		before, err := resetPeak(pid)
		if err != nil {
			return nil, err
		}
		for range transfers {
			if k.floor != "" {
				rate, err := perSecond(k.bytes, func() error { return throughPipe(ctx, command, k.bytes) })
				if err != nil {
					return nil, err
				}
				bare = append(bare, rate)
			}
			rate, err := perSecond(k.bytes, func() error {
				if k.stream {
					return streamOutput(ctx, box, command, k.bytes)
				}
				return dropOutput(ctx, box, command, k.bytes)
			})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", k.name, err)
			}
			boxed = append(boxed, rate)
		}
		peak, err := statusKiB(pid, "VmHWM")
		if err != nil {
			return nil, err
		}
		if k.floor != "" {
			out = append(out, quantiles(k.floor, "MB/s", bare))
		}
		f := quantiles(k.name, "MB/s", boxed)
		f.Floor, f.Goal = k.floor, k.goal
		out = append(out, f, quantiles(k.name+": server's growth", "MiB", []float64{float64(peak-before) / 1024}))
	}
	return out, nil
}

// resetPeak forgets the most memory that a process has had so far, and gives what it has now, in KiB.
func resetPeak(pid int) (int64, error) {
	const peak = "5" // see proc_pid_clear_refs(5)
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte(peak), 0); err != nil {
		return 0, err
	}
	return statusKiB(pid, "VmRSS")
}

// perSecond times what moves so many bytes, in MB/s.
func perSecond(bytes int64, do func() error) (float64, error) {
	began := time.Now()
	err := do()
	return float64(bytes) / 1e6 / time.Since(began).Seconds(), err
}

// throughPipe reads a command's output on the bare host.
func throughPipe(ctx context.Context, command string, want int64) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{pipe}, make([]byte, 64<<10))
	if err != nil {
		return err
	}
	if n != want {
		return fmt.Errorf("%d bytes instead of %d", n, want)
	}
	return cmd.Wait()
}

// dropOutput runs a command whose output is kept at its ends only.
func dropOutput(ctx context.Context, box *sdk.Sandbox, command string, want int64) error {
	res, err := box.Exec(ctx, sdk.Command(command), sdk.ExecOptions{})
	if err != nil {
		return err
	}
	if res.StdoutBytes != want || res.ExitCode != 0 {
		return fmt.Errorf("exit %d after %d bytes instead of %d", res.ExitCode, res.StdoutBytes, want)
	}
	return nil
}

// streamOutput follows a command to its end and counts every byte.
func streamOutput(ctx context.Context, box *sdk.Sandbox, command string, want int64) error {
	st, err := box.ExecStream(ctx, sdk.Command(command), sdk.ExecOptions{})
	if err != nil {
		return err
	}
	defer st.Close()
	var n int64
	for ev, err := range st.All() {
		if err != nil {
			return err
		}
		n += int64(len(ev.Data))
		if ev.Type == sdk.EventDropped {
			return errors.New("output was dropped")
		}
	}
	if n != want {
		return fmt.Errorf("%d bytes instead of %d", n, want)
	}
	return nil
}
