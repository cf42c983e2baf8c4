package cli

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const execLong = `Exec runs one command in a sandbox that exists. Both outputs are shown while they are written, standard input is
passed on, whatever its size, and the exit code is the command's own; 125 means that Dayfly failed. Ctrl-C is passed on to
the command and all that it started; a second one kills them and leaves.

The command is not run by a shell: use sh -c '…' for one, and ` + "`dayfly sh`" + ` for one to type in. Without --timeout its time is
limited by the lease alone.

-it runs it on a terminal: every key goes to the command, Ctrl-C too, and its size follows yours. ctrl-p ctrl-q detaches:
the command goes on, and ` + "`dayfly attach`" + ` comes back to it. -d runs it in the background and prints its id; see it with
` + "`dayfly ps`" + ` and ` + "`dayfly logs`" + `. (-i is there for habit's sake: input is passed on without it, unless -n says no.)

With -o json each event is one JSON object a line: start, stdout, stderr, dropped, exit.`

const execExample = `  dayfly exec sb2c9x0q8d7k4m1n5p3r6t -- ls -la
  dayfly exec sb2c9x0q8d7k4m1n5p3r6t --cwd work --env CI=1 -- sh -c 'make && make test'
  dayfly exec -it sb2c9x0q8d7k4m1n5p3r6t -- python3
  dayfly exec -d --name web --restart on-failure sb2c9x0q8d7k4m1n5p3r6t -- python3 -m http.server 8000
  dayfly exec sb2c9x0q8d7k4m1n5p3r6t -- psql < schema.sql`

// commandFlags say how a command is run, in exec and sh.
type commandFlags struct {
	env                  []string
	cwd, user            string
	timeout              time.Duration
	name                 string
	detachKeys           string
	restart              string
	tty, stdin, detached bool
	noStdin              bool
}

// common are the flags of exec and sh.
func (o *commandFlags) common(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&o.env, "env", nil, "environment `NAME=value`, or NAME to pass this command's own (repeatable)")
	f.StringVar(&o.cwd, "cwd", "", "directory to run in (default the home directory)")
	f.StringVar(&o.user, "user", "", "user to run as (default the image's)")
	f.DurationVar(&o.timeout, "timeout", 0, "how long it may run (default as long as the sandbox lives)")
	f.StringVar(&o.name, "name", "", "name to find it by, unique among the sandbox's running commands (with -t or -d)")
	f.StringVar(&o.detachKeys, "detach-keys", detachKeysDefault, "keys that leave a terminal while its command goes on, or none")
}

