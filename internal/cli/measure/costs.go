package measure

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// costsProgram does one kind of work after the other and prints the milliseconds of each as JSON.
//
//go:embed costs.py
var costsProgram string

const (
	costRounds = 5
	costMax    = 5 * time.Minute // of one run of the program
)

// costFigures are what the program measures. The floor of each has the same id.
var costFigures = []struct{ id, text string }{
	{"cost_cpu", "CPU: a loop of 2 million steps in Python"},
	{"cost_syscalls", "100,000 system calls (getppid)"},
	{"cost_processes", "50 × fork and exec of true"},
	{"cost_files", "1,000 small files: write, rename, stat, read, unlink"},
	{"cost_tree", "walk of /usr, stat of 5,000 files"},
	{"cost_network", "64 MiB through a TCP connection on loopback"},
}

// costs runs the same program on the bare host and in a sandbox of each isolation, by turns.
func (r *run) costs(ctx context.Context) error {
	boxes, failed := map[string]*sdk.Sandbox{}, map[string]bool{}
	s := map[sampleKey][]float64{}
	for i := range costRounds {
		r.Progress(fmt.Sprintf("what a program pays inside, %d of %d", i+1, costRounds))
		if r.python != "" {
			cmd := exec.CommandContext(ctx, r.python, "-c", costsProgram)
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err == nil {
				err = spent(s, Bare, string(out))
			}
			if err != nil {
				return fmt.Errorf("%s: %w", Bare, err)
			}
		}
		err := r.eachIsolation(ctx, PartCosts, failed, func(isolation string) error {
			if boxes[isolation] == nil {
				box, err := r.boxes.create(ctx, isolation)
				if err != nil {
					return err
				}
				boxes[isolation] = box
			}
			res, err := boxes[isolation].Exec(ctx, sdk.Argv(python, "-c", costsProgram), sdk.ExecOptions{Check: true, Timeout: costMax})
			if err != nil {
				return err
			}
			return spent(s, isolation, res.Stdout)
		})
		if err != nil {
			return err
		}
	}
	for _, isolation := range append([]string{Bare}, r.isolations...) {
		for _, f := range costFigures {
			if v := s[sampleKey{f.id, isolation}]; len(v) > 0 {
				m := quantiles(f.id, f.text, isolation, Milliseconds, v)
				m.floor = f.id
				r.keep(m)
			}
		}
	}
	return nil
}

// spent reads what the program printed. It comes from inside: only known figures are taken.
func spent(s map[sampleKey][]float64, isolation, out string) error {
	var ms map[string]float64
	if err := json.Unmarshal([]byte(out), &ms); err != nil {
		return fmt.Errorf("read what the program of the costs printed: %w", err)
	}
	for _, f := range costFigures {
		v, ok := ms[f.id]
		if !ok || v < 0 {
			return fmt.Errorf("the program of the costs did not tell %s", f.id)
		}
		s[sampleKey{f.id, isolation}] = append(s[sampleKey{f.id, isolation}], v)
	}
	return nil
}
