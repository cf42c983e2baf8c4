package cli

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const attachLong = `Attach comes back to a command that was left: one on a terminal (exec -it, sh, exec -dt), which draws itself anew, or any
other that runs in the background, whose output is shown and which gets your input as far as it reads any. The exit code is
the command's own. ctrl-p ctrl-q leaves again. Several may attach to one command at once.

Before it goes on it shows the last --tail bytes of what was written.`

const attachExample = `  dayfly attach sb2c9x0q8d7k4m1n5p3r6t pr4h8s0q2d7k4m1n5p3r6t
  dayfly attach sb2c9x0q8d7k4m1n5p3r6t main`

// attachTail is how much of what was written before is shown again, in bytes.
const attachTail = 16 << 10

// typedLineMax is how much is taken of a terminal at once, in bytes; a line of one is shorter.
const typedLineMax = 16 << 10

func (a *app) attachCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "attach ID PROCESS", Short: "Come back to a command that goes on", Long: attachLong, Example: attachExample,
		Args: exactly("the sandbox's ID", "the process's id or name"), ValidArgsFunction: a.completeProcess,
	}
	f := cmd.Flags()
	keysText := f.String("detach-keys", detachKeysDefault, "keys that leave a terminal while its command goes on, or none")
	tail := f.Int64("tail", attachTail, "how many `BYTES` of what was written before to show; -1: all that is kept")
	noStdin := f.BoolP("no-stdin", "n", false, "give the command no input")
	cmd.RunE = a.do(func(cmd *cobra.Command, args []string) error {
		keys, err := parseDetachKeys(*keysText)
		if err != nil {
			return ownFailure(err)
		}
		return ownFailure(a.attach(cmd, args, keys, *tail, *noStdin))
	})
	return cmd
}

func (a *app) attach(cmd *cobra.Command, args []string, keys *detachKeys, tail int64, noStdin bool) error {
	sandbox, p, err := a.findProcess(cmd.Context(), args[0], args[1])
	if err != nil {
		return err
	}
	from := &sdk.Offsets{}
	if tail >= 0 {
		from = &sdk.Offsets{Stdout: max(0, p.StdoutBytes-tail), Stderr: max(0, p.StderrBytes-tail)}
	}
	if p.Terminal == nil || noStdin {
		return a.attachPlain(cmd.Context(), sandbox, p, *from, noStdin)
	}
	if a.json() {
		return usagef("a terminal's output is no JSON").withHint("use `dayfly logs -f -o json`")
	}
	t, err := a.terminal()
	if err != nil {
		return err
	}
	s := &session{app: a, sandbox: sandbox, process: p.ID, terminal: t, keys: keys, from: from}
	return s.run(cmd.Context())
}

// give passes input on to a command that runs already. Several may type, each from a terminal; only one may pipe.
func (a *app) give(ctx context.Context, sandbox *sdk.Sandbox, process string, in io.Reader) {
	if f, ok := in.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		_ = sandbox.PipeStdin(ctx, process, in)
		return
	}
	line := make([]byte, typedLineMax)
	for err := error(nil); err == nil; {
		var n int
		n, err = in.Read(line)
		if failed := sandbox.WriteStdin(ctx, process, line[:n], err == io.EOF); failed != nil {
			return
		}
	}
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
		go a.give(running, sandbox, p.ID, in) // ends with the command, or with a read that nobody can end
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
