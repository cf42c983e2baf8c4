package cli

import (
	"github.com/spf13/cobra"
)

const shLong = `Sh opens a shell to type in: bash where the image has it, else sh. Its size follows your terminal's, every key goes to it,
and the exit code is the shell's own. ctrl-p ctrl-q detaches: the shell goes on with what runs in it, until you come back
with ` + "`dayfly attach`" + ` or the sandbox ends. Closing your terminal's window ends it.`

const shExample = `  dayfly sh sb2c9x0q8d7k4m1n5p3r6t
  dayfly sh sb2c9x0q8d7k4m1n5p3r6t --user root --cwd /etc
  dayfly sh sb2c9x0q8d7k4m1n5p3r6t --shell zsh --name main`

// shellSearch runs the best shell there is.
const shellSearch = `command -v bash >/dev/null 2>&1 && exec bash -l; exec sh -l`

func (a *app) shCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "sh ID", Aliases: []string{"shell"}, Short: "Open a shell in a sandbox", Long: shLong, Example: shExample,
		Args: exactly("the sandbox's ID"), ValidArgsFunction: a.completeOneSandbox,
	}
	var o commandFlags
	o.common(cmd)
	shell := cmd.Flags().String("shell", "", "the shell to run (default bash, else sh)")
	o.tty = true
	cmd.RunE = a.do(func(cmd *cobra.Command, args []string) error {
		argv := []string{"sh", "-c", shellSearch}
		if *shell != "" {
			argv = []string{*shell, "-l"}
		}
		if err := o.check(); err != nil {
			return ownFailure(err)
		}
		return ownFailure(a.execAny(cmd.Context(), args[0], argv, &o))
	})
	return cmd
}
