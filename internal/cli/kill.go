package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

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
