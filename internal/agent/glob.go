package agent

import (
	"path"
	"slices"
	"strings"

	"dayfly.dev/dayfly"
)

// Limits of globs.
const (
	globMax     = 512 // bytes of one
	globAltsMax = 128 // patterns that all of a query stand for, with those of their braces
)

// globs are patterns of names or of paths below a directory. A name matches when one of them does. Beside what path.Match knows
// there are "**" for any number of directories, "[!…]" and "{a,b}".
type globs []glob

// glob is one pattern, without braces.
type glob struct {
	parts []string // of a path; a single one is matched with base names
	path  bool
}

// parseGlobs takes patterns apart. what names them in an error.
func parseGlobs(what string, patterns []string) (globs, error) {
	if len(patterns) > dayfly.SearchGlobsMax {
		return nil, dayfly.Errorf(dayfly.CodeInvalid, "%s: there are %d globs; the limit is %d", what, len(patterns), dayfly.SearchGlobsMax)
	}
	var all globs
	for _, p := range patterns {
		if p == "" || len(p) > globMax {
			return nil, dayfly.Errorf(dayfly.CodeInvalid, "%s: a glob has 1 to %d bytes", what, globMax)
		}
		alts, ok := expandBraces(nil, p)
		ok = ok && len(all)+len(alts) <= globAltsMax
		for _, alt := range alts {
			g, valid := parseGlob(alt)
			if ok = ok && valid; ok {
				all = append(all, g)
			}
		}
		if !ok {
			return nil, dayfly.Errorf(dayfly.CodeInvalid, "%s: %q is not a glob", what, p).
				WithHint("there are * ? [a-z] [!a-z] {a,b} ** and \\ before a character that means itself; all globs and their braces together may stand for 128 patterns")
		}
	}
	return all, nil
}

func parseGlob(p string) (glob, bool) {
	p = strings.TrimRight(strings.TrimPrefix(p, "./"), "/")
	g := glob{path: strings.Contains(p, "/")}
	for part := range strings.SplitSeq(strings.TrimLeft(p, "/"), "/") {
		part = shellClasses(part)
		if _, err := path.Match(part, ""); err != nil || part == "" {
			return glob{}, false
		}
		g.parts = append(g.parts, part)
	}
	return g, true
}

// shellClasses makes [^a] of [!a].
func shellClasses(p string) string {
	if !strings.Contains(p, "[!") {
		return p
	}
	b := []byte(p)
	for i := 0; i+1 < len(b); i++ {
		switch {
		case b[i] == '\\':
			i++
		case b[i] == '[' && b[i+1] == '!':
			b[i+1] = '^'
		}
	}
	return string(b)
}

// expandBraces appends the patterns that one with braces stands for. ok: the braces are right and stand for few enough.
func expandBraces(all []string, p string) (_ []string, ok bool) {
	open, commas, end := braces(p)
	if open < 0 {
		if len(all) == globAltsMax {
			return all, false
		}
		return append(all, p), true
	}
	if end < 0 {
		return all, false
	}
	start := open + 1
	for _, stop := range append(commas, end) {
		if all, ok = expandBraces(all, p[:open]+p[start:stop]+p[end+1:]); !ok {
			return all, false
		}
		start = stop + 1
	}
	return all, true
}

// braces finds the first pair of braces and the commas between them that belong to no inner pair. open is -1 if there is
// none, end if it is not closed.
func braces(p string) (open int, commas []int, end int) {
	depth, class := 0, false
	open = -1
	for i := 0; i < len(p); i++ {
		switch c := p[i]; {
		case c == '\\':
			i++
		case class:
			class = c != ']'
		case c == '[' && strings.Contains(p[i:], "]"):
			class = true
		case c == '{':
			if depth++; depth == 1 {
				open = i
			}
		case c == ',' && depth == 1:
			commas = append(commas, i)
		case c == '}' && depth > 0:
			if depth--; depth == 0 {
				return open, commas, i
			}
		}
	}
	return open, nil, -1
}

// match tells whether one of the globs matches a path below the directory or its last name.
func (g globs) match(rel, name string) bool {
	var parts []string
	return slices.ContainsFunc(g, func(one glob) bool {
		if !one.path {
			return matchName(one.parts[0], name)
		}
		if parts == nil {
			parts = strings.Split(rel, "/")
		}
		return matchPath(one.parts, parts)
	})
}

// matchName matches one name of a path.
func matchName(pattern, name string) bool {
	ok, _ := path.Match(pattern, name) // it was found right before
	return ok
}

// matchPath matches a whole path. It goes back to the last "**" only, which is enough, since one that comes earlier could take
// no more than that one may.
func matchPath(pattern, name []string) bool {
	p, n, star, taken := 0, 0, -1, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == "**":
			star, taken = p, n
			p++
		case p < len(pattern) && matchName(pattern[p], name[n]):
			p++
			n++
		case star >= 0:
			taken++
			p, n = star+1, taken
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == "**" {
		p++
	}
	return p == len(pattern)
}
