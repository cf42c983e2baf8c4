package cli_test

import (
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"dayfly.dev/dayfly/internal/cli"
)

// asCommand makes the test program the command line itself, so that signals, pipes and exit codes are real.
const asCommand = "DAYFLY_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) == "" {
		if signal.Ignored(syscall.SIGHUP) { // as below nohup; what is started here would ignore it as well
			signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
		}
		os.Exit(m.Run())
	}
	extra := &cobra.Command{Use: "extra", Short: "A command of the program", RunE: func(*cobra.Command, []string) error { return nil }}
	root := cli.Root(cli.Options{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Version: "1.2.3-test", Extra: []*cobra.Command{extra}})
	os.Exit(cli.Execute(root, os.Args[1:]))
}
