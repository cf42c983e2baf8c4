package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const pauseLong = `Pause freezes sandboxes: nothing in them runs until resume. Their leases run on, and end them as ever; extend and rm
work meanwhile, commands and files do not. It tells of each and exits 1 if any failed.`

const pauseExample = `  dayfly pause sb2c9x0q8d7k4m1n5p3r6t
  dayfly resume sb2c9x0q8d7k4m1n5p3r6t`

const resumeLong = `Resume lets paused sandboxes go on where they were frozen. It tells of each and exits 1 if any failed.`

const resumeExample = `  dayfly resume sb2c9x0q8d7k4m1n5p3r6t`

func (a *app) pauseCommand() *cobra.Command {
	return a.freezeCommand(&cobra.Command{Use: "pause SANDBOX…", Short: "Freeze sandboxes", Long: pauseLong, Example: pauseExample},
		"paused", func(ctx context.Context, s *sdk.Sandbox) (sdk.Info, error) { return s.Pause(ctx) })
}

func (a *app) resumeCommand() *cobra.Command {
	return a.freezeCommand(&cobra.Command{Use: "resume SANDBOX…", Short: "Let paused sandboxes go on", Long: resumeLong, Example: resumeExample},
		"resumed", func(ctx context.Context, s *sdk.Sandbox) (sdk.Info, error) { return s.Resume(ctx) })
}

// frozen is how the pause or resume of one sandbox went.
type frozen struct {
	ID     string `json:"id"`
	Status string `json:"status"` // paused, running or error
	Error  string `json:"error,omitempty"`
	err    error
}

// freezeCommand completes a command that does something to each of the sandboxes named.
func (a *app) freezeCommand(cmd *cobra.Command, done string, do func(context.Context, *sdk.Sandbox) (sdk.Info, error)) *cobra.Command {
	cmd.ValidArgsFunction, cmd.DisableFlagsInUseLine = a.completeSandboxes, true
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usagef("say which sandboxes").at(cmd)
		}
		return nil
	}
	cmd.RunE = a.do(func(cmd *cobra.Command, args []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		ids := slices.Compact(slices.Sorted(slices.Values(args)))
		results := make([]frozen, len(ids))
		var g errgroup.Group
		g.SetLimit(removeAtOnce)
		for i, id := range ids {
			g.Go(func() error {
				info, err := do(cmd.Context(), client.Sandbox(id))
				results[i] = frozen{ID: id, Status: string(info.Status), err: err}
				if err != nil {
					results[i].Status, results[i].Error = "error", err.Error()
				}
				return nil
			})
		}
		_ = g.Wait()
		return a.tellFrozen(results, done)
	})
	return cmd
}

// tellFrozen prints the ids of those that were done, and tells of the others.
func (a *app) tellFrozen(results []frozen, done string) error {
	var failed []error
	for _, r := range results {
		if r.err != nil {
			failed = append(failed, r.err)
			if len(results) > 1 && !a.json() { // the only one's error ends the command, and is told there
				a.note("%s: %s", r.ID, r.Error)
			}
		} else if !a.json() {
			if _, err := fmt.Fprintln(a.Stdout, r.ID); err != nil {
				return err
			}
		}
	}
	if a.json() {
		if err := a.writeJSON(list[frozen]{results}); err != nil {
			return err
		}
	}
	switch {
	case len(failed) == 0:
		return nil
	case len(results) == 1:
		return failed[0]
	}
	return &failure{code: exitFailed, text: fmt.Sprintf("%d of %d sandboxes could not be %s", len(failed), len(results), done),
		hint: "`dayfly ls` shows what they are doing", cause: failed[0]}
}
