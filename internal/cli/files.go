package cli

import (
	"context"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const filesLong = `Files looks at and changes the files of a sandbox, with the rights of its user. Relative paths begin at the home directory. To
copy files in or out, see ` + "`dayfly cp`" + `.`

const filesExample = `  dayfly files ls sb2c9x0q8d7k4m1n5p3r6t work
  dayfly files grep sb2c9x0q8d7k4m1n5p3r6t 'panic|fatal' work --include '*.go'
  dayfly files watch -r sb2c9x0q8d7k4m1n5p3r6t work`

func (a *app) filesCommand() *cobra.Command {
	cmd := group("files", "Look at and change files of a sandbox", filesLong, filesExample,
		a.filesLsCommand(), a.filesStatCommand(), a.filesMkdirCommand(), a.filesMvCommand(), a.filesChmodCommand(), a.filesRmCommand(),
		a.filesFindCommand(), a.filesGrepCommand(), a.filesWatchCommand())
	cmd.Aliases = []string{"file"}
	return cmd
}

// onSandbox wraps what a files command does with the sandbox that comes first.
func (a *app) onSandbox(work func(ctx context.Context, sandbox *sdk.Sandbox, args []string) error) func(*cobra.Command, []string) error {
	return a.do(func(cmd *cobra.Command, args []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		return work(cmd.Context(), client.Sandbox(args[0]), args[1:])
	})
}

func (a *app) filesLsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ls ID [PATH]", Short: "List a directory", Long: "Ls lists a directory, the home directory unless told otherwise, hidden files too.",
		Example: "  dayfly files ls sb2c9x0q8d7k4m1n5p3r6t /etc\n  dayfly files ls -r -o json sb2c9x0q8d7k4m1n5p3r6t work | jq -r '.data[].path'",
		Args:    oneOrTwo, ValidArgsFunction: a.completeOneSandbox,
	}
	recursive := cmd.Flags().BoolP("recursive", "r", false, "with all that is below")
	cmd.RunE = a.onSandbox(func(ctx context.Context, sandbox *sdk.Sandbox, args []string) error {
		path := "."
		if len(args) > 0 {
			path = args[0]
		}
		found := []sdk.FileInfo{}
		for f, err := range sandbox.ListFiles(ctx, path, *recursive) {
			if err != nil {
				return err
			}
			found = append(found, f)
		}
		return a.writeFiles(found, *recursive)
	})
	return cmd
}

// writeFiles lists entries by their names, or by their whole paths.
func (a *app) writeFiles(found []sdk.FileInfo, paths bool) error {
	if a.json() {
		return a.writeJSON(list[jsonFile]{jsonFiles(found)})
	}
	var rows [][]string
	for _, f := range found {
		name := f.Name
		if paths {
			name = f.Path
		}
		if f.Type == sdk.TypeSymlink {
			name += " -> " + f.Target
		}
		if f.Error != "" {
			name += " (" + f.Error + ")"
		}
		rows = append(rows, []string{f.Mode, string(f.Type), number(f.SizeBytes), stamp(f.ModifiedAt), name})
	}
	return a.writeTable([]string{"MODE", "TYPE", "BYTES", "MODIFIED", "NAME"}, rows)
}

// jsonFile is an entry with -o json. What is not UTF-8 comes beside its text as exact bytes.
type jsonFile struct {
	sdk.FileInfo
	NameB64   []byte `json:"name_b64,omitempty"`
	PathB64   []byte `json:"path_b64,omitempty"`
	TargetB64 []byte `json:"target_b64,omitempty"`
}

func newJSONFile(f sdk.FileInfo) jsonFile {
	return jsonFile{FileInfo: f, NameB64: exactIfNeeded(f.Name), PathB64: exactIfNeeded(f.Path), TargetB64: exactIfNeeded(f.Target)}
}

func jsonFiles(found []sdk.FileInfo) []jsonFile {
	out := make([]jsonFile, len(found))
	for i, f := range found {
		out[i] = newJSONFile(f)
	}
	return out
}

// exactIfNeeded are the bytes of what JSON would change.
func exactIfNeeded(s string) []byte {
	if strings.ToValidUTF8(s, "") == s {
		return nil
	}
	return []byte(s)
}

