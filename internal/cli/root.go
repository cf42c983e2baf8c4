package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// Options are what a command line is made with.
type Options struct {
	Stdin   io.Reader // or nil for no input
	Stdout  io.Writer
	Stderr  io.Writer
	Env     func(string) string // reads the environment; nil means os.Getenv
	Version string
	Extra   []*cobra.Command // commands of the program itself
}

// app is what all commands share.
type app struct {
	Options
	flags globalFlags
}

type globalFlags struct {
	url, key, data, output, config string
}

// Names of the global flags, for the program's own commands.
const (
	FlagData   = "data"
	FlagOutput = "output"
)

// The output formats.
const (
	outputText = "text"
	outputJSON = "json"
)

// suggestDistance is how many letters a mistyped command may differ by from one that is suggested.
const suggestDistance = 2

const rootLong = `Dayfly gives every task a clean machine that is guaranteed to disappear.

Settings are taken from flags, then from the environment (DAYFLY_URL, DAYFLY_API_KEY, DAYFLY_DATA), then from the
configuration file (keys url and api_key), then from the server of this machine: its address and its first key are
found in the data directory, /var/lib/dayfly unless DAYFLY_DATA says otherwise. Only root may read that key: use sudo,
or put a key into DAYFLY_API_KEY. The commands server, up, down, status, doctor, audit and warden have settings of
their own and a file of their own for --config: see ` + "`dayfly server --help`" + `.`

const rootExample = `  sudo dayfly up
  dayfly run -- python3 -c 'print("hello")'
  dayfly run --cp .:work --timeout 30m -- sh -c 'cd work && make test'`

// Root makes the whole command line. Run it with Execute.
func Root(o Options) *cobra.Command {
	if o.Env == nil {
		o.Env = os.Getenv
	}
	a := &app{Options: o}
	root := &cobra.Command{
		Use: "dayfly", Short: "Clean machines that are guaranteed to disappear", Long: rootLong, Example: rootExample,
		SilenceErrors: true, SilenceUsage: true, SuggestionsMinimumDistance: suggestDistance,
		Args:              unknownCommand,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.checkOutput() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetIn(cmpReader(o.Stdin))
	root.SetOut(o.Stdout)
	root.SetErr(o.Stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%v", err).at(cmd)
	})
	f := root.PersistentFlags()
	f.StringVar(&a.flags.url, "url", "", "address of the server, without /v1 (DAYFLY_URL)")
	f.StringVar(&a.flags.key, "api-key", "", "API key; other users of this machine can see it, prefer DAYFLY_API_KEY")
	f.StringVar(&a.flags.data, FlagData, "", "data directory of a server on this machine (DAYFLY_DATA)")
	f.StringVarP(&a.flags.output, FlagOutput, "o", outputText, "output format: text or json")
	f.StringVar(&a.flags.config, "config", "", "configuration file (default ~/.config/dayfly/config.yaml)")
	_ = root.RegisterFlagCompletionFunc(FlagOutput, cobra.FixedCompletions([]string{outputText, outputJSON}, cobra.ShellCompDirectiveNoFileComp))
	root.AddCommand(
		a.runCommand(), a.createCommand(), a.lsCommand(), a.showCommand(), a.execCommand(), a.shCommand(), a.attachCommand(),
		a.psCommand(), a.logsCommand(), a.waitCommand(), a.killCommand(), a.cpCommand(), a.filesCommand(), a.extendCommand(),
		a.pauseCommand(), a.resumeCommand(), a.rmCommand(),
		a.eventsCommand(), a.keysCommand(), a.imagesCommand(), a.benchCommand(), a.versionCommand(), a.completionCommand(),
	)
	root.AddCommand(o.Extra...)
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			c.Example = "  dayfly help run"
		}
	}
	return root
}

// passThrough are the commands that exit with another command's code.
var passThrough = []string{"run", "exec", "sh", "attach"}

// Execute runs the command line with args, tells on stderr what failed and gives the exit code. The first SIGINT, SIGTERM
// or SIGHUP ends the command's context, the second the process.
func Execute(root *cobra.Command, args []string) int {
	ctx, stop := interrupts(context.Background())
	defer stop()
	root.SetArgs(args)
	if args == nil {
		root.SetArgs([]string{}) // cobra takes nil for os.Args
	}
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	if sig := signalOf(ctx); sig != 0 && errors.Is(err, context.Canceled) {
		return exitSignal + int(sig)
	}
	output, _ := root.PersistentFlags().GetString(FlagOutput)
	code := report(root.ErrOrStderr(), err, output == outputJSON)
	if code == exitUsage && err.Error() != "" && slices.Contains(passThrough, cmd.Name()) {
		return exitDayfly // 2 would look like the command's own code
	}
	return code
}

func (a *app) checkOutput() error {
	if a.flags.output != outputText && a.flags.output != outputJSON {
		return usagef("the output format %q does not exist", a.flags.output).withHint("use -o text or -o json")
	}
	return nil
}

func (a *app) json() bool { return a.flags.output == outputJSON }

// do wraps a command: its failures get a hint that fits the settings in use.
func (a *app) do(fn func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error { return a.advise(fn(cmd, args)) }
}

// NoArgs is for commands of the program's own that take no argument.
func NoArgs(cmd *cobra.Command, args []string) error { return exactly()(cmd, args) }

// exactly is cobra.ExactArgs with a usage error that names what is missing.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usagef("%s is missing", names[len(args)]).at(cmd)
		}
		if len(args) > len(names) {
			return usagef("%q is one argument too many", args[len(names)]).at(cmd)
		}
		return nil
	}
}

// atLeast is exactly for a last argument that may be repeated.
func atLeast(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usagef("%s is missing", names[len(args)]).at(cmd)
		}
		return nil
	}
}

// oneOrTwo takes a sandbox and one argument more, or none.
func oneOrTwo(cmd *cobra.Command, args []string) error {
	if len(args) > 2 {
		return usagef("%q is one argument too many", args[2]).at(cmd)
	}
	return atLeast("the sandbox's ID")(cmd, args)
}

func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := usagef("there is no command %q", cmd.CommandPath()+" "+args[0]).at(cmd)
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		slices.Sort(near)
		err = err.withHint("did you mean %s?", strings.Join(near, " or "))
	}
	return err
}

// group is a command that only holds others.
func group(use, short, long, example string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Example: example, Args: unknownCommand,
		SuggestionsMinimumDistance: suggestDistance, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(commands...)
	return cmd
}

func cmpReader(r io.Reader) io.Reader {
	if r == nil {
		return strings.NewReader("")
	}
	return r
}

// client makes the SDK's client from the settings.
func (a *app) client() (*sdk.Client, error) {
	s, err := a.settings()
	if err != nil {
		return nil, err
	}
	c, err := sdk.New(sdk.Options{
		URL: s.url, APIKey: s.key, DataDir: s.data, UserAgent: "dayfly-cli/" + a.Version,
		Getenv: func(string) string { return "" }, // read already
	})
	if sdk.ErrorCode(err) == sdk.CodeInvalid {
		var e *sdk.Error
		errors.As(err, &e)
		return nil, usagef("%s", e.Message).withHint("%s", e.Hint)
	}
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return c, nil
}
