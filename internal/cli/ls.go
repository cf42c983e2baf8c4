package cli

import (
	"strings"

	"github.com/spf13/cobra"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const lsLong = `Ls lists your live sandboxes with their whole ids. With --all it lists ended ones too, for 30 days. Several
--label must all match; several --status match any.`

const lsExample = `  dayfly ls
  dayfly ls --label pr=418 --status running
  dayfly ls -o json | jq -r '.data[].id'`

func (a *app) lsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List sandboxes", Long: lsLong, Example: lsExample,
		Args: exactly(), ValidArgsFunction: cobra.NoFileCompletions,
	}
	var labels, status []string
	f := cmd.Flags()
	f.StringArrayVar(&labels, "label", nil, "only those with label `key=value` (repeatable)")
	f.StringArrayVar(&status, "status", nil, "only those of this status: provisioning, running, deleting, deleted, failed (repeatable)")
	all := f.Bool("all", false, "ended ones too")
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(
		[]string{"provisioning", "running", "deleting", "deleted", "failed"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = a.do(func(cmd *cobra.Command, _ []string) error {
		chosen, err := parseLabels(labels)
		if err != nil {
			return err
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		o := sdk.ListOptions{Labels: chosen, IncludeEnded: *all}
		for _, s := range status {
			o.Status = append(o.Status, sdk.Status(s))
			o.IncludeEnded = o.IncludeEnded || sdk.Status(s).Ended()
		}
		infos := []sdk.Info{}
		for sandbox, err := range client.List(cmd.Context(), o) {
			if err != nil {
				return err
			}
			infos = append(infos, sandbox.Info())
		}
		if a.json() {
			return a.writeJSON(list[sdk.Info]{infos})
		}
		return a.writeSandboxes(infos)
	})
	return cmd
}

func (a *app) writeSandboxes(infos []sdk.Info) error {
	var rows [][]string
	for _, i := range infos {
		left := ""
		if !i.Status.Ended() {
			left = age(i.Remaining())
		}
		rows = append(rows, []string{i.ID, string(i.Status), i.Name, i.Size, i.Image, since(i.CreatedAt), left, pairsText(i.Labels)})
	}
	return a.writeTable([]string{"ID", "STATUS", "NAME", "SIZE", "IMAGE", "AGE", "LEFT", "LABELS"}, rows)
}

const showLong = `Show tells everything that the server knows of one sandbox. Ended ones are known for 30 days.`

const showExample = `  dayfly show sb2c9x0q8d7k4m1n5p3r6t
  dayfly show sb2c9x0q8d7k4m1n5p3r6t -o json`

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show one sandbox", Long: showLong, Example: showExample,
		Args: exactly("the sandbox's ID"), ValidArgsFunction: a.completeOneSandbox,
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			sandbox, err := client.Get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json() {
				return a.writeJSON(sandbox.Info())
			}
			return a.writePairs(sandboxPairs(sandbox.Info()))
		}),
	}
}

func sandboxPairs(i sdk.Info) [][2]string {
	left := ""
	if !i.Status.Ended() {
		left = age(i.Remaining())
	}
	return [][2]string{
		{"id", i.ID}, {"name", i.Name}, {"status", string(i.Status)}, {"end reason", i.EndReason},
		{"size", i.Size}, {"vcpu", number(int64(i.VCPU))}, {"memory", size(i.MemoryMB << 20)}, {"disk", size(i.DiskMB << 20)},
		{"image", i.Image}, {"isolation", i.Isolation}, {"node", i.Node},
		{"labels", pairsText(i.Labels)}, {"env", strings.Join(i.EnvNames, ",")},
		{"created", stamp(i.CreatedAt)}, {"ready", stamp(i.ReadyAt)}, {"expires", stamp(i.ExpiresAt)}, {"time left", left},
		{"ceiling", stamp(i.CeilingAt)}, {"ended", stamp(i.EndedAt)}, {"billed", number(i.BilledSeconds) + "s"},
	}
}