// writeFile shows one entry.
func (a *app) writeFile(f sdk.FileInfo) error {
	if a.json() {
		return a.writeJSON(newJSONFile(f))
	}
	return a.writePairs([][2]string{{"path", f.Path}, {"type", string(f.Type)}, {"bytes", number(f.SizeBytes)}, {"mode", f.Mode},
		{"modified", stamp(f.ModifiedAt)}, {"target", f.Target}, {"error", f.Error}})
}

func (a *app) filesStatCommand() *cobra.Command {
	return &cobra.Command{
		Use: "stat ID PATH", Short: "Show one entry", Long: "Stat tells what one path is. A link is described itself, not what it points to.",
		Example: "  dayfly files stat sb2c9x0q8d7k4m1n5p3r6t work/report.html",
		Args:    exactly("the sandbox's ID", "the path"), ValidArgsFunction: a.completeOneSandbox,
		RunE: a.onSandbox(func(ctx context.Context, sandbox *sdk.Sandbox, args []string) error {
			f, err := sandbox.Stat(ctx, args[0])
			if err != nil {
				return err
			}
			return a.writeFile(f)
		}),
	}
}

// changed ends a command that changed a file: silent as its counterpart on any system, but for JSON.
func (a *app) changed(f sdk.FileInfo, err error) error {
	if err != nil || !a.json() {
		return err
	}
	return a.writeFile(f)
}

// parseMode reads octal permission bits.
func parseMode(text string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(text, 8, 12)
	if err != nil {
		return 0, usagef("the mode %q is not octal", text).withHint("modes look like 755 or 0644")
	}
	mode := fs.FileMode(n & 0o777)
	for bit, own := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if n&bit != 0 {
			mode |= own
		}
	}
	return mode, nil
}

func (a *app) filesMkdirCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "mkdir ID PATH…", Short: "Make directories", Long: "Mkdir makes directories with their parents. That one is there already is no failure.",
		Example: "  dayfly files mkdir sb2c9x0q8d7k4m1n5p3r6t work/out",
		Args:    atLeast("the sandbox's ID", "the path"), ValidArgsFunction: a.completeOneSandbox,
	}
	modeText := cmd.Flags().String("mode", "", "permission bits, as 0700 (default 0755)")
	cmd.RunE = a.onSandbox(func(ctx context.Context, sandbox *sdk.Sandbox, args []string) error {
		var mode fs.FileMode
		if *modeText != "" {
			var err error
			if mode, err = parseMode(*modeText); err != nil {
				return err
			}
		}
		made := []sdk.FileInfo{}
		for _, path := range args {
			f, err := sandbox.Mkdir(ctx, path, mode)
			if err != nil {
				return err
			}
			made = append(made, f)
		}
		if a.json() {
			return a.writeJSON(list[jsonFile]{jsonFiles(made)})
		}
		return nil
	})
	return cmd
}

func (a *app) filesMvCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "mv ID FROM TO", Short: "Rename a file or directory",
		Long:    "Mv renames a file or directory. TO is its whole new path. Something that is there already stays, unless --force is given.",
		Example: "  dayfly files mv sb2c9x0q8d7k4m1n5p3r6t work/a.txt work/b.txt",
		Args:    exactly("the sandbox's ID", "the path", "the new path"), ValidArgsFunction: a.completeOneSandbox,
	}
	force := cmd.Flags().BoolP("force", "f", false, "replace what is there")
	cmd.RunE = a.onSandbox(func(ctx context.Context, sandbox *sdk.Sandbox, args []string) error {
		return a.changed(sandbox.Move(ctx, args[0], args[1], *force))
	})
	return cmd
}

func (a *app) filesChmodCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "chmod ID MODE PATH", Short: "Set permission bits", Long: "Chmod sets the permission bits of a file or directory, with -r of all that is below too.",
		Example: "  dayfly files chmod sb2c9x0q8d7k4m1n5p3r6t 755 work/run.sh",
		Args:    exactly("the sandbox's ID", "the mode", "the path"), ValidArgsFunction: a.completeOneSandbox,
	}
	recursive := cmd.Flags().BoolP("recursive", "r", false, "with all that is below")
	cmd.RunE = a.onSandbox(func(ctx context.Context, sandbox *sdk.Sandbox, args []string) error {
		mode, err := parseMode(args[0])
		if err != nil {
			return err
		}
		return a.changed(sandbox.Chmod(ctx, args[1], mode, *recursive))
	})
	return cmd
}

