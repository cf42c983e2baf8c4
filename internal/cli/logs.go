package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const logsLong = `Logs prints what a command has written, its two outputs to this command's two. Without PROCESS it is the one that runs, or
ran last. --follow goes on until it ends; a connection that breaks is taken up where it broke. Bytes that the sandbox no
longer keeps are counted on standard error, never left out silently.

--since-offset leaves out the first bytes of standard output, or with N,M of both outputs: the number of bytes that you
have is the offset to go on from.

With -o json each event is one JSON object a line: start, stdout, stderr, dropped, exit.`

const logsExample = `  dayfly logs sb2c9x0q8d7k4m1n5p3r6t web
  dayfly logs -f sb2c9x0q8d7k4m1n5p3r6t
  dayfly logs --since-offset "$(stat -c %s out.log)" sb2c9x0q8d7k4m1n5p3r6t web >> out.log`

func (a *app) logsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "logs ID [PROCESS]", Short: "Print a command's output", Long: logsLong, Example: logsExample,
		Args: oneOrTwo, ValidArgsFunction: a.completeProcess,
	}
	f := cmd.Flags()
	follow := f.BoolP("follow", "f", false, "go on until the command ends")
	since := f.Int64Slice("since-offset", nil, "begin after so many bytes: `N`, or N,M for both outputs")
	cmd.RunE = a.do(func(cmd *cobra.Command, args []string) error {
		o := sdk.OutputOptions{UpToNow: !*follow}
		for i, n := range *since {
			if n < 0 || i > 1 {
				return usagef("--since-offset wants one or two numbers of bytes").at(cmd)
			}
			*[]*int64{&o.From.Stdout, &o.From.Stderr}[i] = n
		}
		sandbox, process, err := a.logged(cmd.Context(), args)
		if err != nil {
			return err
		}
		stream, err := sandbox.Output(cmd.Context(), process, o)
		if err != nil {
			return err
		}
		_, err = (&follower{app: a, sandbox: sandbox}).events(stream)
		return err
	})
	return cmd
}

// logged is the process whose output is wanted.
func (a *app) logged(ctx context.Context, args []string) (*sdk.Sandbox, string, error) {
	if len(args) > 1 {
		sandbox, p, err := a.findProcess(ctx, args[0], args[1])
		return sandbox, p.ID, err
	}
	client, err := a.client()
	if err != nil {
		return nil, "", err
	}
	sandbox := client.Sandbox(args[0])
	p, err := lastProcess(ctx, sandbox, sdk.ProcessListOptions{})
	if errors.Is(err, errNoProcess) {
		err = failf("no command was run in %s yet", args[0])
	}
	return sandbox, p.ID, err
}
