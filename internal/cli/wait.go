package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	sdk "dayfly.dev/dayfly/sdk/go"
)

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
