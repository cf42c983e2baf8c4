package cli

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const filesGrepLong = `Grep looks for text in the files below a path, the home directory unless told otherwise, and prints path, line and text of
each match. The pattern is a regular expression (RE2). Binary files are left out, and what begins with a dot unless
--hidden is given. The exit code is 0 with a match, 1 without one.`

const filesGrepExample = `  dayfly files grep sb2c9x0q8d7k4m1n5p3r6t 'func Test\w+' work --include '*_test.go'
  dayfly files grep -iF sb2c9x0q8d7k4m1n5p3r6t 'out of memory' /var/log -C 2
  dayfly files grep -o json sb2c9x0q8d7k4m1n5p3r6t panic | jq -r '.data[].path'`

func (a *app) filesGrepCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "grep ID PATTERN [PATH]", Short: "Look for text in files", Long: filesGrepLong, Example: filesGrepExample,
		Args: twoOrThree, ValidArgsFunction: a.completeOneSandbox,
	}
	var q sdk.SearchQuery
	f := cmd.Flags()
	f.BoolVarP(&q.Literal, "fixed", "F", false, "the pattern is plain text")
	f.BoolVarP(&q.IgnoreCase, "ignore-case", "i", false, "small and capital letters are the same")
	f.StringArrayVar(&q.Include, "include", nil, "only files that this `glob` matches (repeatable)")
	f.StringArrayVar(&q.Exclude, "exclude", nil, "not what this `glob` matches, nor what is in it (repeatable)")
	f.IntVarP(&q.Context, "context", "C", 0, "lines before and after each match, at most 10")
	f.BoolVar(&q.Hidden, "hidden", false, "also what begins with a dot")
	f.IntVar(&q.Limit, "limit", 0, "how many matches at most (default 100, at most 1000)")
	cmd.RunE = a.onSandbox(func(ctx context.Context, sandbox *sdk.Sandbox, args []string) error {
		q.Pattern = args[0]
		if len(args) > 1 {
			q.Path = args[1]
		}
		r, err := sandbox.Search(ctx, q)
		if err != nil {
			return err
		}
		return a.writeMatches(r)
	})
	return cmd
}

func twoOrThree(cmd *cobra.Command, args []string) error {
	if len(args) > 3 {
		return usagef("%q is one argument too many", args[3]).at(cmd)
	}
	return atLeast("the sandbox's ID", "the pattern")(cmd, args)
}

// jsonMatch is a match with -o json. What is not UTF-8 comes beside its text as exact bytes.
type jsonMatch struct {
	Path    string   `json:"path"`
	PathB64 []byte   `json:"path_b64,omitempty"`
	Line    int64    `json:"line"`
	Column  int64    `json:"column"`
	Text    string   `json:"text"`
	TextB64 []byte   `json:"text_b64,omitempty"`
	Cut     bool     `json:"cut"`
	Before  []string `json:"before"`
	After   []string `json:"after"`
}

type jsonMatches struct {
	Data      []jsonMatch `json:"data"`
	Files     int64       `json:"files"`
	Skipped   int64       `json:"skipped"`
	Truncated bool        `json:"truncated"`
}

func (a *app) writeMatches(r sdk.SearchResult) error {
	if a.json() {
		out := jsonMatches{Data: []jsonMatch{}, Files: r.Files, Skipped: r.Skipped, Truncated: r.Truncated}
		for _, m := range r.Matches {
			out.Data = append(out.Data, jsonMatch{Path: m.Path, PathB64: exactIfNeeded(m.Path), Line: m.Line, Column: m.Column,
				Text: m.Text, TextB64: exactIfNeeded(m.Text), Cut: m.Cut, Before: append([]string{}, m.Before...), After: append([]string{}, m.After...)})
		}
		if err := a.writeJSON(out); err != nil {
			return err
		}
	} else {
		a.writeMatchLines(r.Matches)
		a.noteTruncated(r.Truncated)
	}
	if len(r.Matches) == 0 {
		return quiet(exitFailed)
	}
	return nil
}

// writeMatchLines prints matches as grep -n does: ":" after a match's number, "-" after that of a line beside it.
func (a *app) writeMatchLines(matches []sdk.SearchMatch) {
	line := func(m sdk.SearchMatch, n int64, mark, text string) {
		fmt.Fprintf(a.Stdout, "%s%s%d%s%s\n", a.shown(m.Path), mark, n, mark, a.shown(text))
	}
	for i, m := range matches {
		beside := len(m.Before)+len(m.After) > 0
		if beside && i > 0 {
			fmt.Fprintln(a.Stdout, "--")
		}
		for j, text := range m.Before {
			line(m, m.Line-int64(len(m.Before)-j), "-", text)
		}
		line(m, m.Line, ":", m.Text)
		for j, text := range m.After {
			line(m, m.Line+int64(j)+1, "-", text)
		}
	}
}

const filesWatchLong = `Watch tells each change of a file, or of what is directly in a directory, as it happens: created, modified, metadata, moved,
deleted; with --recursive of all that is below, also in directories that are made later. When there are more changes than
can be told it says overflow: look again at what is there. It ends when PATH is gone, or when you interrupt it.

With -o json each change is one JSON object a line. The first, of type start, says that no change is missed from then on.`

const filesWatchExample = `  dayfly files watch sb2c9x0q8d7k4m1n5p3r6t work/report.html
  dayfly files watch -r -o json sb2c9x0q8d7k4m1n5p3r6t work | jq -r 'select(.type == "created") | .path'`

func (a *app) filesWatchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch ID [PATH]", Short: "Tell changes of files as they happen", Long: filesWatchLong, Example: filesWatchExample,
		Args: oneOrTwo, ValidArgsFunction: a.completeOneSandbox,
	}
	recursive := cmd.Flags().BoolP("recursive", "r", false, "with all that is below")
	cmd.RunE = a.onSandbox(func(ctx context.Context, sandbox *sdk.Sandbox, args []string) error {
		path := "."
		if len(args) > 0 {
			path = args[0]
		}
		watch, err := sandbox.Watch(ctx, path, *recursive)
		if err != nil {
			return err
		}
		defer watch.Close()
		if err := a.writeChange(sdk.FileChange{Type: "start", Path: watch.Path()}); err != nil {
			return err
		}
		for change, err := range watch.All() {
			if err != nil {
				return err
			}
			if err := a.writeChange(change); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}

// jsonChange is a change with -o json, on one line.
type jsonChange struct {
	Type     string `json:"type"`
	Path     string `json:"path"`
	PathB64  []byte `json:"path_b64,omitempty"`
	From     string `json:"from,omitempty"`
	FromB64  []byte `json:"from_b64,omitempty"`
	FileType string `json:"file_type,omitempty"`
}

func (a *app) writeChange(c sdk.FileChange) error {
	if a.json() {
		b, err := json.Marshal(jsonChange{string(c.Type), c.Path, exactIfNeeded(c.Path), c.From, exactIfNeeded(c.From), string(c.FileType)})
		if err != nil {
			return err
		}
		_, err = a.Stdout.Write(append(b, '\n'))
		return err
	}
	if c.Type == "start" {
		a.note("watching %s", c.Path)
		return nil
	}
	text := fmt.Sprintf("%-8s  %s", c.Type, a.shown(c.Path))
	if c.From != "" {
		text = fmt.Sprintf("%-8s  %s -> %s", c.Type, a.shown(c.From), a.shown(c.Path))
	}
	_, err := fmt.Fprintln(a.Stdout, text)
	return err
}
