package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"

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
