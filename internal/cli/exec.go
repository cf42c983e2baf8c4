package cli

import (
	"context"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const execLong = `Exec runs one command in a sandbox that exists. Both outputs are shown while they are written, standard input is
passed on, and the exit code is the command's own; 125 means that Dayfly failed. Ctrl-C is passed on to the command and
all that it started; a second one leaves at once, and the command is ended half a minute later.

The command is not run by a shell: use sh -c '…' for one. Without --timeout its time is limited by the lease alone.

With -o json each event is one JSON object a line: start, stdout, stderr, dropped, exit.`

const execExample = `  dayfly exec sb2c9x0q8d7k4m1n5p3r6t -- ls -la
  dayfly exec sb2c9x0q8d7k4m1n5p3r6t --cwd work --env CI=1 -- sh -c 'make && make test'
  dayfly exec sb2c9x0q8d7k4m1n5p3r6t --user root -- id
  dayfly exec sb2c9x0q8d7k4m1n5p3r6t -- psql < schema.sql`

func (a *app) execCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "exec ID [flags] -- COMMAND [ARGUMENT…]", Short: "Run a command in a sandbox", Long: execLong, Example: execExample,
		Args: needCommand(1), ValidArgsFunction: a.completeOneSandbox, DisableFlagsInUseLine: true,
	}
	var o sdk.ExecOptions
	var env []string
	f := cmd.Flags()
	f.StringArrayVar(&env, "env", nil, "environment `NAME=value`, or NAME to pass this command's own (repeatable)")
	f.StringVar(&o.Cwd, "cwd", "", "directory to run in (default the home directory)")
	f.StringVar(&o.User, "user", "", "user to run as (default the image's)")
	f.DurationVar(&o.Timeout, "timeout", 0, "how long it may run (default as long as the sandbox lives)")
	noStdin := f.BoolP("no-stdin", "n", false, "give the command no input")
	cmd.RunE = a.do(func(cmd *cobra.Command, args []string) error {
		var err error
		if o.Env, err = a.parseEnv(env); err != nil {
			return err
		}
		if o.Timeout < 0 {
			return usagef("the timeout %s is negative", o.Timeout).withHint("write --timeout 5m")
		}
		if o.Timeout == 0 {
			o.Timeout = commandTimeMax
		}
		if !*noStdin {
			o.Stdin = a.input()
		}
		return ownFailure(a.exec(cmd.Context(), args[0], args[1:], o))
	})
	return cmd
}

// exec runs argv. A signal goes to the command first, whose end is then waited for.
func (a *app) exec(ctx context.Context, id string, argv []string, o sdk.ExecOptions) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	sandbox := client.Sandbox(id)
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	started, done, passed := make(chan string, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(passed)
		passSignal(ctx, sandbox, started, done, cancel)
	}()
	f := follower{app: a, sandbox: sandbox, options: o, started: func(process string) { started <- process }}
	code, err := f.follow(running, argv)
	close(done)
	<-passed
	if sig := signalOf(ctx); sig != 0 {
		return quiet(exitSignal + int(sig))
	}
	if err != nil {
		return err
	}
	return quiet(code)
}

// How long a command has to end after a signal was passed on, and each request for it.
const (
	signalPatience = 5 * time.Second
	signalCallMax  = 5 * time.Second
)

// passSignal waits for the end of ctx or of the command. In the former case it sends the signal on, then KILL, then leaves.
func passSignal(ctx context.Context, sandbox *sdk.Sandbox, started <-chan string, done <-chan struct{}, leave func()) {
	select {
	case <-ctx.Done():
	case <-done:
		return
	}
	defer leave()
	name := "TERM"
	if signalOf(ctx) == syscall.SIGINT {
		name = "INT"
	}
	select {
	case process := <-started:
		for _, name := range []string{name, "KILL"} {
			call, cancel := context.WithTimeout(context.WithoutCancel(ctx), signalCallMax)
			err := sandbox.Signal(call, process, name, true)
			cancel()
			if err != nil || waitFor(done, signalPatience) {
				return
			}
		}
	default: // it has not begun
	}
}

// waitFor tells whether done was closed within d.
func waitFor(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}
