package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// Limits of a completion: it must not make a shell wait, nor fill a screen.
const (
	completionTime = 2 * time.Second
	completionMax  = 200
)

const completionLong = `Completion prints the code that makes a shell complete commands, flags, ids of sandboxes and names of images.`

const completionExample = `  source <(dayfly completion bash)
  dayfly completion zsh > "${fpath[1]}/_dayfly"
  dayfly completion fish > ~/.config/fish/completions/dayfly.fish`

func (a *app) completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use: "completion {bash | zsh | fish}", Short: "Print code for a shell's completion", Long: completionLong, Example: completionExample,
		Args: exactly("the shell's name"), ValidArgs: shells, DisableFlagsInUseLine: true,
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.Stdout, true)
			case "zsh":
				return root.GenZshCompletion(a.Stdout)
			case "fish":
				return root.GenFishCompletion(a.Stdout, true)
			}
			return usagef("there is no completion for %q", args[0]).withHint("choose one of %s", strings.Join(shells, ", "))
		}),
	}
}

// completeOneSandbox completes the id that comes first.
func (a *app) completeOneSandbox(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeSandboxes(cmd, args, word)
}

// completeSandboxes completes ids that are not there yet.
func (a *app) completeSandboxes(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	client, ctx, cancel := a.completer(cmd)
	defer cancel()
	if client == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var ids []string
	for sandbox, err := range client.List(ctx, sdk.ListOptions{}) {
		if err != nil || len(ids) == completionMax {
			break
		}
		if strings.HasPrefix(sandbox.ID, word) && !slices.Contains(args, sandbox.ID) {
			info := sandbox.Info()
			ids = append(ids, sandbox.ID+"\t"+printable(strings.TrimSpace(string(info.Status)+" "+info.Name+" "+pairsText(info.Labels))))
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// completeProcess completes a sandbox's id and then ids and names of its commands.
func (a *app) completeProcess(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.completeSandboxes(cmd, args, word)
	}
	client, ctx, cancel := a.completer(cmd)
	defer cancel()
	if client == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var found []string
	for p, err := range client.Sandbox(args[0]).Processes(ctx, sdk.ProcessListOptions{}) {
		if err != nil || len(found) >= completionMax {
			break
		}
		about := "\t" + printable(string(p.Status)+" "+p.Command)
		for _, name := range []string{p.Name, p.ID} {
			if name != "" && strings.HasPrefix(name, word) && !slices.Contains(args, name) {
				found = append(found, name+strings.ReplaceAll(about, "\n", " "))
				break
			}
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completeImages completes names of images.
func (a *app) completeImages(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	client, ctx, cancel := a.completer(cmd)
	defer cancel()
	if client == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for image, err := range client.Images(ctx) {
		if err != nil || len(names) == completionMax {
			break
		}
		if strings.HasPrefix(image.Name, word) && !slices.Contains(args, image.Name) && !slices.Contains(names, image.Name) {
			names = append(names, image.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeCopy completes ids with their colon beside local files.
func (a *app) completeCopy(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if !strings.HasPrefix(word, "sb") || strings.Contains(word, ":") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	ids, _ := a.completeSandboxes(cmd, nil, word)
	for i, id := range ids {
		ids[i], _, _ = strings.Cut(id, "\t")
		ids[i] += ":"
	}
	return ids, cobra.ShellCompDirectiveNoSpace
}

func completeSecondAsFile(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 1 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// completer gives a client with little time, or nil: a completion never fails loudly.
func (a *app) completer(cmd *cobra.Command) (*sdk.Client, context.Context, context.CancelFunc) {
	parent := cmd.Context()
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithTimeout(parent, completionTime)
	client, err := a.client()
	if err != nil {
		return nil, ctx, cancel
	}
	return client, ctx, cancel
}
