package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const psLong = `Ps lists the commands that run in a sandbox, in the background or not, with all that each of them started. --all lists ended
ones too, as long as the sandbox keeps their output.`

const psExample = `  dayfly ps sb2c9x0q8d7k4m1n5p3r6t
  dayfly ps -a sb2c9x0q8d7k4m1n5p3r6t
  dayfly ps -o json sb2c9x0q8d7k4m1n5p3r6t | jq -r '.data[] | select(.name == "web") | .id'`

func (a *app) psCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ps ID", Short: "List the commands of a sandbox", Long: psLong, Example: psExample,
		Args: exactly("the sandbox's ID"), ValidArgsFunction: a.completeOneSandbox,
	}
	all := cmd.Flags().BoolP("all", "a", false, "ended ones too")
	cmd.RunE = a.do(func(cmd *cobra.Command, args []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		var o sdk.ProcessListOptions
		if !*all {
			o.Status = sdk.ProcessRunning
		}
		found := []sdk.Process{}
		for p, err := range client.Sandbox(args[0]).Processes(cmd.Context(), o) {
			if err != nil {
				return err
			}
			found = append(found, p)
		}
		if a.json() {
			return a.writeJSON(list[sdk.Process]{found})
		}
		return a.writeProcesses(found)
	})
	return cmd
}

// commandShown is how much of a command a table shows, in characters.
const commandShown = 60

func (a *app) writeProcesses(found []sdk.Process) error {
	var rows [][]string
	for _, p := range found {
		status := string(p.Status)
		if p.ExitCode != nil {
			status = fmt.Sprintf("%s (%d)", status, *p.ExitCode)
		}
		command := []rune(p.Command)
		if len(command) > commandShown {
			command = append(command[:commandShown-1], '…')
		}
		rows = append(rows, []string{p.ID, p.Name, status, number(int64(p.PID)), fmt.Sprintf("%.1fs", float64(p.CPUMS)/1000), size(p.MemoryBytes),
			number(int64(p.Restarts)), since(p.StartedAt), string(command)})
	}
	return a.writeTable([]string{"ID", "NAME", "STATUS", "PID", "CPU", "MEM", "RESTARTS", "AGE", "COMMAND"}, rows)
}

var processPattern = regexp.MustCompile(`^pr[a-z0-9]{20}$`)

// findProcess finds a command by its id or its name: of a name the one that runs, else the one that ran last.
func (a *app) findProcess(ctx context.Context, sandboxID, ref string) (*sdk.Sandbox, sdk.Process, error) {
	client, err := a.client()
	if err != nil {
		return nil, sdk.Process{}, err
	}
	sandbox := client.Sandbox(sandboxID)
	if processPattern.MatchString(ref) {
		p, err := sandbox.Process(ctx, ref)
		return sandbox, p, err
	}
	p, err := lastProcess(ctx, sandbox, sdk.ProcessListOptions{Name: ref})
	if errors.Is(err, errNoProcess) {
		err = failf("no command of %s has the name or id %q", sandboxID, ref).withHint("see `dayfly ps -a %s`", sandboxID)
	}
	return sandbox, p, err
}

var errNoProcess = errors.New("no such command")

// lastProcess gives the one that runs, else the one that was started last.
func lastProcess(ctx context.Context, sandbox *sdk.Sandbox, o sdk.ProcessListOptions) (best sdk.Process, err error) {
	for p, err := range sandbox.Processes(ctx, o) {
		if err != nil {
			return best, err
		}
		if best.ID == "" || better(p, best) {
			best = p
		}
	}
	if best.ID == "" {
		return best, errNoProcess
	}
	return best, nil
}

func better(p, than sdk.Process) bool {
	if (p.Status == sdk.ProcessRunning) != (than.Status == sdk.ProcessRunning) {
		return p.Status == sdk.ProcessRunning
	}
	return p.StartedAt != nil && (than.StartedAt == nil || p.StartedAt.After(*than.StartedAt))
}

const killLong = `Kill sends a signal to commands of a sandbox: KILL unless told otherwise, which ends each with all that it started. Other
signals go to the command's process group; with --tree to all its descendants.`

const killExample = `  dayfly kill sb2c9x0q8d7k4m1n5p3r6t web
  dayfly kill --signal HUP sb2c9x0q8d7k4m1n5p3r6t pr4h8s0q2d7k4m1n5p3r6t`

