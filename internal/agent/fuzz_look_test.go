package agent

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

func TestGlobs(t *testing.T) {
	for _, tt := range []struct {
		glob string
		yes  []string
		no   []string
	}{
		{"*.go", []string{"a.go", "x/y/a.go", ".go"}, []string{"a.gob", "go"}},
		{"./*.go", []string{"a.go", "x/a.go"}, []string{"a.c"}},
		{"/*.go", []string{"a.go"}, []string{"x/a.go"}},
		{"src/*.go", []string{"src/a.go"}, []string{"a.go", "src/x/a.go", "y/src/a.go"}},
		{"**/*.go", []string{"a.go", "x/y/a.go"}, []string{"a.c"}},
		{"src/**", []string{"src", "src/a", "src/a/b"}, []string{"srcs", "x/src"}},
		{"a/**/b/**/c", []string{"a/b/c", "a/x/b/y/z/c", "a/b/b/c/c"}, []string{"a/c", "a/b/x", "b/c"}},
		{"node_modules/", []string{"node_modules", "x/node_modules"}, []string{"node"}},
		{"{a,b{c,d}}.txt", []string{"a.txt", "bc.txt", "x/bd.txt"}, []string{"b.txt", "bcd.txt"}},
		{"{src,test}/**/*.{c,h}", []string{"src/a.c", "test/x/b.h"}, []string{"src/a.o", "a.c"}},
		{"[!a]b", []string{"bb", "éb"}, []string{"ab", "b"}},
		{"[{,}]", []string{"{", ",", "}"}, []string{"x"}},
		{`\{a\}`, []string{"{a}"}, []string{"a"}},
		{`a\*`, []string{"a*"}, []string{"ab"}},
		{"raw\xff*", []string{"raw\xff", "raw\xffx"}, []string{"raw"}},
		{"", nil, nil}, {"[a", nil, nil}, {"{a", nil, nil}, {"a//b", nil, nil}, {`a\`, nil, nil}, {strings.Repeat("{a,b}", 8), nil, nil},
	} {
		t.Run(tt.glob, func(t *testing.T) {
			g, err := parseGlobs("names", []string{tt.glob})
			if (err != nil) != (tt.yes == nil) {
				t.Fatal(err)
			}
			for _, p := range tt.yes {
				if !g.match(p, filepath.Base(p)) {
					t.Errorf("%q is not matched", p)
				}
			}
			for _, p := range tt.no {
				if g.match(p, filepath.Base(p)) {
					t.Errorf("%q is matched", p)
				}
			}
		})
	}
}

// FuzzGlob: whatever the glob, it is refused or matches in bounded work.
func FuzzGlob(f *testing.F) {
	for _, s := range []string{"*.go", "**/a/**", "{a,{b,c}}[!x]", "[", "{", "\\", "a/[b/c]"} {
		f.Add(s, "a/b/c.go")
	}
	f.Fuzz(func(t *testing.T, glob, name string) {
		g, err := parseGlobs("names", []string{glob})
		if err != nil {
			if dayfly.ErrorCode(err) != dayfly.CodeInvalid {
				t.Fatal(err)
			}
			return
		}
		if len(g) < 1 || len(g) > globAltsMax {
			t.Fatalf("%q stands for %d patterns", glob, len(g))
		}
		if len(name) <= pathMax {
			g.match(name, filepath.Base(name))
		}
	})
}

// FuzzSearch: what is found is what the regular expression alone finds, line by line.
func FuzzSearch(f *testing.F) {
	f.Add("TODO|FIXME", "a TODO\nb\nFIXME\r\nlast", false, false)
	f.Add("task", "TAS\u212a\nta\u017fk\n", false, true)
	f.Add("(?i)straße", "STRAßE\nx", false, false)
	f.Add("^a*$", "\n\naa\nb", false, false)
	f.Add("a.c", "abc\na.c", true, false)
	f.Add("[Tt]odo+|(?i:k)x", "todo\nKX\n\xff", false, false)
	f.Add("\ufffd", "\xff\n\ufffd", false, true)
	f.Add("(ab){2,3}c|x(?:yz)*", "ababc\nxyzyz", false, false)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text, content string, literal, ignore bool) {
		q := dayfly.SearchQuery{Path: dir, Pattern: text, Literal: literal, IgnoreCase: ignore, Limit: dayfly.SearchLimitMax}
		s, err := newSearcher(q, dir)
		if err != nil {
			if dayfly.ErrorCode(err) != dayfly.CodeInvalid {
				t.Fatal(err)
			}
			return
		}
		if strings.Count(content, "\n") >= dayfly.SearchLimitMax || len(content) > searchBuf || strings.ContainsRune(content, 0) {
			return
		}
		if literal {
			text = regexp.QuoteMeta(text)
		}
		if ignore {
			text = "(?i:" + text + ")"
		}
		re, err := regexp.Compile(text)
		if err != nil {
			return // a literal that is no UTF-8
		}
		var want []dayfly.SearchMatch
		for i, line := range strings.Split(strings.TrimSuffix(content, "\n"), "\n") {
			line = strings.TrimSuffix(line, "\r")
			at := re.FindStringIndex(line)
			if literal && !ignore { // plain bytes, where an expression's U+FFFD would be any wrong byte
				at = []int{strings.Index(line, q.Pattern)}
				if at[0] < 0 {
					at = nil
				}
			}
			if at != nil && content != "" {
				want = append(want, dayfly.SearchMatch{Line: int64(i + 1), Column: int64(at[0]) + 1})
			}
		}
		name := filepath.Join(dir, "f")
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		s.ctx = context.Background()
		if err := s.search(dir); err != nil {
			t.Fatal(err)
		}
		if len(s.res.Matches) != len(want) {
			t.Fatalf("%q in %q: %d matches, want %d", text, content, len(s.res.Matches), len(want))
		}
		for i, m := range s.res.Matches {
			if m.Line != want[i].Line || m.Column != want[i].Column {
				t.Fatalf("%q in %q: match %+v, want %+v", text, content, m, want[i])
			}
		}
	})
}

// FuzzCursor: whatever the cursor, a page is in order, within its limit and behind the cursor.
func FuzzCursor(f *testing.F) {
	dir := f.TempDir()
	for _, p := range []string{"a/b/c", "a/d", "e", "f/g/h/i", "z\xff"} {
		if err := os.MkdirAll(filepath.Join(dir, p), 0o755); err != nil {
			f.Fatal(err)
		}
	}
	for _, s := range []string{"", "a", "a/b", "a/b/c/d", "/", "..", "a//", "zz", "f/g/\x00"} {
		f.Add(base64.RawURLEncoding.EncodeToString([]byte(s)), true, 2)
	}
	f.Fuzz(func(t *testing.T, cursor string, recursive bool, limit int) {
		after, err := base64.RawURLEncoding.DecodeString(cursor)
		if err != nil || limit < 1 || limit > listMax {
			return
		}
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		l := &lister{ctx: context.Background(), root: dir, recursive: recursive, limit: limit}
		if err := l.list(fd, string(after)); err != nil {
			t.Fatal(err)
		}
		if len(l.entries) > limit || l.more && len(l.entries) != limit {
			t.Fatalf("%d entries of %d", len(l.entries), limit)
		}
		for i, e := range l.entries {
			if i > 0 && strings.ReplaceAll(l.entries[i-1].Path, "/", "\x00") >= strings.ReplaceAll(e.Path, "/", "\x00") {
				t.Fatalf("%q comes before %q", l.entries[i-1].Path, e.Path)
			}
		}
	})
}
