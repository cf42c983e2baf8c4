package agent

import (
	"bytes"
	"slices"
	"unicode/utf8"

	"dayfly.dev/dayfly"
)

// isBinary tells whether a file that begins so is none of text.
func isBinary(start []byte) bool {
	return bytes.IndexByte(start[:min(len(start), searchBinary)], 0) >= 0
}

// lastLine gives the length of the whole lines in b; with last, the end of the file ends a line too.
func lastLine(b []byte, last bool) int {
	if last {
		return len(b)
	}
	return bytes.LastIndexByte(b, '\n') + 1
}

// firstLine gives the length of the first line with its end.
func firstLine(b []byte) int {
	if at := bytes.IndexByte(b, '\n'); at >= 0 {
		return at + 1
	}
	return len(b)
}

// chomp takes the end of a line off, which in some files is CR and LF.
func chomp(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte{'\n'})
	return bytes.TrimSuffix(line, []byte{'\r'})
}

// piece searches whole lines of the present file. last: the file ends with them.
func (s *searcher) piece(in []byte, last bool) {
	s.feed(in)
	p := s.pattern
	folded := in
	if p.fold && len(p.needles) > 0 {
		if len(s.folded) < len(in) {
			s.folded = make([]byte, len(s.buf))
		}
		folded = s.folded[:len(in)]
		lower(folded, in)
	}
	h := p.hunt(folded)
	line, counted := s.file.line, 0
	for at := 0; at < len(in) && !s.full; {
		hit, ok := h.from(at)
		if !ok {
			break
		}
		start := at + bytes.LastIndexByte(in[at:hit], '\n') + 1
		end := start + firstLine(in[start:])
		at = end
		text := chomp(in[start:end])
		if p.re != nil && len(text)*p.size > patternWorkMax {
			s.res.Truncated = true
			continue
		}
		from, to, ok := p.match(text, folded[start:start+len(text)])
		if !ok {
			continue
		}
		line += int64(bytes.Count(in[counted:start], []byte{'\n'}))
		counted = start
		s.record(in, start, start+len(text), from, to, line, last)
	}
	if last {
		return
	}
	s.file.line = line + int64(bytes.Count(in[counted:], []byte{'\n'}))
	if s.q.Context > 0 {
		s.file.tail = s.before(in)
	}
}

// feed gives the first lines of a piece to the matches of the piece before that want them.
func (s *searcher) feed(in []byte) {
	s.file.waiting = slices.DeleteFunc(s.file.waiting, func(i int) bool {
		m := &s.res.Matches[i]
		had := len(m.After)
		m.After = s.after(m.After, in, false /* from its beginning */)
		for _, l := range m.After[had:] {
			s.bytes += len(l)
		}
		return len(m.After) == s.q.Context
	})
}

// before gives the last lines of the file up to the end of in, which ends with a line.
func (s *searcher) before(in []byte) []string {
	var lines []string // the nearest first
	for len(in) > 0 && len(lines) < s.q.Context {
		start := bytes.LastIndexByte(in[:len(in)-1], '\n') + 1
		lines = append(lines, shortened(chomp(in[start:])))
		in = in[:start]
	}
	for i := len(s.file.tail) - 1; i >= 0 && len(lines) < s.q.Context; i-- {
		lines = append(lines, s.file.tail[i])
	}
	slices.Reverse(lines)
	return lines
}

// after adds lines until there are enough. behind: in begins with the end of the line before.
func (s *searcher) after(lines []string, in []byte, behind bool) []string {
	if behind {
		in = in[firstLine(in):]
	}
	for len(in) > 0 && len(lines) < s.q.Context {
		n := firstLine(in)
		lines = append(lines, shortened(chomp(in[:n])))
		in = in[n:]
	}
	return lines
}

// shortened is a line of context: its beginning, if it is long.
func shortened(line []byte) string {
	if len(line) > dayfly.SearchTextMax {
		line = line[:runeStart(line, dayfly.SearchTextMax)]
	}
	return string(line)
}

// around gives a line that matches from one column to another, and if it is long the part around the match.
func around(line []byte, from, to int) (text string, cut bool) {
	if len(line) <= dayfly.SearchTextMax {
		return string(line), false
	}
	width := min(to-from, dayfly.SearchTextMax)
	start := max(0, from-(dayfly.SearchTextMax-width)/2)
	end := min(len(line), start+dayfly.SearchTextMax)
	start = max(0, end-dayfly.SearchTextMax)
	for start < end && start > 0 && !utf8.RuneStart(line[start]) && end-start > dayfly.SearchTextMax-utf8.UTFMax {
		start++ // a character is not cut where the text is one of characters
	}
	return string(line[start:runeStart(line, end)]), true
}

// runeStart moves a position back to where a character begins.
func runeStart(line []byte, at int) int {
	for back := 0; back < utf8.UTFMax && at-back > 0 && at < len(line); back++ {
		if utf8.RuneStart(line[at-back]) {
			return at - back
		}
	}
	return at
}