func (a *app) filesRmCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm ID PATH…", Short: "Remove files", Long: "Rm removes files and empty directories, with -r directories with all that is in them.",
		Example: "  dayfly files rm -r sb2c9x0q8d7k4m1n5p3r6t work/out",
		Args:    atLeast("the sandbox's ID", "the path"), ValidArgsFunction: a.completeOneSandbox,
	}
	recursive := cmd.Flags().BoolP("recursive", "r", false, "directories with all that is in them")
	cmd.RunE = a.onSandbox(func(ctx context.Context, sandbox *sdk.Sandbox, args []string) error {
		for _, path := range args {
			if err := sandbox.RemoveFile(ctx, path, *recursive); err != nil {
				return err
			}
		}
		if a.json() {
			return a.writeJSON(list[string]{args})
		}
		return nil
	})
	return cmd
}

const filesFindLong = `Find looks for files, directories and links below a directory and prints their paths. Names are globs: of the last part of
a path, or of the path below the directory where they hold a slash (src/**/*.go). All that is given must hold; several
--name match any. What begins with a dot is left out unless --hidden is given.`

const filesFindExample = `  dayfly files find sb2c9x0q8d7k4m1n5p3r6t work --name '*.log' --larger 1048576
  dayfly files find sb2c9x0q8d7k4m1n5p3r6t --type directory --name node_modules
  dayfly files find sb2c9x0q8d7k4m1n5p3r6t work --newer 10m --exclude .git`

func (a *app) filesFindCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "find ID [PATH]", Short: "Look for files by their names and sizes", Long: filesFindLong, Example: filesFindExample,
		Args: oneOrTwo, ValidArgsFunction: a.completeOneSandbox,
	}
	var q sdk.FindQuery
	f := cmd.Flags()
	f.StringArrayVar(&q.Names, "name", nil, "only what this `glob` matches (repeatable)")
	f.StringArrayVar(&q.Exclude, "exclude", nil, "not what this `glob` matches, nor what is in it (repeatable)")
	kind := f.String("type", "", "only these: file, directory, symlink, other")
	f.Int64Var(&q.MinBytes, "larger", 0, "at least so many `bytes`")
	f.Int64Var(&q.MaxBytes, "smaller", 0, "at most so many `bytes`")
	newer := f.Duration("newer", 0, "changed within the last so long, as 10m")
	older := f.Duration("older", 0, "not changed for so long")
	f.IntVar(&q.MaxDepth, "depth", 0, "levels below the directory; 1: what is directly in it (default no limit)")
	f.BoolVar(&q.Hidden, "hidden", false, "also what begins with a dot")
	f.IntVar(&q.Limit, "limit", 0, "how many at most (default 100, at most 1000)")
	_ = cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions([]string{"file", "directory", "symlink", "other"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = a.onSandbox(func(ctx context.Context, sandbox *sdk.Sandbox, args []string) error {
		q.Type = sdk.FileType(*kind)
		if len(args) > 0 {
			q.Path = args[0]
		}
		if *newer > 0 {
			q.ModifiedAfter = time.Now().Add(-*newer)
		}
		if *older > 0 {
			q.ModifiedBefore = time.Now().Add(-*older)
		}
		r, err := sandbox.Find(ctx, q)
		if err != nil {
			return err
		}
		if a.json() {
			return a.writeJSON(jsonFound{jsonFiles(r.Entries), r.Truncated})
		}
		for _, e := range r.Entries {
			fmt.Fprintln(a.Stdout, a.shown(e.Path))
		}
		a.noteTruncated(r.Truncated)
		return nil
	})
	return cmd
}

type jsonFound struct {
	Data      []jsonFile `json:"data"`
	Truncated bool       `json:"truncated"`
}

func (a *app) noteTruncated(truncated bool) {
	if truncated {
		a.note("there is more: give a larger --limit, or look for less")
	}
}

// shown is a path or line as it is for a pipe; a terminal is not steered by it.
func (a *app) shown(s string) string {
	if isTerminal(a.Stdout) {
		return printable(s)
	}
	return s
}
