package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"dayfly.dev/dayfly/internal/cli/measure"
	sdk "dayfly.dev/dayfly/sdk/go"
)

const benchLong = `Bench measures what sandboxes cost on your machine, with the server that runs: create, exec, a request to a program
inside, pause, delete, many creates at once, the memory of idle sandboxes, and what a program pays inside for CPU, system
calls, processes, files and network. Each isolation is measured beside the floor: the same program on the bare host, in the
same rounds. Other work on the machine moves the milliseconds of both, so read the ratios, and the load at the head.

It takes some minutes; progress is told on standard error. The host needs python3 for the floor; without it those ratios are
left out. Everything that it makes bears a label dayfly-bench and is destroyed at the end, also after Ctrl-C. A second Ctrl-C
leaves at once; then leases end it within 30 minutes. What cannot be measured is told with the reason and is no failure.

Density really makes the sandboxes that --idle asks for, or as many as fit: the first create that is refused (503) ends it, and
the table says why. Weight is what the host's available memory lost, the kernel's part among it, and what the processes of the
sandboxes share of memory; the second stays true on a busy machine. A sample must still run a command at the end.

Parts for --only: rounds (create, exec, request, pause, delete), burst (creates at once), density (memory of idle sandboxes),
costs (what a program pays inside).`

const benchExample = `  sudo dayfly bench
  sudo dayfly bench --isolation all -o json > bench.json
  sudo dayfly bench --only rounds -n 200
  sudo dayfly bench --only burst --burst 20
  sudo dayfly bench --only density --idle 2000 --isolation linux`

// Bounds of what bench may be asked for.
const (
	benchRoundsMax = 10000
	benchAtOnceMax = 1000
	benchIdleMax   = 4096 // what one installation has slots for
)

// allIsolations are what --isolation all tries.
var allIsolations = []string{"linux", "gvisor"}

func (a *app) benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "bench", Short: "Measure what sandboxes cost on this machine", Long: benchLong, Example: benchExample,
		Args: exactly(), ValidArgsFunction: cobra.NoFileCompletions,
	}
	var o measure.Options
	f := cmd.Flags()
	isolation := f.String("isolation", "auto", "linux, gvisor, auto (what a create without one gets) or all")
	only := f.StringSlice("only", measure.Parts, "parts to measure")
	f.IntVarP(&o.Rounds, "rounds", "n", 50, "samples of each figure of a round")
	f.IntVar(&o.Burst, "burst", 100, "creates at once; 0 leaves them out")
	f.IntVar(&o.Idle, "idle", 48, "idle sandboxes to weigh, or as many as fit; 0 leaves them out")
	_ = cmd.RegisterFlagCompletionFunc("isolation", cobra.FixedCompletions(append([]string{"auto", "all"}, allIsolations...), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions(measure.Parts, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = a.do(func(cmd *cobra.Command, _ []string) error {
		for _, part := range *only {
			if !slices.Contains(measure.Parts, part) {
				return usagef("there is no part %q to measure", part).withHint("the parts are %s", strings.Join(measure.Parts, ", "))
			}
		}
		for _, n := range []struct {
			flag             string
			value, low, high int
		}{{"rounds", o.Rounds, 1, benchRoundsMax}, {"burst", o.Burst, 0, benchAtOnceMax}, {"idle", o.Idle, 0, benchIdleMax}} {
			if n.value < n.low || n.value > n.high {
				return usagef("--%s %d is not between %d and %d", n.flag, n.value, n.low, n.high)
			}
		}
		o.Parts, o.Isolations = *only, []string{*isolation}
		if *isolation == "all" {
			o.Isolations = allIsolations
		}
		return a.bench(cmd.Context(), o)
	})
	return cmd
}

func (a *app) bench(ctx context.Context, o measure.Options) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	o.Client, o.Version, o.Remote = client, a.Version, !onThisMachine(client.URL())
	o.Progress = func(text string) { a.note("%s", text) }
	result, err := measure.Measure(ctx, o)
	if sig := signalOf(ctx); sig != 0 && (err == nil || sdk.ErrorCode(err) == sdk.CodeCancelled || errors.As(err, new(interrupted))) {
		a.note("interrupted; everything that was made is destroyed")
		return quiet(exitSignal + int(sig))
	}
	if err != nil {
		return err
	}
	if a.json() {
		return a.writeJSON(result)
	}
	return writeBench(a.Stdout, result)
}

// writeBench prints the table: a row for each figure and isolation.
func writeBench(out io.Writer, r *measure.Result) error {
	fmt.Fprintf(out, "%s\ndayfly %s, server %s, %s, %.0f s\n\n", cell(r.Host.String()), cell(r.Version), cell(r.ServerVersion),
		r.StartedAt.Format("2006-01-02 15:04 UTC"), r.Seconds)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FIGURE\tISOLATION\tN\tP50\tP95\tP99\tUNIT\t× BARE P50\t× BARE P99")
	var notes []string
	for _, f := range r.Figures {
		p50, p95, p99 := figureText(f.P50), figureText(f.P95), figureText(f.P99)
		if f.Note != "" { // one estimate has no spread
			p95, p99 = "-", "-"
			notes = append(notes, fmt.Sprintf("%s, %s: %s", f.Text, f.Isolation, f.Note))
		}
		ratio, tail := "-", "-"
		if f.Floor != nil {
			ratio, tail = fmt.Sprintf("%.2f", f.Floor.RatioP50), fmt.Sprintf("%.2f", f.Floor.RatioP99)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Text, cell(f.Isolation), f.N, p50, p95, p99, f.Unit, ratio, tail)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(notes)+len(r.Skipped) > 0 {
		fmt.Fprintln(out)
	}
	for _, n := range notes {
		fmt.Fprintln(out, n)
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(out, "not measured: %s: %s\n", strings.Trim(s.ID+", "+s.Isolation, ", "), printable(s.Reason))
	}
	return nil
}

// figureText gives three digits or more.
func figureText(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
