package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// lines shows matches as grep -n does.
func lines(m *machine, res dayfly.SearchResult) string {
	var b strings.Builder
	for _, f := range res.Matches {
		for i, l := range f.Before {
			fmt.Fprintf(&b, "%s-%d-%s\n", strings.TrimPrefix(f.Path, m.home+"/"), int(f.Line)-len(f.Before)+i, l)
		}
		fmt.Fprintf(&b, "%s:%d:%d:%s\n", strings.TrimPrefix(f.Path, m.home+"/"), f.Line, f.Column, f.Text)
		for i, l := range f.After {
			fmt.Fprintf(&b, "%s-%d-%s\n", strings.TrimPrefix(f.Path, m.home+"/"), int(f.Line)+1+i, l)
		}
	}
	return b.String()
}

func TestSearch(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		m.run(t, shell(`mkdir -p s/b/deep s/.git s/node_modules/x s/z && cd s && printf 'one\ntwo TODO\nthree\nfour todo\n' > a.txt && printf 'no end TODO' > b/c.go &&
			printf 'TODO\r\nnext\r\n' > b/deep/dos.txt && printf 'TODO\n' > .git/config && printf 'TODO\n' > .hidden && printf 'TODO\n' > node_modules/x/y.js && printf 'TODO\0\n' > binary &&
			mkfifo fifo && ln -s a.txt link && ln -s b dirlink && : > empty && printf 'a.c\nabc\n' > "$(printf 'new\nline')" && printf '\377TODO\376\n' > raw && printf 'Größe kelvin \342\204\252\n' > unicode && mkdir -m 0 closed`))
		closed := int64(1)
		if m.owner() == 0 {
			closed = 0
		}
		for _, tt := range []struct {
			name    string
			q       dayfly.SearchQuery
			want    string
			files   int64
			skipped int64
		}{
			{"literal", dayfly.SearchQuery{Path: "s", Pattern: "TODO", Literal: true}, "s/a.txt:2:5:two TODO\ns/b/c.go:1:8:no end TODO\ns/b/deep/dos.txt:1:1:TODO\ns/node_modules/x/y.js:1:1:TODO\ns/raw:1:2:\xffTODO\xfe\n", 8, 4 + closed},
			{"expression", dayfly.SearchQuery{Path: "s/a.txt", Pattern: `^t.*e$|f[o]+ur`}, "s/a.txt:3:1:three\ns/a.txt:4:1:four todo\n", 1, 0},
			{"ignore case", dayfly.SearchQuery{Path: "s/a.txt", Pattern: "Todo", Literal: true, IgnoreCase: true}, "s/a.txt:2:5:two TODO\ns/a.txt:4:6:four todo\n", 1, 0},
			{"ignore case beyond ASCII", dayfly.SearchQuery{Path: "s/unicode", Pattern: "GRÖSSE|größe KELVIN K", IgnoreCase: true}, "s/unicode:1:1:Größe kelvin \u212a\n", 1, 0},
			{"end of line before CR", dayfly.SearchQuery{Path: "s/b", Pattern: `O$`}, "s/b/c.go:1:11:no end TODO\ns/b/deep/dos.txt:1:4:TODO\n", 2, 0},
			{"a literal is no expression", dayfly.SearchQuery{Path: "s", Pattern: "a.c", Literal: true}, "s/new\nline:1:1:a.c\n", 8, 4 + closed},
			{"hidden too", dayfly.SearchQuery{Path: "s", Pattern: "TODO", Hidden: true, Include: []string{".*", "config"}}, "s/.git/config:1:1:TODO\ns/.hidden:1:1:TODO\n", 2, closed},
			{"in a hidden place", dayfly.SearchQuery{Path: "s/.git", Pattern: "TODO"}, "s/.git/config:1:1:TODO\n", 1, 0},
			{"include", dayfly.SearchQuery{Path: "s", Pattern: "TODO", Include: []string{"*.{go,js}"}}, "s/b/c.go:1:8:no end TODO\ns/node_modules/x/y.js:1:1:TODO\n", 2, closed},
			{"include paths", dayfly.SearchQuery{Path: "s", Pattern: "TODO", Include: []string{"b/**/*.txt", "/a.*"}}, "s/a.txt:2:5:two TODO\ns/b/deep/dos.txt:1:1:TODO\n", 2, closed},
			{"exclude", dayfly.SearchQuery{Path: "s", Pattern: "TODO", Exclude: []string{"node_modules/", "b/deep", "*.txt", "raw", "closed"}}, "s/b/c.go:1:8:no end TODO\n", 4, 4},
			{"context", dayfly.SearchQuery{Path: "s/a.txt", Pattern: "TODO", Context: 2}, "s/a.txt-1-one\ns/a.txt:2:5:two TODO\ns/a.txt-3-three\ns/a.txt-4-four todo\n", 1, 0},
			{"through a link", dayfly.SearchQuery{Path: "s/link", Pattern: "one"}, "s/link:1:1:one\n", 1, 0},
			{"nothing", dayfly.SearchQuery{Path: "s/empty", Pattern: "one"}, "", 1, 0},
			{"every line", dayfly.SearchQuery{Path: "s/a.txt", Pattern: "x*"}, "s/a.txt:1:1:one\ns/a.txt:2:1:two TODO\ns/a.txt:3:1:three\ns/a.txt:4:1:four todo\n", 1, 0},
		} {
			t.Run(tt.name, func(t *testing.T) {
				tt.q.Limit = 100
				res, err := m.Search(t.Context(), tt.q)
				if err != nil {
					t.Fatal(err)
				}
				if got := lines(m, res); got != tt.want || res.Truncated {
					t.Errorf("found\n%s\nwant\n%s", got, tt.want)
				}
				if res.Files != tt.files || res.Skipped != tt.skipped {
					t.Errorf("%d files and %d skipped, want %d and %d", res.Files, res.Skipped, tt.files, tt.skipped)
				}
			})
		}
		for _, tt := range []struct {
			name string
			q    dayfly.SearchQuery
			want dayfly.Code
		}{
			{"no pattern", dayfly.SearchQuery{Path: "s", Limit: 1}, dayfly.CodeInvalid},
			{"no limit", dayfly.SearchQuery{Path: "s", Pattern: "x"}, dayfly.CodeInvalid},
			{"too much context", dayfly.SearchQuery{Path: "s", Pattern: "x", Limit: 1, Context: 11}, dayfly.CodeInvalid},
			{"no expression", dayfly.SearchQuery{Path: "s", Pattern: "a(", Limit: 1}, dayfly.CodeInvalid},
			{"two lines", dayfly.SearchQuery{Path: "s", Pattern: "a\nb", Limit: 1}, dayfly.CodeInvalid},
			{"an expression of many steps", dayfly.SearchQuery{Path: "s", Pattern: "((a{100}){100}){100}", Limit: 1}, dayfly.CodeInvalid},
			{"no glob", dayfly.SearchQuery{Path: "s", Pattern: "x", Limit: 1, Include: []string{"[a"}}, dayfly.CodeInvalid},
			{"braces without end", dayfly.SearchQuery{Path: "s", Pattern: "x", Limit: 1, Exclude: []string{strings.Repeat("{a,b}", 30)}}, dayfly.CodeInvalid},
			{"missing", dayfly.SearchQuery{Path: "none", Pattern: "x", Limit: 1}, dayfly.CodeFileNotFound},
			{"a FIFO", dayfly.SearchQuery{Path: "s/fifo", Pattern: "x", Limit: 1}, dayfly.CodeFileConflict},
		} {
			t.Run(tt.name, func(t *testing.T) {
				_, err := m.Search(t.Context(), tt.q)
				wantCode(t, err, tt.want)
			})
		}
	})
}

