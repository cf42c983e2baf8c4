package agent

import (
	"bytes"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"dayfly.dev/dayfly"
)

// Limits of patterns.
const (
	patternSizeMax = 5000    // steps of a regular expression with its repetitions written out
	patternWorkMax = 1 << 30 // steps times bytes of one line
	needlesMax     = 8       // texts that are looked for at once
)

// pattern finds what a search looks for in a line. Regular expressions are slow, so first something is looked for that every
// match holds, and most files hold nothing of the kind.
type pattern struct {
	re      *regexp.Regexp // nil: a line matches where it holds the needle
	size    int            // steps of re
	needles [][]byte       // every match holds one of them; none: any line may match
	fold    bool           // needles are in lower case, and so is what they are looked for in
}

// parsePattern compiles a query's pattern.
func parsePattern(q *dayfly.SearchQuery) (*pattern, error) {
	invalid := func(format string, args ...any) (*pattern, error) {
		return nil, dayfly.Errorf(dayfly.CodeInvalid, "pattern: "+format, args...)
	}
	switch {
	case q.Pattern == "" || len(q.Pattern) > dayfly.SearchPatternMax:
		return invalid("it has 1 to %d bytes", dayfly.SearchPatternMax)
	case strings.Contains(q.Pattern, "\n"):
		return invalid("a match is within one line, so it holds no line break")
	case q.Literal && !q.IgnoreCase:
		return &pattern{needles: [][]byte{[]byte(q.Pattern)}}, nil
	case !utf8.ValidString(q.Pattern):
		return invalid("it is not UTF-8; only a literal that does not ignore case may be anything else")
	}
	text := q.Pattern
	if q.Literal {
		text = regexp.QuoteMeta(text)
	}
	if q.IgnoreCase {
		text = "(?i:" + text + ")"
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return invalid("it is not a regular expression: %v", err)
	}
	p := &pattern{size: steps(tree), fold: folds(tree)}
	if p.size > patternSizeMax {
		return invalid("with its repetitions it has more than %d steps", patternSizeMax)
	}
	needles, exact := needlesOf(tree, p.fold)
	for _, n := range needles {
		p.needles = append(p.needles, []byte(n))
	}
	if exact {
		return p, nil
	}
	if p.re, err = regexp.Compile(text); err != nil {
		return invalid("it is not a regular expression: %v", err)
	}
	return p, nil
}

// steps is about how large a compiled regular expression becomes.
func steps(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		n = min(n+steps(sub), patternSizeMax+1)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(1, re.Min, re.Max)
	}
	return min(n, patternSizeMax+1)
}

// folds tells that some of a regular expression ignores case.
func folds(re *syntax.Regexp) bool {
	if re.Op == syntax.OpLiteral && re.Flags&syntax.FoldCase != 0 {
		return true
	}
	for _, sub := range re.Sub {
		if folds(sub) {
			return true
		}
	}
	return false
}

// needlesOf gives texts of which every match holds at least one, or none when there are no such. exact: the expression
// matches where the only needle is, and nowhere else.
func needlesOf(re *syntax.Regexp, fold bool) (needles []string, exact bool) {
	switch re.Op {
	case syntax.OpLiteral:
		return literalNeedle(re, fold)
	case syntax.OpCapture:
		return needlesOf(re.Sub[0], fold)
	case syntax.OpPlus:
		needles, _ = needlesOf(re.Sub[0], fold)
	case syntax.OpRepeat:
		if re.Min > 0 {
			needles, _ = needlesOf(re.Sub[0], fold)
		}
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			if n, _ := needlesOf(sub, fold); better(n, needles) {
				needles = n
			}
		}
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			n, _ := needlesOf(sub, fold)
			if len(n) == 0 || len(needles)+len(n) > needlesMax {
				return nil, false
			}
			needles = append(needles, n...)
		}
	}
	return needles, false
}

// better tells which of two sets of needles is rarer: the one whose shortest is longer.
func better(a, b []string) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) > 0
	}
	shortest := func(all []string) int {
		n := len(all[0])
		for _, s := range all {
			n = min(n, len(s))
		}
		return n
	}
	return shortest(a) > shortest(b)
}

// literalNeedle gives the longest part of a literal that stands in a match byte by byte. Where case is ignored, that leaves out
// what has other forms than the two of ASCII: everything else, and the K and S that Unicode has more of. U+FFFD stands for any
// byte that is no UTF-8.
func literalNeedle(re *syntax.Regexp, fold bool) (needles []string, exact bool) {
	best := ""
	var part []rune
	end := func() {
		if s := string(part); len(s) > len(best) {
			best = s
		}
		part = part[:0]
	}
	for _, r := range re.Rune {
		if fold && r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		if r == utf8.RuneError || fold && (r >= utf8.RuneSelf || r == 'k' || r == 's') {
			end()
			continue
		}
		part = append(part, r)
	}
	whole := len(part) == len(re.Rune) && (!fold || re.Flags&syntax.FoldCase != 0 || !hasLetters(part))
	end()
	if best == "" {
		return nil, false
	}
	return []string{best}, whole
}

// hasLetters tells that there is something with two cases.
func hasLetters(part []rune) bool {
	for _, r := range part {
		if r >= 'a' && r <= 'z' {
			return true
		}
	}
	return false
}

// match finds the first match in a line.
func (p *pattern) match(line, folded []byte) (start, end int, ok bool) {
	if p.re == nil {
		if p.fold {
			line = folded
		}
		start = bytes.Index(line, p.needles[0])
		return start, start + len(p.needles[0]), start >= 0
	}
	at := p.re.FindIndex(line)
	if at == nil {
		return 0, 0, false
	}
	return at[0], at[1], true
}

// hunt looks for the needles in one piece of a file.
type hunt struct {
	p    *pattern
	in   []byte
	next [needlesMax]int // where each needle is next; len(in) when nowhere
}

func (p *pattern) hunt(in []byte) *hunt {
	h := &hunt{p: p, in: in}
	for i := range h.next {
		h.next[i] = -1 // not looked for yet
	}
	return h
}

// from gives the first place from at on where a match may begin or go through, or false if there is none.
func (h *hunt) from(at int) (int, bool) {
	if len(h.p.needles) == 0 {
		return at, at < len(h.in)
	}
	first := len(h.in)
	for i, n := range h.p.needles {
		if h.next[i] < at {
			h.next[i] = len(h.in)
			if found := bytes.Index(h.in[at:], n); found >= 0 {
				h.next[i] = at + found
			}
		}
		first = min(first, h.next[i])
	}
	return first, first < len(h.in)
}

// lower writes src to dst with the letters of ASCII in lower case.
func lower(dst, src []byte) {
	dst = dst[:len(src)]
	for i, c := range src {
		if c-'A' < 26 {
			c |= 0x20
		}
		dst[i] = c
	}
}
