// Command dayfly is the whole product in one binary: the server with this machine's node, the warden that ends sandboxes at
// their deadlines, and the command line. This package only wires: it is the one place that names concrete technologies.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"dayfly.dev/dayfly/internal/cli"
)

// version is set by the build.
var version = "unknown"

func main() {
	root := cli.Root(cli.Options{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Version: version,
		Extra: []*cobra.Command{
			serverCommand(), upCommand(), downCommand(), statusCommand(), doctorCommand(), auditCommand(), wardenCommand(),
			installCommand(), uninstallCommand(),
		},
	})
	os.Exit(cli.Execute(root, os.Args[1:]))
}

// asJSON tells whether a command was asked for JSON output.
func asJSON(cmd *cobra.Command) bool {
	f := cmd.Flags().Lookup(cli.FlagOutput)
	return f != nil && f.Value.String() == "json"
}
