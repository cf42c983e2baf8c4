package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cli"
	"dayfly.dev/dayfly/internal/clock"
	"dayfly.dev/dayfly/internal/node"
	"dayfly.dev/dayfly/internal/store"
	sdk "dayfly.dev/dayfly/sdk/go"
)

func auditCommand() *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "List what is really on this host against what is recorded",
		Long: "List what is really on this host (machines, processes, disks, leases, network, mounts, loop devices) against what\n" +
			"is recorded, in both directions, with the server up or down. It changes nothing. Exit code 1 if anything is\n" +
			"unaccounted for. What belongs to a sandbox that is ending is shown as reclaiming.\n" +
			"With --fix everything that no sandbox owns is removed first, and each thing done is told. A running server is asked\n" +
			"to do it now, even if most of what lives would go; with no server running, this does what a start of it does (give\n" +
			"the same --config or settings): a machine with a valid lease and no record gets its record back.",
		Example: "  sudo dayfly audit\n  sudo dayfly audit --data /srv/dayfly -o json\n  sudo dayfly audit --fix",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if err := needRoot("audit"); err != nil {
				return err
			}
			var fixed *sdk.Swept
			if repair {
				swept, err := fix(cmd.Context(), cfg)
				if err != nil {
					return err
				}
				fixed = &swept
			}
			found, err := audit(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			return printAudit(cmd, found, fixed)
		},
	}
	addSettings(cmd, "data")
	cmd.Flags().BoolVar(&repair, "fix", false, "remove everything that no sandbox owns")
	return cmd
}

// audit surveys the host for the installation of a data directory. A directory without one has nothing on the host.
func audit(ctx context.Context, cfg config) ([]node.Object, error) {
	b, err := os.ReadFile(filepath.Join(cfg.Data, installationFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the installation id: %w", err)
	}
	list, err := sources(cfg, strings.TrimSpace(string(b)))
	if err != nil {
		return nil, err
	}
	db, err := store.Open(ctx, filepath.Join(cfg.Data, databaseFile), store.Options{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer db.Close()
	records, err := db.LiveSandboxes(ctx)
	if err != nil {
		return nil, err
	}
	host, err := clock.NewHost()
	if err != nil {
		return nil, err
	}
	ago := func(id string) (time.Duration, bool) {
		sb, err := db.Sandbox(ctx, "", id)
		now := host.Now()
		return now.Boot - sb.Times.EndedBoot, err == nil && sb.Status.Ended() && sb.Lease.BootID == now.BootID
	}
	found, err := node.Survey(ctx, list, records, ago)
	if err != nil {
		return nil, err
	}
	return settle(ctx, db, found)
}

// settle drops findings that were true of a sandbox made or ended while the survey went on.
func settle(ctx context.Context, db dayfly.Store, found []node.Object) ([]node.Object, error) {
	for i, o := range found {
		if o.State != node.ObjectUnaccounted && o.State != node.ObjectMissing || o.Owner == "" {
			continue
		}
		sb, err := db.Sandbox(ctx, "", o.Owner)
		if dayfly.ErrorCode(err) == dayfly.CodeNotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		switch {
		case o.State == node.ObjectUnaccounted && !sb.Status.Ended():
			found[i].State = node.ObjectOwned
		case o.State == node.ObjectMissing && !sb.Status.Up():
			found[i].State = node.ObjectReclaiming
		}
	}
	return found, nil
}

// printAudit shows the objects, after what was fixed unless that is nil.
func printAudit(cmd *cobra.Command, found []node.Object, fixed *sdk.Swept) error {
	counts := map[node.ObjectState]int{node.ObjectOwned: 0, node.ObjectReclaiming: 0, node.ObjectUnaccounted: 0, node.ObjectMissing: 0}
	for _, o := range found {
		counts[o.State]++
	}
	bad := wrong(found)
	if asJSON(cmd) {
		if found == nil {
			found = []node.Object{}
		}
		out := map[string]any{"objects": found, "unaccounted": bad, "counts": counts}
		if fixed != nil {
			out["fixed"] = fixed
		}
		if err := cli.WriteJSON(cmd.OutOrStdout(), out); err != nil {
			return err
		}
	} else {
		if fixed != nil {
			printFixed(cmd, *fixed)
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
		for _, o := range found {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", o.State, o.Owner, o.Kind, o.Name)
		}
		if err := w.Flush(); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%d objects: %d owned, %d reclaiming, %d unaccounted for\n",
			len(found), counts[node.ObjectOwned], counts[node.ObjectReclaiming], bad)
	}
	if bad > 0 {
		return cli.ErrSaid
	}
	return nil
}
