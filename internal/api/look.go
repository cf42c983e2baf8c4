package api

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"dayfly.dev/dayfly"
)

// globs reads a list of globs.
func (f *fields) globs(name string) []string {
	list, _ := f.texts(name)
	if len(list) > dayfly.SearchGlobsMax {
		f.wrong(name, "must have at most %d texts", dayfly.SearchGlobsMax)
	}
	for i, glob := range list {
		if glob == "" || len(glob) > pathMaxBytes {
			f.wrong(name+"["+strconv.Itoa(i)+"]", "must have 1 to %d bytes", pathMaxBytes)
		}
	}
	return list
}

// limit reads how much to find at most.
func (f *fields) limit() int {
	n, given := f.integer("limit", 1, dayfly.SearchLimitMax)
	if !given {
		return dayfly.SearchLimitDefault
	}
	return int(n)
}

func parseSearch(f *fields) dayfly.SearchQuery {
	q := dayfly.SearchQuery{Path: f.path("path", ".")}
	q.Pattern, _ = f.filled("pattern")
	if _, given := f.in["pattern"]; !given {
		f.wrong("pattern", "is missing")
	}
	if len(q.Pattern) > dayfly.SearchPatternMax {
		f.wrong("pattern", "must have at most %d bytes", dayfly.SearchPatternMax)
	}
	q.Literal, _ = f.flag("literal")
	q.IgnoreCase, _ = f.flag("ignore_case")
	q.Include, q.Exclude = f.globs("include"), f.globs("exclude")
	q.Hidden, _ = f.flag("hidden")
	context, _ := f.integer("context", 0, dayfly.SearchContextMax)
	q.Context, q.Limit = int(context), f.limit()
	return q
}

// matchJSON is a line that was found.
type matchJSON struct {
	Path      string    `json:"path"`
	PathB64   *string   `json:"path_b64,omitempty"`
	Line      int64     `json:"line"`
	Column    int64     `json:"column"`
	Text      string    `json:"text"`
	TextB64   *string   `json:"text_b64,omitempty"`
	Cut       bool      `json:"cut"`
	Before    []string  `json:"before"`
	BeforeB64 []*string `json:"before_b64,omitempty"` // as long as Before, null where the text is exact; none where all are
	After     []string  `json:"after"`
	AfterB64  []*string `json:"after_b64,omitempty"`
}

// foundJSON answers a search.
type foundJSON struct {
	Matches   []matchJSON `json:"matches"`
	Files     int64       `json:"files"`
	Skipped   int64       `json:"skipped"`
	Truncated bool        `json:"truncated"`
}

func showMatch(m dayfly.SearchMatch) matchJSON {
	out := matchJSON{Line: m.Line, Column: m.Column, Cut: m.Cut}
	out.Before, out.BeforeB64 = showLines(m.Before)
	out.After, out.AfterB64 = showLines(m.After)
	out.Path, out.PathB64 = showBytes(m.Path)
	out.Text, out.TextB64 = showBytes(m.Text)
	return out
}

// showLines gives lines as texts; exact is set where one of them is not UTF-8.
func showLines(lines []string) (texts []string, exact []*string) {
	texts, exact = make([]string, len(lines)), make([]*string, len(lines))
	inexact := false
	for i, l := range lines {
		texts[i], exact[i] = showBytes(l)
		inexact = inexact || exact[i] != nil
	}
	if !inexact {
		exact = nil
	}
	return texts, exact
}

// search answers with the lines that match. It changes nothing, so a repeated request just searches again.
func search(c *call, q dayfly.SearchQuery) error {
	m, err := c.machine()
	if err != nil {
		return err
	}
	c.mayTakeLong(http.StatusOK)
	found, err := m.Search(c.ctx(), q)
	if err != nil {
		return err
	}
	out := foundJSON{Matches: []matchJSON{}, Files: found.Files, Skipped: found.Skipped, Truncated: found.Truncated}
	for _, match := range found.Matches {
		out.Matches = append(out.Matches, showMatch(match))
	}
	return c.answer(http.StatusOK, out)
}

func parseFind(f *fields) dayfly.FindQuery {
	q := dayfly.FindQuery{Path: f.path("path", "."), Names: f.globs("names"), Exclude: f.globs("exclude")}
	kind, _ := f.choice("type", string(dayfly.FileRegular), string(dayfly.FileDirectory), string(dayfly.FileSymlink), string(dayfly.FileOther))
	q.Type = dayfly.FileType(kind)
	q.MinBytes, _ = f.integer("min_bytes", 0, math.MaxInt64)
	q.MaxBytes, _ = f.integer("max_bytes", 1, math.MaxInt64)
	q.ModifiedAfter, q.ModifiedBefore = f.time("modified_after"), f.time("modified_before")
	depth, _ := f.integer("max_depth", 1, math.MaxInt32)
	q.MaxDepth = int(depth)
	q.Hidden, _ = f.flag("hidden")
	q.Limit = f.limit()
	return q
}

// time reads a moment as of RFC 3339; absent is zero.
func (f *fields) time(name string) time.Time {
	text, given := f.text(name)
	if !given {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		f.wrong(name, "must be a time like 2006-01-02T15:04:05Z (RFC 3339)")
	}
	return at.UTC()
}

// foundEntriesJSON answers a find.
type foundEntriesJSON struct {
	Entries   []entryJSON `json:"entries"`
	Truncated bool        `json:"truncated"`
}

// find answers with the entries that match. Like a search it may be repeated.
func find(c *call, q dayfly.FindQuery) error {
	m, err := c.machine()
	if err != nil {
		return err
	}
	c.mayTakeLong(http.StatusOK)
	found, truncated, err := m.Find(c.ctx(), q)
	if err != nil {
		return err
	}
	out := foundEntriesJSON{Entries: []entryJSON{}, Truncated: truncated}
	for _, f := range found {
		out.Entries = append(out.Entries, showEntry(f))
	}
	return c.answer(http.StatusOK, out)
}
