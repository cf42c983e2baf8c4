package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program", Long: "Version prints the version of this program. It asks no server.",
		Example: "  dayfly version\n  dayfly version -o json", Args: exactly(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.do(func(*cobra.Command, []string) error {
			platform := runtime.GOOS + "/" + runtime.GOARCH
			if a.json() {
				return a.writeJSON(struct {
					Version  string `json:"version"`
					Go       string `json:"go"`
					Platform string `json:"platform"`
				}{a.Version, runtime.Version(), platform})
			}
			_, err := fmt.Fprintf(a.Stdout, "dayfly %s (%s, %s)\n", a.Version, runtime.Version(), platform)
			return err
		}),
	}
}
