package api

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"dayfly.dev/dayfly"
)

// query reads a request's parameters one by one, like fields. Values are raw bytes: names of files need not be UTF-8.
type query struct {
	in    url.Values
	known []string
	bad   *problems
}

// readQuery parses a query strictly.
func readQuery[T any](raw string, parse func(*query) T) (T, error) {
	var none T
	values, err := url.ParseQuery(raw)
	if err != nil {
		return none, dayfly.Errorf(dayfly.CodeInvalid, "the query is malformed").
			WithHint("escape names and values: a space is %%20, %% is %%25, & is %%26, + is %%2B, ; is %%3B")
	}
	q := &query{in: values, bad: &problems{}}
	in := parse(q)
	for _, name := range slices.Sorted(maps.Keys(q.in)) {
		if !slices.Contains(q.known, name) {
			q.bad.add(name, "unknown query parameter")
		}
	}
	if err := q.bad.error(); err != nil {
		return none, err
	}
	return in, nil
}

// knownParams lists the parameters that a parser asks for.
func knownParams[T any](parse func(*query) T) []string {
	q := &query{bad: &problems{}}
	parse(q)
	return q.known
}

// noQuery is the parser of a query that has no parameters.
func noQuery(*query) struct{} { return struct{}{} }

// texts reads a parameter that may be repeated.
func (q *query) texts(name string) []string {
	q.known = append(q.known, name)
	return q.in[name]
}

// text reads a parameter that may be given once.
func (q *query) text(name string) (value string, given bool) {
	values := q.texts(name)
	if len(values) > 1 {
		q.bad.add(name, "is given %d times", len(values))
		return "", false
	}
	if len(values) == 0 {
		return "", false
	}
	return values[0], true
}

// filled reads a UTF-8 text that must not be empty; absent is empty.
func (q *query) filled(name string) string {
	value, given := q.text(name)
	if given && (value == "" || !utf8.ValidString(value) || strings.ContainsRune(value, 0)) {
		q.bad.add(name, "must be a UTF-8 text that is not empty and holds no NUL")
		return ""
	}
	return value
}

// choice reads one of a few texts.
func (q *query) choice(name string, options ...string) (value string, given bool) {
	value, given = q.text(name)
	if given && !slices.Contains(options, value) {
		q.bad.add(name, "must be %s", strings.Join(options, " or "))
		return "", false
	}
	return value, given
}

// flag reads true or false; absent is false.
func (q *query) flag(name string) bool {
	value, _ := q.choice(name, "true", "false")
	return value == "true"
}

// integer reads a whole number between low and high.
func (q *query) integer(name string, low, high, absent int64) int64 {
	text, given := q.text(name)
	if !given {
		return absent
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high || strings.HasPrefix(text, "+") {
		q.bad.add(name, "must be a whole number from %d to %d", low, high)
		return absent
	}
	return n
}

// path reads the path of a file inside a sandbox.
func (q *query) path(name string) string {
	value, given := q.text(name)
	if !given {
		if len(q.in[name]) == 0 {
			q.bad.add(name, "is missing")
		}
		return ""
	}
	if problem := pathProblem(value); problem != "" {
		q.bad.add(name, "%s", problem)
	}
	return value
}

// parsePath is the parser of a query that is one path.
func parsePath(q *query) string { return q.path("path") }
