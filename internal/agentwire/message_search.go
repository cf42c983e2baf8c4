package agentwire

import (
	"time"

	"dayfly.dev/dayfly"
)

// lookFields are a SearchQuery or FindQuery without its byte strings, which travel as parameters: the path, the pattern (empty
// for a find), the globs to include, then those to exclude.
type lookFields struct {
	Include    int       `json:"include,omitempty"`
	Exclude    int       `json:"exclude,omitempty"`
	Literal    bool      `json:"literal,omitempty"`
	IgnoreCase bool      `json:"ignore_case,omitempty"`
	Hidden     bool      `json:"hidden,omitempty"`
	Context    int       `json:"context,omitempty"`
	Limit      int       `json:"limit"`
	Type       string    `json:"type,omitempty"`
	MinBytes   int64     `json:"min_bytes,omitempty"`
	MaxBytes   int64     `json:"max_bytes,omitempty"`
	After      time.Time `json:"after,omitzero"`
	Before     time.Time `json:"before,omitzero"`
	MaxDepth   int       `json:"max_depth,omitempty"`
}

const lookParams = 2 // path, pattern

func searchRequest(q dayfly.SearchQuery) (request, []string) {
	params := append([]string{q.Path, q.Pattern}, q.Include...)
	return request{Op: opSearch, Search: &lookFields{
		Include: len(q.Include), Exclude: len(q.Exclude), Literal: q.Literal, IgnoreCase: q.IgnoreCase, Hidden: q.Hidden,
		Context: q.Context, Limit: q.Limit,
	}}, append(params, q.Exclude...)
}

func findRequest(q dayfly.FindQuery) (request, []string) {
	params := append([]string{q.Path, ""}, q.Names...)
	return request{Op: opFind, Find: &lookFields{
		Include: len(q.Names), Exclude: len(q.Exclude), Hidden: q.Hidden, Limit: q.Limit, Type: string(q.Type), MinBytes: q.MinBytes,
		MaxBytes: q.MaxBytes, After: q.ModifiedAfter, Before: q.ModifiedBefore, MaxDepth: q.MaxDepth,
	}}, append(params, q.Exclude...)
}

// texts takes the byte strings of a search or find apart.
func (f *lookFields) texts(raw []byte) (path, pattern string, include, exclude []string, err error) {
	if f == nil || f.Include < 0 || f.Exclude < 0 || f.Include > dayfly.SearchGlobsMax || f.Exclude > dayfly.SearchGlobsMax {
		return "", "", nil, nil, dayfly.Errorf(dayfly.CodeInvalid, "the request holds no query")
	}
	params, err := unpackParams(raw, lookParams+f.Include+f.Exclude)
	if err != nil {
		return "", "", nil, nil, err
	}
	globs := params[lookParams:]
	return params[0], params[1], globs[:f.Include], globs[f.Include:], nil
}

// search rebuilds the SearchQuery of a request.
func (r request) search() (dayfly.SearchQuery, error) {
	f := r.Search
	path, pattern, include, exclude, err := f.texts(r.ParamsRaw)
	if err != nil {
		return dayfly.SearchQuery{}, err
	}
	return dayfly.SearchQuery{
		Path: path, Pattern: pattern, Literal: f.Literal, IgnoreCase: f.IgnoreCase, Include: include, Exclude: exclude,
		Hidden: f.Hidden, Context: f.Context, Limit: f.Limit,
	}, nil
}

// find rebuilds the FindQuery of a request.
func (r request) find() (dayfly.FindQuery, error) {
	f := r.Find
	path, _, include, exclude, err := f.texts(r.ParamsRaw)
	if err != nil {
		return dayfly.FindQuery{}, err
	}
	return dayfly.FindQuery{
		Path: path, Names: include, Exclude: exclude, Type: dayfly.FileType(f.Type), MinBytes: f.MinBytes, MaxBytes: f.MaxBytes,
		ModifiedAfter: f.After, ModifiedBefore: f.Before, MaxDepth: f.MaxDepth, Hidden: f.Hidden, Limit: f.Limit,
	}, nil
}

type matchFields struct {
	Path   []byte   `json:"path"`
	Line   int64    `json:"line"`
	Column int64    `json:"column"`
	Text   []byte   `json:"text"`
	Cut    bool     `json:"cut,omitempty"`
	Before [][]byte `json:"before,omitempty"`
	After  [][]byte `json:"after,omitempty"`
}

func fromMatch(m dayfly.SearchMatch) matchFields {
	return matchFields{
		Path: []byte(m.Path), Line: m.Line, Column: m.Column, Text: []byte(m.Text), Cut: m.Cut, Before: toBytes(m.Before), After: toBytes(m.After),
	}
}

func (f matchFields) toMatch() dayfly.SearchMatch {
	return dayfly.SearchMatch{
		Path: string(f.Path), Line: max(1, f.Line), Column: max(1, f.Column), Text: shown(f.Text), Cut: f.Cut,
		Before: shownAll(f.Before), After: shownAll(f.After),
	}
}

func toBytes(lines []string) [][]byte {
	var out [][]byte
	for _, l := range lines {
		out = append(out, []byte(l))
	}
	return out
}

// shown is a line as it may be at most.
func shown(line []byte) string { return string(line[:min(len(line), dayfly.SearchTextMax)]) }

func shownAll(lines [][]byte) []string {
	var out []string
	for _, l := range lines[:min(len(lines), dayfly.SearchContextMax)] {
		out = append(out, shown(l))
	}
	return out
}

type foundFields struct {
	Files     int64 `json:"files,omitempty"`
	Skipped   int64 `json:"skipped,omitempty"`
	Truncated bool  `json:"truncated,omitempty"`
}

type changeFields struct {
	Kind string `json:"kind"`
	Path []byte `json:"path"`
	From []byte `json:"from,omitempty"`
	Type string `json:"type,omitempty"`
}

func fromChange(c dayfly.FileChange) *changeFields {
	return &changeFields{Kind: string(c.Kind), Path: []byte(c.Path), From: []byte(c.From), Type: string(c.Type)}
}

// toChange gives the change; one of an unknown kind is an overflow: something happened that cannot be told.
func (f *changeFields) toChange() dayfly.FileChange {
	kind := dayfly.ChangeKind(f.Kind)
	switch kind {
	case dayfly.ChangeCreated, dayfly.ChangeModified, dayfly.ChangeMetadata, dayfly.ChangeMoved, dayfly.ChangeDeleted:
	default:
		kind = dayfly.ChangeOverflow
	}
	c := dayfly.FileChange{Kind: kind, Path: string(f.Path), From: string(f.From)}
	switch t := dayfly.FileType(f.Type); t {
	case dayfly.FileRegular, dayfly.FileDirectory, dayfly.FileSymlink, dayfly.FileOther:
		c.Type = t
	}
	return c
}