// TestSearchLargeFiles: context, line numbers and limits across the pieces in which a file is read, and lines longer than those.
func TestSearchLargeFiles(t *testing.T) {
	m := startAgent(t, options{})
	var b strings.Builder
	const count = 40000 // about 800 KiB: several pieces
	for i := 1; i <= count; i++ {
		fmt.Fprintf(&b, "line %06d of many\n", i)
	}
	m.write(t, "numbered", []byte(b.String()))
	res, err := m.Search(t.Context(), dayfly.SearchQuery{Path: "numbered", Pattern: `0000 of|39999`, Context: 3, Limit: 10})
	if err != nil || len(res.Matches) != 5 || res.Truncated {
		t.Fatalf("%d matches, %v", len(res.Matches), err)
	}
	for i, want := range []int64{10000, 20000, 30000, 39999, 40000} {
		got := res.Matches[i]
		around := append(append(got.Before, got.Text), got.After...)
		first := want - int64(len(got.Before))
		if got.Line != want || len(got.Before) != 3 || want < 39999 && len(got.After) != 3 {
			t.Errorf("%+v", got)
		}
		for j, l := range around {
			if l != fmt.Sprintf("line %06d of many", first+int64(j)) {
				t.Errorf("around %d: %q", want, around)
			}
		}
	}
	// Every place in a piece, so that the context is cut at its ends too.
	for at := int64(6535); at < 6575; at++ { // 128 KiB are 6553 lines and a part of one
		res, err := m.Search(t.Context(), dayfly.SearchQuery{Path: "numbered", Pattern: fmt.Sprintf("%06d", at), Context: 10, Limit: 1})
		if err != nil || len(res.Matches) != 1 || len(res.Matches[0].Before) != 10 || len(res.Matches[0].After) != 10 || res.Matches[0].Line != at {
			t.Fatalf("%+v, %v", res, err)
		}
		if first := res.Matches[0].After[0]; first != fmt.Sprintf("line %06d of many", at+1) {
			t.Fatalf("after %d comes %q", at, first)
		}
	}
	res, err = m.Search(t.Context(), dayfly.SearchQuery{Path: "numbered", Pattern: "many", Context: 1, Limit: 6898})
	wantCode(t, err, dayfly.CodeInvalid)
	res, err = m.Search(t.Context(), dayfly.SearchQuery{Path: "numbered", Pattern: "many", Limit: 1000})
	if err != nil || len(res.Matches) != 1000 || !res.Truncated || res.Matches[999].Line != 1000 {
		t.Errorf("%d matches, %v", len(res.Matches), err)
	}

	long := strings.Repeat("ä", 100<<10) + "needle" + strings.Repeat("ö", 100<<10) + "\nneedle\n"
	m.write(t, "long", []byte(long))
	res, err = m.Search(t.Context(), dayfly.SearchQuery{Path: "long", Pattern: "needle", Limit: 10})
	if err != nil || len(res.Matches) != 2 || res.Truncated {
		t.Fatalf("%d matches, %v", len(res.Matches), err)
	}
	f := res.Matches[0]
	if !f.Cut || f.Column != 200<<10+1 || len(f.Text) > dayfly.SearchTextMax || len(f.Text) < dayfly.SearchTextMax-8 || !strings.Contains(f.Text, "ääneedleöö") || strings.ToValidUTF8(f.Text, "?") != f.Text {
		t.Errorf("a long line gave %q at %d", f.Text, f.Column)
	}
	if res.Matches[1].Line != 2 {
		t.Errorf("%+v", res.Matches[1])
	}
	m.write(t, "longer", []byte(strings.Repeat("x", 3<<20)+"needle\nneedle 2\n"))
	res, err = m.Search(t.Context(), dayfly.SearchQuery{Path: "longer", Pattern: "needle", Limit: 10})
	if err != nil || len(res.Matches) != 1 || !res.Truncated || res.Matches[0].Line != 2 {
		t.Errorf("a line that is too long gave %+v, %v", res, err)
	}
	res, err = m.Search(t.Context(), dayfly.SearchQuery{Path: "/proc/self/status", Pattern: "^Name:", Limit: 10})
	if err != nil || len(res.Matches) != 1 {
		t.Errorf("bug 78: /proc/self/status gave %+v, %v", res, err)
	}
}

