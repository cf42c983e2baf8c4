package arch_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	goTest    = regexp.MustCompile(`\b(Test|Fuzz)[A-Z][A-Za-z0-9]*\b`)
	suiteCase = regexp.MustCompile(`"([^"]+)"`)
)

// Every guarantee in SPECIFICATION.md names tests that exist, or says that there is none.
func TestSpecificationNamesTestsThatExist(t *testing.T) {
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs", "SPECIFICATION.md"))
	if err != nil {
		t.Fatal(err)
	}
	proofs := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 2 || !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|--") || strings.Contains(line, "| proof") {
			continue
		}
		proof := strings.TrimSpace(cells[1])
		if strings.HasPrefix(proof, "no test yet") {
			continue
		}
		for one := range strings.SplitSeq(proof, ";") {
			dir, names, _ := strings.Cut(strings.TrimSpace(one), " ")
			source := sourceOf(t, filepath.Join(root, dir))
			for _, name := range goTest.FindAllString(names, -1) {
				proofs++
				if !strings.Contains(source, "func "+name+"(") {
					t.Errorf("%s has no %s", dir, name)
				}
			}
			for _, name := range suiteCase.FindAllStringSubmatch(names, -1) {
				proofs++
				if !strings.Contains(source, `"`+name[1]+`"`) {
					t.Errorf("%s has no case %q", dir, name[1])
				}
			}
			if !goTest.MatchString(names) && !suiteCase.MatchString(names) {
				t.Errorf("no test is named in %q", one)
			}
		}
	}
	if proofs == 0 {
		t.Error("no proof was found on the page")
	}
}

// docPath is a path of the repository in backquotes, perhaps followed by a name in that file.
var docPath = regexp.MustCompile("`((?:internal|cmd|sdk|test|docs|api|images|scripts|packaging)/[A-Za-z0-9_./-]+)(?:[: ][^`]*)?`")

// Every page names files and directories that exist.
func TestDocsNameFilesThatExist(t *testing.T) {
	root := filepath.Join("..", "..")
	pages := []string{filepath.Join(root, "README.md")}
	for _, pattern := range []string{"*.md", "*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, "docs", pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	for _, page := range pages {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range docPath.FindAllStringSubmatch(string(b), -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s names %s: %v", page, m[1], err)
			}
		}
	}
}

// sourceOf gives the text of every Go file of a directory.
func sourceOf(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Errorf("no Go files in %s (%v)", dir, err)
		return ""
	}
	var all strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	return all.String()
}
