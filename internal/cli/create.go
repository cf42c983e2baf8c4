package cli

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"dayfly.dev/dayfly"
	sdk "dayfly.dev/dayfly/sdk/go"
)

// Limits of what run and create wait for.
const (
	createMax  = 3 * time.Minute
	destroyMax = 45 * time.Second
)

// machineFlags say what sandbox to make; run and create share them.
type machineFlags struct {
	options sdk.CreateOptions
	labels  []string
	env     []string
	copies  []string
}

func (a *app) machineFlags(cmd *cobra.Command) *machineFlags {
	m := new(machineFlags)
	f := cmd.Flags()
	f.StringArrayVar(&m.labels, "label", nil, "label `key=value` (repeatable)")
	f.DurationVar(&m.options.Timeout, "timeout", 0, "how long the sandbox lives, 5s to 24h (default 15m)")
	f.StringVar(&m.options.Size, "size", "", "small, medium or large (default small)")
	f.IntVar(&m.options.VCPU, "vcpu", 0, "virtual CPUs, instead of the size's")
	f.Int64Var(&m.options.MemoryMB, "memory-mb", 0, "memory in MiB, instead of the size's")
	f.Int64Var(&m.options.DiskMB, "disk-mb", 0, "disk in MiB, instead of the size's")
	f.StringArrayVar(&m.env, "env", nil, "environment `NAME=value`, or NAME to pass this command's own (repeatable)")
	f.StringVar(&m.options.Image, "image", "", "image to start from (default base)")
	f.StringVar(&m.options.Isolation, "isolation", "", "auto, gvisor or linux (default auto: gvisor, unless this server is set otherwise)")
	f.StringVar(&m.options.Name, "name", "", "name, unique among your live sandboxes")
	f.BoolVar(&m.options.NoInternet, "no-internet", false, "close all network but loopback")
	f.StringArrayVar(&m.copies, "cp", nil, "copy `LOCAL:REMOTE` into it first, a file or a folder (repeatable)")
	_ = cmd.RegisterFlagCompletionFunc("image", a.completeImages)
	_ = cmd.RegisterFlagCompletionFunc("isolation", cobra.FixedCompletions([]string{"auto", "gvisor", "linux"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("size", cobra.FixedCompletions([]string{"small", "medium", "large"}, cobra.ShellCompDirectiveNoFileComp))
	return m
}

// parse checks everything that can be checked before a sandbox exists.
func (m *machineFlags) parse(a *app) (sdk.CreateOptions, []copyPair, error) {
	o := m.options
	var err error
	if o.Timeout != 0 && (o.Timeout < dayfly.LeaseMin || o.Timeout > dayfly.LeaseCeiling) {
		return o, nil, usagef("the timeout %s is not between 5s and 24h", o.Timeout).withHint("write --timeout 15m")
	}
	if o.Labels, err = parseLabels(m.labels); err != nil {
		return o, nil, err
	}
	if o.Env, err = a.parseEnv(m.env); err != nil {
		return o, nil, err
	}
	copies, err := parseCopies(m.copies)
	if err != nil {
		return o, nil, err
	}
	for _, c := range copies {
		if _, err := os.Stat(c.local); err != nil {
			return o, nil, usagef("cannot copy into the sandbox: %v", err).withHint("check the path before the colon of --cp")
		}
	}
	return o, copies, nil
}

const createLong = `Create makes a sandbox, waits until it accepts commands and prints its id. It lives until its lease ends
(--timeout) or until ` + "`dayfly rm`" + `, whichever comes first. It takes the flags of run.`

const createExample = `  id=$(dayfly create --timeout 1h --label pr=418)
  dayfly exec "$id" -- git --version
  dayfly rm "$id"`

func (a *app) createCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "create", Short: "Make a sandbox and print its id", Long: createLong, Example: createExample,
		Args: exactly(), ValidArgsFunction: cobra.NoFileCompletions,
	}
	m := a.machineFlags(cmd)
	cmd.RunE = a.do(func(cmd *cobra.Command, _ []string) error {
		sandbox, err := a.create(cmd.Context(), m)
		if err != nil {
			return err
		}
		if a.json() {
			return a.writeJSON(sandbox.Info())
		}
		_, err = fmt.Fprintln(a.Stdout, sandbox.ID)
		return err
	})
	return cmd
}

// create makes a sandbox with its files. If anything fails afterwards, it is destroyed again.
func (a *app) create(ctx context.Context, m *machineFlags) (*sdk.Sandbox, error) {
	options, copies, err := m.parse(a)
	if err != nil {
		return nil, err
	}
	client, err := a.client()
	if err != nil {
		return nil, err
	}
	// A signal does not cut the request short: an answer that nobody heard would leave a machine that nobody knows.
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), createMax)
	defer cancel()
	sandbox, err := client.Create(patient, options)
	if err != nil {
		return nil, err
	}
	if err = ctx.Err(); err == nil {
		err = a.fill(ctx, sandbox, copies)
	}
	if err != nil {
		return nil, a.destroyAfter(ctx, sandbox, err)
	}
	return sandbox, nil
}

// fill copies files into a new sandbox.
func (a *app) fill(ctx context.Context, sandbox *sdk.Sandbox, copies []copyPair) error {
	for _, c := range copies {
		moved, err := upload(ctx, sandbox, c.local, c.remote)
		if err != nil {
			return fmt.Errorf("copy %s: %w", c.local, err)
		}
		a.noteSkipped(moved)
	}
	return nil
}

// destroyAfter ends a sandbox whose use failed with err, which may be nil, and says when that fails too.
func (a *app) destroyAfter(ctx context.Context, sandbox *sdk.Sandbox, err error) error {
	if sig := signalOf(ctx); sig != 0 {
		a.note("interrupted; destroying %s", sandbox.ID)
		err = quiet(exitSignal + int(sig))
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyMax)
	defer cancel()
	gone := sandbox.Delete(cleanup)
	if gone == nil {
		return err
	}
	if err == nil {
		return &failure{code: exitDayfly, cause: gone, text: fmt.Sprintf("could not destroy %s: %v", sandbox.ID, gone),
			hint: fmt.Sprintf("its lease ends it at %s; `dayfly rm %s` tries again", stamp(sandbox.Info().ExpiresAt), sandbox.ID)}
	}
	a.note("could not destroy %s: %v; its lease ends it at %s", sandbox.ID, gone, stamp(sandbox.Info().ExpiresAt))
	return err
}
