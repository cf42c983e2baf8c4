package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const keysLong = `Keys let programs and people use the server. Each belongs to an account; accounts do not see each other's sandboxes.
Only an admin key may manage keys.`

const keysExample = `  dayfly keys create --account web
  dayfly keys ls
  dayfly keys rm ke2c9x0q8d7k4m1n5p3r6t`

func (a *app) keysCommand() *cobra.Command {
	return group("keys", "Manage API keys", keysLong, keysExample, a.keysCreate(), a.keysLs(), a.keysRm())
}

const keysCreateLong = `Create makes a key and prints its secret, alone on standard output. The secret is shown this once. An account of a new
name is made with it; further keys of an account are valid beside the old ones until these are removed.`

func (a *app) keysCreate() *cobra.Command {
	cmd := &cobra.Command{
		Use: "create --account NAME", Short: "Make a key", Long: keysCreateLong,
		Example: "  DAYFLY_API_KEY=$(dayfly keys create --account web)\n  dayfly keys create --account ops --admin",
		Args:    exactly(), ValidArgsFunction: cobra.NoFileCompletions, DisableFlagsInUseLine: true,
	}
	account := cmd.Flags().String("account", "", "account that the key is for")
	admin := cmd.Flags().Bool("admin", false, "let it manage keys, accounts and images")
	cmd.RunE = a.do(func(cmd *cobra.Command, _ []string) error {
		if *account == "" {
			return usagef("--account is missing").at(cmd)
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		key, err := client.CreateKey(cmd.Context(), *account, *admin)
		if err != nil {
			return err
		}
		if a.json() {
			return a.writeJSON(key)
		}
		if key.Secret == "" {
			return failf("the key %s was made but its secret was lost with the connection", key.ID).
				withHint("remove it with `dayfly keys rm %s` and make another", key.ID)
		}
		a.note("key %s of account %s; it is not shown again", key.ID, key.Account)
		_, err = fmt.Fprintln(a.Stdout, key.Secret)
		return err
	})
	return cmd
}

func (a *app) keysLs() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List keys", Long: "Ls lists keys, never their secrets: HINT is the end of each.",
		Example: "  dayfly keys ls\n  dayfly keys ls -o json", Args: exactly(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.do(func(cmd *cobra.Command, _ []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			keys, rows := []sdk.Key{}, [][]string{}
			for k, err := range client.Keys(cmd.Context()) {
				if err != nil {
					return err
				}
				k.Secret = ""
				keys = append(keys, k)
				rows = append(rows, []string{k.ID, k.Account, yes(k.Admin), k.Hint, since(k.CreatedAt)})
			}
			if a.json() {
				return a.writeJSON(list[sdk.Key]{keys})
			}
			return a.writeTable([]string{"ID", "ACCOUNT", "ADMIN", "HINT", "AGE"}, rows)
		}),
	}
}

func (a *app) keysRm() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID…", Aliases: []string{"delete"}, Short: "Revoke keys",
		Long:    "Rm revokes keys at once. One that is gone already is a success. The last admin key cannot be removed.",
		Example: "  dayfly keys rm ke2c9x0q8d7k4m1n5p3r6t", Args: atLeast("the key's ID"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			return a.removeEach(args, func(id string) error { return client.DeleteKey(cmd.Context(), id) })
		}),
	}
}

// removeEach removes things one after the other and tells of each.
func (a *app) removeEach(names []string, remove func(string) error) error {
	results := make([]removal, 0, len(names))
	var first error
	for _, name := range names {
		r := removal{ID: name, Status: "deleted"}
		switch err := remove(name); {
		case sdk.IsGone(err):
			r.Status = "gone"
		case err != nil:
			r.Status, r.Error, r.err = "error", err.Error(), err
			if first == nil {
				first = err
			}
		}
		results = append(results, r)
	}
	if err := a.tellRemoved(results); err != nil {
		return err
	}
	return first
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}
