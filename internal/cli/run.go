package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const runLong = `Run makes a sandbox, runs one command in it and destroys the sandbox, whatever happens: when the command ends,
when it fails, on Ctrl-C and on SIGTERM. A second Ctrl-C leaves at once; then the lease ends the sandbox.

Both outputs are shown while they are written, standard input is passed on, and the exit code is the command's own.
125 means that Dayfly failed, not the command. The command is not run by a shell: use sh -c '…' for one. The lease
(--timeout) is the only limit of its time.

With -o json each event is one JSON object a line: start, stdout, stderr, dropped, exit.`

const runExample = `  dayfly run -- python3 -c 'print("hello")'
  dayfly run --cp .:work --timeout 30m -- sh -c 'cd work && make test'
  dayfly run --image base-node --env TOKEN -- npm --version
  tar c src | dayfly run -- tar t`

func (a *app) runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "run [flags] -- COMMAND [ARGUMENT…]", Short: "Run a command in a new sandbox and destroy it", Long: runLong, Example: runExample,
		Args: needCommand(0), ValidArgsFunction: cobra.NoFileCompletions, DisableFlagsInUseLine: true,
	}
	cmd.Flags().SetInterspersed(false) // flags after the command's name are the command's
	m := a.machineFlags(cmd)
	keep := cmd.Flags().Bool("keep", false, "do not destroy the sandbox; its id is printed on standard error")
	noStdin := cmd.Flags().BoolP("no-stdin", "n", false, "give the command no input")
	cmd.RunE = a.do(func(cmd *cobra.Command, args []string) error {
		return ownFailure(a.run(cmd.Context(), m, args, *keep, *noStdin))
	})
	return cmd
}

func (a *app) run(ctx context.Context, m *machineFlags, argv []string, keep, noStdin bool) error {
	sandbox, err := a.create(ctx, m)
	if err != nil {
		return err
	}
	if keep {
		a.note("sandbox %s is kept until %s", sandbox.ID, stamp(sandbox.Info().ExpiresAt))
	}
	f := follower{app: a, sandbox: sandbox, options: sdk.ExecOptions{Timeout: commandTimeMax}}
	if !noStdin {
		f.options.Stdin = a.input()
	}
	code, err := f.follow(ctx, argv)
	if err == nil {
		err = quiet(code)
	}
	if keep {
		if sig := signalOf(ctx); sig != 0 {
			return quiet(exitSignal + int(sig))
		}
		return err
	}
	return a.destroyAfter(ctx, sandbox, err)
}

// commandTimeMax leaves the time of a command to the lease, whose ceiling it is.
const commandTimeMax = 24 * time.Hour

// needCommand wants n arguments and a command after them.
func needCommand(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if n == 1 && len(args) == 0 {
			return usagef("the sandbox's ID is missing").at(cmd)
		}
		if len(args) <= n || args[n] == "" {
			return usagef("the command to run is missing").withHint("write it after --, as in `%s … -- uname -a`", cmd.CommandPath())
		}
		return nil
	}
}
