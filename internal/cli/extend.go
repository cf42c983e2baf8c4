package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const extendLong = `Extend adds time to a sandbox's lease and prints when it ends now. A lease never goes beyond its ceiling, 24 hours
after the creation: what does not fit is cut, and said.`

const extendExample = `  dayfly extend sb2c9x0q8d7k4m1n5p3r6t 30m
  dayfly extend sb2c9x0q8d7k4m1n5p3r6t 1h30m -o json`

func (a *app) extendCommand() *cobra.Command {
	return &cobra.Command{
		Use: "extend ID DURATION", Short: "Give a sandbox more time", Long: extendLong, Example: extendExample,
		Args: exactly("the sandbox's ID", "the time to add"), ValidArgsFunction: a.completeOneSandbox,
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			d, err := time.ParseDuration(args[1])
			if err != nil || d <= 0 {
				return usagef("%q is not a time to add", args[1]).withHint("write 30m, 45s or 1h30m")
			}
			client, err := a.client()
			if err != nil {
				return err
			}
			info, clamped, err := client.Sandbox(args[0]).Extend(cmd.Context(), d)
			if err != nil {
				return err
			}
			if a.json() {
				return a.writeJSON(struct {
					sdk.Info
					Clamped bool `json:"clamped"`
				}{info, clamped})
			}
			if clamped {
				a.note("cut to the sandbox's ceiling")
			}
			_, err = fmt.Fprintf(a.Stdout, "%s expires at %s, in %s\n", info.ID, stamp(info.ExpiresAt), age(info.Remaining()))
			return err
		}),
	}
}
