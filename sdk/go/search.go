package dayfly

import (
	"context"
	"net/http"
	"time"
	"unicode/utf8"
)

// SearchQuery looks for text in the files below a path, as grep does. Zero fields do not restrict.
type SearchQuery struct {
	Path       string // a file or a directory; empty: the home directory
	Pattern    string // a regular expression in RE2's syntax, of one line
	Literal    bool   // Pattern is plain text
	IgnoreCase bool
	Include    []string // globs of base names, or of paths below Path where they hold a slash; empty: every file
	Exclude    []string // alike; a directory that matches is not entered
	Hidden     bool     // also what begins with a dot
	Context    int      // lines shown before and after each match, at most 10
	Limit      int      // matches, at most 1000; 0: 100
}

type searchBody struct {
	Path       string   `json:"path,omitempty"`
	PathB64    []byte   `json:"path_b64,omitempty"` // instead of Path where that is not UTF-8
	Pattern    string   `json:"pattern"`
	Literal    bool     `json:"literal,omitempty"`
	IgnoreCase bool     `json:"ignore_case,omitempty"`
	Include    []string `json:"include,omitempty"`
	Exclude    []string `json:"exclude,omitempty"`
	Hidden     bool     `json:"hidden,omitempty"`
	Context    int      `json:"context,omitempty"`
	Limit      int      `json:"limit,omitempty"`
}

// SearchMatch is one line that matches. Texts are exact bytes without the line's end.
type SearchMatch struct {
	Path   string // absolute
	Line   int64  // from 1
	Column int64  // of the first match in the line, in bytes from 1
	Text   string
	Cut    bool // Text is not the whole line
	Before []string
	After  []string
}

// wireMatch is a match as the server writes it: what is not UTF-8 comes beside its text as exact bytes.
type wireMatch struct {
	Path      string   `json:"path"`
	PathB64   []byte   `json:"path_b64"`
	Line      int64    `json:"line"`
	Column    int64    `json:"column"`
	Text      string   `json:"text"`
	TextB64   []byte   `json:"text_b64"`
	Cut       bool     `json:"cut"`
	Before    []string `json:"before"`
	BeforeB64 [][]byte `json:"before_b64"`
	After     []string `json:"after"`
	AfterB64  [][]byte `json:"after_b64"`
}

func (w wireMatch) exact() SearchMatch {
	return SearchMatch{
		Path: firstOf(string(w.PathB64), w.Path), Line: w.Line, Column: w.Column, Text: firstOf(string(w.TextB64), w.Text), Cut: w.Cut,
		Before: exactLines(w.Before, w.BeforeB64), After: exactLines(w.After, w.AfterB64),
	}
}

// exactLines are lines with the exact bytes of those that have them.
func exactLines(text []string, exact [][]byte) []string {
	for i := range text {
		if i < len(exact) && len(exact[i]) > 0 {
			text[i] = string(exact[i])
		}
	}
	return text
}

// SearchResult is what a search found.
type SearchResult struct {
	Matches   []SearchMatch
	Files     int64 // searched
	Skipped   int64 // binary, unreadable or not regular
	Truncated bool  // there are more matches, or one search may not take longer
}

// Search looks for text in files.
func (s *Sandbox) Search(ctx context.Context, q SearchQuery) (SearchResult, error) {
	if err := checkText(texts{"pattern": {q.Pattern}, "include": q.Include, "exclude": q.Exclude}); err != nil {
		return SearchResult{}, err
	}
	body := searchBody{
		Pattern: q.Pattern, Literal: q.Literal, IgnoreCase: q.IgnoreCase, Include: q.Include, Exclude: q.Exclude, Hidden: q.Hidden,
		Context: q.Context, Limit: q.Limit,
	}
	body.Path, body.PathB64 = pathParts(q.Path)
	var answer struct {
		Matches   []wireMatch `json:"matches"`
		Files     int64       `json:"files"`
		Skipped   int64       `json:"skipped"`
		Truncated bool        `json:"truncated"`
	}
	err := s.client.do(ctx, call{method: http.MethodPost, path: s.path("/files/search"), json: body}, &answer)
	r := SearchResult{Files: answer.Files, Skipped: answer.Skipped, Truncated: answer.Truncated}
	for _, m := range answer.Matches {
		r.Matches = append(r.Matches, m.exact())
	}
	return r, err
}

// FindQuery looks for entries below a directory, as find does. Zero fields do not restrict.
type FindQuery struct {
	Path           string   // empty: the home directory
	Names          []string // globs of base names, or of paths below Path where they hold a slash; any of them
	Exclude        []string // alike; a directory that matches is not entered
	Type           FileType
	MinBytes       int64
	MaxBytes       int64 // 0: no limit
	ModifiedAfter  time.Time
	ModifiedBefore time.Time
	MaxDepth       int  // 1: only what is directly in Path; 0: no limit
	Hidden         bool // also what begins with a dot
	Limit          int  // entries, at most 1000; 0: the server's default
}

type findBody struct {
	Path           string   `json:"path,omitempty"`
	PathB64        []byte   `json:"path_b64,omitempty"` // instead of Path where that is not UTF-8
	Names          []string `json:"names,omitempty"`
	Exclude        []string `json:"exclude,omitempty"`
	Type           FileType `json:"type,omitempty"`
	MinBytes       int64    `json:"min_bytes,omitempty"`
	MaxBytes       int64    `json:"max_bytes,omitempty"`
	ModifiedAfter  string   `json:"modified_after,omitempty"`
	ModifiedBefore string   `json:"modified_before,omitempty"`
	MaxDepth       int      `json:"max_depth,omitempty"`
	Hidden         bool     `json:"hidden,omitempty"`
	Limit          int      `json:"limit,omitempty"`
}

// FindResult is what was found.
type FindResult struct {
	Entries   []FileInfo
	Truncated bool // there are more, or one search may not take longer
}

// Find looks for files, directories and links.
func (s *Sandbox) Find(ctx context.Context, q FindQuery) (FindResult, error) {
	if err := checkText(texts{"names": q.Names, "exclude": q.Exclude}); err != nil {
		return FindResult{}, err
	}
	body := findBody{
		Names: q.Names, Exclude: q.Exclude, Type: q.Type, MinBytes: q.MinBytes, MaxBytes: q.MaxBytes,
		ModifiedAfter: moment(q.ModifiedAfter), ModifiedBefore: moment(q.ModifiedBefore), MaxDepth: q.MaxDepth, Hidden: q.Hidden, Limit: q.Limit,
	}
	body.Path, body.PathB64 = pathParts(q.Path)
	var answer struct {
		Entries   []wireFile `json:"entries"`
		Truncated bool       `json:"truncated"`
	}
	err := s.client.do(ctx, call{method: http.MethodPost, path: s.path("/files/find"), json: body}, &answer)
	r := FindResult{Truncated: answer.Truncated}
	for _, w := range answer.Entries {
		r.Entries = append(r.Entries, w.exact())
	}
	return r, err
}

// pathParts is a path as text, or where it is not UTF-8 as exact bytes.
func pathParts(path string) (text string, exact []byte) {
	if utf8.ValidString(path) {
		return path, nil
	}
	return "", []byte(path)
}

// moment is a time as the API reads it, or empty for none.
func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z07:00")
}
