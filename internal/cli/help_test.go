package cli_test

import (
	"bytes"
	"testing"

	"github.com/spf13/cobra"

	"dayfly.dev/dayfly/internal/cli"
)

// TestHelp: every command explains itself at length and shows an example.
func TestHelp(t *testing.T) {
	var b bytes.Buffer
	root := cli.Root(cli.Options{Stdout: &b, Stderr: &b})
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		if cmd.Short == "" || cmd.Long == "" || cmd.Example == "" {
			t.Errorf("%s has no short text, long text or example", cmd.CommandPath())
		}
		for _, c := range cmd.Commands() {
			check(c)
		}
	}
	check(root)
}
