package cli_test

import (
	"os"
	"testing"

	"github.com/spf13/cobra"

	"dayfly.dev/dayfly/internal/cli"
)

// asCommand makes the test program the command line itself, so that signals, pipes and exit codes are real.
const asCommand = "DAYFLY_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) == "" {
		os.Exit(m.Run())
	}
	extra := &cobra.Command{Use: "extra", Short: "A command of the program", RunE: func(*cobra.Command, []string) error { return nil }}
	root := cli.Root(cli.Options{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Version: "1.2.3-test", Extra: []*cobra.Command{extra}})
	os.Exit(cli.Execute(root, os.Args[1:]))
}
