package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"dayfly.dev/dayfly/internal/cli"
	"dayfly.dev/dayfly/internal/clock"
	"dayfly.dev/dayfly/internal/warden"
)

func wardenCommand() *cobra.Command {
	var replace bool
	cmd := &cobra.Command{
		Use:   "warden",
		Short: "Hold the leases of this machine's sandboxes (the server starts it)",
		Long: "Hold the leases of this machine's sandboxes: end each at its deadline, whatever else is dead. The server starts it\n" +
			"and it outlives the server; nobody needs to run it by hand. It leaves when no lease is left and no server runs.",
		Example: "  sudo dayfly warden --data /var/lib/dayfly",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			c, err := clock.NewHost()
			if err != nil {
				return err
			}
			err = warden.Run(cmd.Context(), warden.Options{
				DataDir: cfg.Data, Build: version, Replace: replace, Clock: c, Log: newLogger(cfg.Log.Level),
			})
			if err != nil {
				return fmt.Errorf("warden: %w", err)
			}
			return nil
		},
	}
	addSettings(cmd, "data", "log-level")
	cmd.Flags().BoolVar(&replace, "replace", false, "take over from a warden that runs already")
	return cmd
}
