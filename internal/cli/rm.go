package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// removeAtOnce is how many sandboxes are destroyed side by side.
const removeAtOnce = 16

const rmLong = `Rm destroys sandboxes, many at once: those named, those with all of the labels, or all that live. It returns once
their machines are gone. One that is gone already is a success. It tells of each and exits 1 if any failed.`

const rmExample = `  dayfly rm sb2c9x0q8d7k4m1n5p3r6t
  dayfly rm --label pr=418
  dayfly rm --all`

func (a *app) rmCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm {ID… | --label KEY=VALUE | --all}", Aliases: []string{"delete"}, Short: "Destroy sandboxes", Long: rmLong, Example: rmExample,
		ValidArgsFunction: a.completeSandboxes, DisableFlagsInUseLine: true,
	}
	labels := cmd.Flags().StringArray("label", nil, "those with label `key=value` (repeatable)")
	all := cmd.Flags().Bool("all", false, "all that live")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		ways := 0
		for _, given := range []bool{len(args) > 0, len(*labels) > 0, *all} {
			if given {
				ways++
			}
		}
		if ways != 1 {
			return usagef("say which sandboxes: either their ids, or --label, or --all").at(cmd)
		}
		return nil
	}
	cmd.RunE = a.do(func(cmd *cobra.Command, args []string) error {
		chosen, err := parseLabels(*labels)
		if err != nil {
			return err
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		ids, err := whichSandboxes(cmd.Context(), client, args, chosen)
		if err != nil {
			return err
		}
		return a.remove(cmd.Context(), client, ids)
	})
	return cmd
}

// whichSandboxes are those named, else all live ones with the labels.
func whichSandboxes(ctx context.Context, client *sdk.Client, named []string, labels map[string]string) ([]string, error) {
	if len(named) > 0 {
		slices.Sort(named)
		return slices.Compact(named), nil
	}
	var ids []string
	for sandbox, err := range client.List(ctx, sdk.ListOptions{Labels: labels}) {
		if err != nil {
			return nil, err
		}
		ids = append(ids, sandbox.ID)
	}
	return ids, nil
}

// removal is how the end of one sandbox went.
type removal struct {
	ID     string `json:"id"`
	Status string `json:"status"` // deleted, deleting, failed, gone, or error
	Error  string `json:"error,omitempty"`
	err    error
}

func (a *app) remove(ctx context.Context, client *sdk.Client, ids []string) error {
	results := make([]removal, len(ids))
	var g errgroup.Group
	g.SetLimit(removeAtOnce)
	for i, id := range ids {
		g.Go(func() error {
			results[i] = removeOne(ctx, client, id)
			return nil
		})
	}
	_ = g.Wait()
	var failed []error
	for _, r := range results {
		if r.err != nil {
			failed = append(failed, r.err)
		}
	}
	if err := a.tellRemoved(results); err != nil {
		return err
	}
	switch {
	case len(failed) == 0:
		return nil
	case len(ids) == 1:
		return failed[0]
	}
	return &failure{code: exitFailed, text: fmt.Sprintf("%d of %d sandboxes could not be destroyed", len(failed), len(ids)),
		hint: "try again; their leases end them anyway", cause: failed[0]}
}

func removeOne(ctx context.Context, client *sdk.Client, id string) removal {
	info, err := client.Delete(ctx, id)
	if sdk.IsGone(err) {
		return removal{ID: id, Status: "gone"}
	}
	if err != nil {
		return removal{ID: id, Status: "error", Error: err.Error(), err: err}
	}
	return removal{ID: id, Status: string(info.Status)}
}

func (a *app) tellRemoved(results []removal) error {
	if a.json() {
		return a.writeJSON(list[removal]{results})
	}
	if len(results) == 0 {
		a.note("no sandbox to destroy")
	}
	for _, r := range results {
		switch {
		case r.err != nil:
			if len(results) > 1 { // the only one's error ends the command, and is told there
				a.note("%s: %s", r.ID, r.Error)
			}
			continue
		case r.Status == "gone":
			a.note("%s was gone already", r.ID)
		case r.Status == string(sdk.StatusDeleting):
			a.note("%s is still being destroyed", r.ID)
		}
		if _, err := fmt.Fprintln(a.Stdout, r.ID); err != nil {
			return err
		}
	}
	return nil
}