func (a *app) killCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "kill ID PROCESS…", Short: "Send a signal to commands", Long: killLong, Example: killExample,
		Args: atLeast("the sandbox's ID", "the process's id or name"), ValidArgsFunction: a.completeProcess,
	}
	f := cmd.Flags()
	signal := f.StringP("signal", "s", "KILL", "the signal: TERM, INT, HUP, …")
	tree := f.Bool("tree", false, "to all descendants too, as KILL does anyway")
	_ = cmd.RegisterFlagCompletionFunc("signal", cobra.FixedCompletions([]string{"KILL", "TERM", "INT", "HUP", "USR1", "USR2", "STOP", "CONT"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = a.do(func(cmd *cobra.Command, args []string) error {
		ids := []string{}
		for _, ref := range args[1:] {
			sandbox, p, err := a.findProcess(cmd.Context(), args[0], ref)
			if err != nil {
				return err
			}
			if err := sandbox.Signal(cmd.Context(), p.ID, *signal, *tree || *signal == "KILL"); err != nil {
				return err
			}
			if ids = append(ids, p.ID); !a.json() {
				fmt.Fprintln(a.Stdout, ref)
			}
		}
		if a.json() {
			return a.writeJSON(list[string]{ids})
		}
		return nil
	})
	return cmd
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

const waitLong = `Wait waits until a command has ended and prints its exit code. With --port it waits until something in the sandbox listens on
a TCP port instead. --timeout bounds the wait: when it is over, the exit code of wait itself is 1; it is 0 else, whatever
the command's own was. Both hear of it at once: nothing is asked again and again.`

const waitExample = `  dayfly wait sb2c9x0q8d7k4m1n5p3r6t web
  dayfly wait --port 8000 --timeout 30s sb2c9x0q8d7k4m1n5p3r6t && dayfly exec sb2c9x0q8d7k4m1n5p3r6t -- curl -s localhost:8000`

func (a *app) waitCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "wait ID {PROCESS… | --port N}", Short: "Wait for a command's end, or for a port", Long: waitLong, Example: waitExample,
		Args: atLeast("the sandbox's ID"), ValidArgsFunction: a.completeProcess, DisableFlagsInUseLine: true,
	}
	f := cmd.Flags()
	port := f.IntP("port", "p", 0, "wait for this TCP port")
	timeout := f.Duration("timeout", 0, "how long to wait (default as long as the sandbox lives)")
	cmd.RunE = a.do(func(cmd *cobra.Command, args []string) error {
		switch {
		case *timeout < 0:
			return usagef("the timeout %s is negative", *timeout).withHint("write --timeout 30s")
		case (*port != 0) == (len(args) > 1):
			return usagef("wait for a process or for a port").withHint("name a process after the sandbox's ID, or give --port N").at(cmd)
		case *port < 0 || *port > 65535:
			return usagef("%d is no TCP port", *port).at(cmd)
		case *port != 0:
			return a.waitPort(cmd.Context(), args[0], *port, *timeout)
		}
		return a.waitProcesses(cmd.Context(), args[0], args[1:], *timeout)
	})
	return cmd
}

func (a *app) waitPort(ctx context.Context, id string, port int, timeout time.Duration) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	began := time.Now()
	listening, err := client.Sandbox(id).WaitPort(ctx, port, timeout)
	if err != nil {
		return err
	}
	if a.json() {
		if err := a.writeJSON(jsonPort{port, listening, time.Since(began).Milliseconds()}); err != nil {
			return err
		}
		if !listening {
			return ErrSaid
		}
		return nil
	}
	if !listening {
		return failf("nothing listens on port %d after %s", port, timeout).withHint("see with `dayfly ps %s` and `dayfly logs` what its server does", id)
	}
	return nil
}

type jsonPort struct {
	Port      int   `json:"port"`
	Listening bool  `json:"listening"`
	WaitedMS  int64 `json:"waited_ms"`
}

func (a *app) waitProcesses(ctx context.Context, id string, refs []string, timeout time.Duration) error {
	began := time.Now()
	ended := []sdk.Process{}
	for _, ref := range refs {
		sandbox, p, err := a.findProcess(ctx, id, ref)
		if err != nil {
			return err
		}
		left := timeout
		if timeout > 0 {
			left = max(time.Nanosecond, timeout-time.Since(began))
		}
		if p, err = sandbox.WaitProcess(ctx, p.ID, left); err != nil {
			return err
		}
		if p.ExitCode == nil {
			return failf("%s still runs after %s", ref, timeout)
		}
		if ended = append(ended, p); !a.json() {
			fmt.Fprintln(a.Stdout, *p.ExitCode)
		}
	}
	if a.json() {
		return a.writeJSON(list[sdk.Process]{ended})
	}
	return nil
}

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

func oneOrTwo(cmd *cobra.Command, args []string) error {
	if len(args) > 2 {
		return usagef("%q is one argument too many", args[2]).at(cmd)
	}
	return atLeast("the sandbox's ID")(cmd, args)
}

// attachPlain shows the output of a command without a terminal and passes input on. Signals go to the command.
func (a *app) attachPlain(ctx context.Context, sandbox *sdk.Sandbox, p sdk.Process, from sdk.Offsets, noStdin bool) error {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stream, err := sandbox.Output(running, p.ID, sdk.OutputOptions{From: from})
	if err != nil {
		return err
	}
	r := &relay{sandbox: sandbox, started: make(chan string, 1), done: make(chan struct{})}
	r.began(p.ID)
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		r.pass(ctx, cancel)
	}()
	defer beforeExit(ctx, r.kill)()
	if in := a.input(); in != nil && !noStdin && p.Status == sdk.ProcessRunning {
		go a.feed(running, sandbox, p.ID, in) // ends with the command, or with a read that nobody can end
	}
	exit, err := (&follower{app: a, sandbox: sandbox}).events(stream)
	close(r.done)
	<-passed
	switch {
	case err == nil && exit != nil:
		return quiet(exit.ExitCode)
	case signalOf(ctx) != 0:
		return quiet(exitSignal + int(signalOf(ctx)))
	}
	return err
}

// feedBuffer is how much input is read at once, in bytes.
const feedBuffer = 64 << 10

// feed passes input on until it ends or the command reads no more.
func (a *app) feed(ctx context.Context, sandbox *sdk.Sandbox, process string, in io.Reader) {
	buf := make([]byte, feedBuffer)
	for ctx.Err() == nil {
		n, err := in.Read(buf)
		if n > 0 || err == io.EOF {
			if sandbox.WriteStdin(ctx, process, buf[:n], err == io.EOF) != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