func (a *app) execCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "exec ID [flags] -- COMMAND [ARGUMENT…]", Short: "Run a command in a sandbox", Long: execLong, Example: execExample,
		Args: needCommand(1), ValidArgsFunction: a.completeOneSandbox, DisableFlagsInUseLine: true,
	}
	var o commandFlags
	o.common(cmd)
	f := cmd.Flags()
	f.BoolVarP(&o.stdin, "interactive", "i", false, "pass standard input on, as is done anyway")
	f.BoolVarP(&o.tty, "tty", "t", false, "run it on a terminal")
	f.BoolVarP(&o.detached, "detach", "d", false, "run it in the background and print its id")
	f.BoolVarP(&o.noStdin, "no-stdin", "n", false, "give the command no input")
	f.StringVar(&o.restart, "restart", "", "start it again: `never`, on-failure or on-failure:N, at most N times, 5 by default (with -d)")
	_ = cmd.RegisterFlagCompletionFunc("restart", cobra.FixedCompletions([]string{"never", "on-failure"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = a.do(func(cmd *cobra.Command, args []string) error {
		if err := o.check(); err != nil {
			return ownFailure(err)
		}
		return ownFailure(a.execAny(cmd.Context(), args[0], args[1:], &o))
	})
	return cmd
}

// check refuses flags that do not go together.
func (o *commandFlags) check() error {
	switch {
	case o.timeout < 0:
		return usagef("the timeout %s is negative", o.timeout).withHint("write --timeout 5m")
	case o.stdin && o.noStdin:
		return usagef("-i and -n contradict each other").withHint("leave one of them out")
	case o.detached && o.stdin:
		return usagef("-i passes input on, and -d runs in the background").withHint("leave one of them out")
	case o.tty && o.noStdin:
		return usagef("-t passes what is typed on, and -n says no").withHint("leave one of them out")
	case o.name != "" && !o.tty && !o.detached:
		return usagef("--name is for commands that can be left").withHint("add -d or -t")
	case o.restart != "" && !o.detached:
		return usagef("--restart is for commands in the background").withHint("add -d")
	}
	return nil
}

// parseRestart reads --restart: a policy, and after a colon how often at most.
func parseRestart(text string) (policy sdk.Restart, most int, err error) {
	name, number, counted := strings.Cut(text, ":")
	if counted {
		if most, err = strconv.Atoi(number); err != nil || most < 1 || name != string(sdk.RestartOnFailure) {
			return "", 0, usagef("--restart %q is no policy", text).withHint("write --restart on-failure, or on-failure:3")
		}
	}
	return sdk.Restart(name), most, nil
}

// execAny runs argv in the way that the flags say.
func (a *app) execAny(ctx context.Context, id string, argv []string, o *commandFlags) error {
	env, err := a.parseEnv(o.env)
	if err != nil {
		return err
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	sandbox := client.Sandbox(id)
	background := sdk.ProcessOptions{Name: o.name, Cwd: o.cwd, Env: env, User: o.user, Timeout: o.timeout}
	if background.Restart, background.Restarts, err = parseRestart(o.restart); err != nil {
		return err
	}
	switch {
	case o.detached:
		return a.startDetached(ctx, sandbox, sdk.Argv(argv...), background, o.tty)
	case o.tty:
		return a.startSession(ctx, sandbox, sdk.Argv(argv...), background, o.detachKeys)
	}
	plain := sdk.ExecOptions{Cwd: o.cwd, Env: env, User: o.user, Timeout: o.timeout}
	if plain.Timeout == 0 {
		plain.Timeout = commandTimeMax
	}
	if !o.noStdin {
		plain.Stdin = a.input()
	}
	return a.exec(ctx, sandbox, argv, plain)
}

// startDetached starts a command in the background and prints its id.
func (a *app) startDetached(ctx context.Context, sandbox *sdk.Sandbox, cmd sdk.Cmd, o sdk.ProcessOptions, tty bool) error {
	if tty {
		o.Terminal, o.Env = &sdk.TerminalSize{Cols: terminalCols, Rows: terminalRows}, a.terminalEnv(o.Env)
		if t, err := a.terminal(); err == nil {
			*o.Terminal = t.size()
		}
	}
	p, err := sandbox.Start(ctx, cmd, o)
	if err != nil {
		return err
	}
	if a.json() {
		return a.writeJSON(p)
	}
	return writeAll(a.Stdout, []byte(p.ID+"\n"))
}

// startSession starts a command on a terminal and attaches the user's to it.
func (a *app) startSession(ctx context.Context, sandbox *sdk.Sandbox, cmd sdk.Cmd, o sdk.ProcessOptions, keysText string) error {
	keys, err := parseDetachKeys(keysText)
	if err != nil {
		return err
	}
	if a.json() {
		return usagef("a terminal's output is no JSON").withHint("leave -o json or -t out")
	}
	t, err := a.terminal()
	if err != nil {
		return err
	}
	size := t.size()
	o.Terminal, o.OpenStdin, o.Env = &size, true, a.terminalEnv(o.Env)
	p, err := sandbox.Start(ctx, cmd, o)
	if err != nil {
		return err
	}
	s := &session{app: a, sandbox: sandbox, process: p.ID, terminal: t, keys: keys, from: &sdk.Offsets{}}
	return s.run(ctx)
}

// exec runs argv and shows its output. A signal goes to the command first, whose end is then waited for.
func (a *app) exec(ctx context.Context, sandbox *sdk.Sandbox, argv []string, o sdk.ExecOptions) error {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	r := &relay{sandbox: sandbox, started: make(chan string, 1), done: make(chan struct{})}
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		r.pass(ctx, cancel)
	}()
	defer beforeExit(ctx, r.kill)()
	f := follower{app: a, sandbox: sandbox, options: o, started: r.began}
	code, err := f.follow(running, argv)
	close(r.done)
	<-passed
	if err == nil {
		return quiet(code)
	}
	if sig := signalOf(ctx); sig != 0 {
		return quiet(exitSignal + int(sig))
	}
	return err
}

// How long a command has to end after TERM or HUP was passed on, and each request for it.
const (
	signalPatience = 5 * time.Second
	signalCallMax  = 5 * time.Second
	killCallMax    = 2 * time.Second // of a KILL that nobody waits for
)

// relay passes this process's signals on to a command.
type relay struct {
	sandbox *sdk.Sandbox
	started chan string   // its id, once
	done    chan struct{} // closed at its end

	mu      sync.Mutex
	process string
}

func (r *relay) began(process string) {
	r.mu.Lock()
	r.process = process
	r.mu.Unlock()
	r.started <- process
}

// pass waits for the end of ctx or of the command. In the former case it sends the signal on. To INT a command may take its time;
// after others it is killed when it does not end.
func (r *relay) pass(ctx context.Context, leave func()) {
	select {
	case <-ctx.Done():
	case <-r.done:
		return
	}
	sig := signalOf(ctx)
	select {
	case process := <-r.started:
		if r.send(ctx, process, signalName(sig), signalCallMax) != nil {
			leave()
			return
		}
		if sig == syscall.SIGINT {
			<-r.done // a second signal leaves
			return
		}
		if !waitFor(r.done, signalPatience) {
			if r.send(ctx, process, "KILL", signalCallMax) == nil {
				waitFor(r.done, signalPatience)
			}
		}
	default: // it has not begun
	}
	leave()
}

// kill ends the command without waiting for it.
func (r *relay) kill() {
	r.mu.Lock()
	process := r.process
	r.mu.Unlock()
	if process != "" {
		_ = r.send(context.Background(), process, "KILL", killCallMax) // its grace period ends it otherwise
	}
}

func (r *relay) send(ctx context.Context, process, name string, limit time.Duration) error {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return r.sandbox.Signal(call, process, name, true)
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