func TestFind(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		m.run(t, shell(`mkdir -p d/a/b/c d/.git d/node_modules && cd d && touch a/x.go a/b/y.go a/b/c/z.go .git/config node_modules/n.go .env && head -c 5000 /dev/zero > a/big && touch -d @1000000000 a/old &&
			ln -s nowhere a/dangling && mkfifo a/fifo && touch "$(printf 'a/raw\377 \n+%%#')" && mkdir -m 0 a/closed`))
		for _, tt := range []struct {
			name string
			q    dayfly.FindQuery
			want string
		}{
			{"names", dayfly.FindQuery{Names: []string{"*.go"}}, "a/b/c/z.go a/b/y.go a/x.go node_modules/n.go"},
			{"paths", dayfly.FindQuery{Names: []string{"a/**/*.go"}}, "a/b/c/z.go a/b/y.go a/x.go"},
			{"exclude", dayfly.FindQuery{Names: []string{"*.go"}, Exclude: []string{"node_modules", "a/b/c"}}, "a/b/y.go a/x.go"},
			{"hidden", dayfly.FindQuery{Names: []string{".*", "config"}, Hidden: true}, ".env .git .git/config"},
			{"depth", dayfly.FindQuery{MaxDepth: 1}, "a node_modules"},
			{"depth and type", dayfly.FindQuery{MaxDepth: 2, Type: dayfly.FileDirectory}, "a a/b a/closed node_modules"},
			{"links", dayfly.FindQuery{Type: dayfly.FileSymlink}, "a/dangling"},
			{"other", dayfly.FindQuery{Type: dayfly.FileOther}, "a/fifo"},
			{"large", dayfly.FindQuery{MinBytes: 5000}, "a/big"},
			{"of a size", dayfly.FindQuery{MinBytes: 1, MaxBytes: 4999}, ""},
			{"old", dayfly.FindQuery{ModifiedBefore: time.Unix(1000000001, 0)}, "a/old"},
			{"new", dayfly.FindQuery{ModifiedAfter: time.Unix(1000000000, 0), Names: []string{"old", "big"}}, "a/big"},
			{"bug 81: odd name", dayfly.FindQuery{Names: []string{"raw*"}}, "a/raw\xff \n+%#"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				tt.q.Path, tt.q.Limit = "d", 100
				entries, truncated, err := m.Find(t.Context(), tt.q)
				if err != nil || truncated {
					t.Fatal(truncated, err)
				}
				var got []string
				for _, e := range entries {
					got = append(got, strings.TrimPrefix(e.Path, m.home+"/d/"))
					if e.Name == "closed" && m.owner() != 0 && e.Error == "" && tt.name != "depth and type" {
						t.Errorf("bug 80: %+v", e)
					}
				}
				if strings.Join(got, " ") != tt.want {
					t.Errorf("found %q, want %q", got, tt.want)
				}
			})
		}
		entries, truncated, err := m.Find(t.Context(), dayfly.FindQuery{Path: "d", Limit: 3})
		if err != nil || len(entries) != 3 || !truncated {
			t.Errorf("%d entries, %v, %v", len(entries), truncated, err)
		}
		for _, q := range []dayfly.FindQuery{{Limit: 0}, {Limit: 1, MinBytes: -1}, {Limit: 1, Type: "door"}, {Limit: 1, Names: []string{""}}} {
			q.Path = "d"
			_, _, err := m.Find(t.Context(), q)
			wantCode(t, err, dayfly.CodeInvalid)
		}
		_, _, err = m.Find(t.Context(), dayfly.FindQuery{Path: "d/a/x.go", Limit: 1})
		wantCode(t, err, dayfly.CodeFileConflict)
	})
}

// TestLooksEnd: what looks through a whole machine ends when its caller leaves, and never enters what the kernel makes up.
func TestLooksEnd(t *testing.T) {
	m := startAgent(t, options{})
	entries, _, err := m.Find(t.Context(), dayfly.FindQuery{Path: "/", Names: []string{"/proc/**", "/sys/**"}, Exclude: []string{"/home", "/root", "/tmp", "/usr", "/var", "/work", "/opt", "/lib*"}, Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Path)
	}
	if got := strings.Join(all, " "); got != "/proc /sys" && got != "/proc" {
		t.Errorf("found %s", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := m.Search(ctx, dayfly.SearchQuery{Path: "/", Pattern: `(no|such)\w+ [text] anywhere`, Hidden: true, Limit: 1})
		done <- err
	}()
	cancel()
	select {
	case <-done:
	case <-time.After(testLimit):
		t.Error("the search did not end")
	}
	if _, _, err := m.Find(t.Context(), dayfly.FindQuery{Path: "/etc", Names: []string{"passwd"}, Limit: 1}); err != nil {
		t.Error(err)
	}
}

// TestListingIsComplete: all pages together hold every entry once, while others come and go.
func TestListingIsComplete(t *testing.T) {
	m := startAgent(t, options{})
	dir := filepath.Join(m.home, "many")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const count = 17000 // more than a walk keeps
	for i := range count {
		fd, err := unix.Open(filepath.Join(dir, fmt.Sprintf("%05d", i)), unix.O_CREAT|unix.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fd)
	}
	for _, recursive := range []bool{false, true} {
		next, seen, cursor := 0, 0, ""
		for {
			page, after, err := m.List(t.Context(), dayfly.ListQuery{Path: "many", Limit: 997, Cursor: cursor, Recursive: recursive})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page {
				if strings.HasPrefix(e.Name, "x") {
					continue
				}
				if e.Name != fmt.Sprintf("%05d", next) {
					t.Fatalf("entry %d is %s", next, e.Name)
				}
				next++
			}
			seen++
			_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("x%d", seen)), nil, 0o644)
			if cursor = after; cursor == "" {
				break
			}
		}
		if next != count {
			t.Errorf("recursive %v: %d entries in all pages", recursive, next)
		}
	}
	entries, truncated, err := m.Find(t.Context(), dayfly.FindQuery{Path: "many", Names: []string{"1699?"}, Limit: 1000})
	if err != nil || truncated || len(entries) != 10 {
		t.Errorf("bug 80: found %d, %v", len(entries), err)
	}
}
