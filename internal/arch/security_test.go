package arch_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	suiteDir      = "internal/driver/drivertest" // of cases that are named without a directory
	checklistWant = 60                           // attacks in the escape checklist
)

// proofToken is one word of a proof: a directory, the name of a test in it, or the name of a case.
var proofToken = regexp.MustCompile("((?:internal|test|sdk|cmd)/[a-z0-9/]+)|`((?:Test|Fuzz)[A-Za-z0-9]+)`|\"([^\"]+)\"")

// Every attack in SECURITY.md names tests that exist.
func TestSecurityNamesTestsThatExist(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	proof, section, attacks := false, "", map[string]int{}
	for line := range strings.Lines(string(page)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(title)
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		last := strings.TrimSpace(cells[len(cells)-1])
		switch {
		case !strings.HasPrefix(line, "|"):
			proof = false
		case last == "held by":
			proof = true
		case !proof || strings.HasPrefix(line, "|--") || strings.HasPrefix(line, "| **"):
		default:
			attacks[section]++
			holdsUp(t, strings.TrimSpace(cells[0]), last)
		}
	}
	if n := attacks["Escape checklist"]; n < checklistWant {
		t.Errorf("the escape checklist has %d attacks, want %d or more", n, checklistWant)
	}
}

// holdsUp fails unless a proof names something, and everything that it names exists.
func holdsUp(t *testing.T, attack, proof string) {
	t.Helper()
	dir, named := suiteDir, 0
	for _, m := range proofToken.FindAllStringSubmatch(proof, -1) {
		switch {
		case m[1] != "":
			dir = m[1]
			continue
		case m[2] != "":
			if !strings.Contains(sourceOf(t, filepath.Join("..", "..", dir)), "func "+m[2]+"(") {
				t.Errorf("%s: %s has no %s", attack, dir, m[2])
			}
		case !strings.Contains(sourceOf(t, filepath.Join("..", "..", suiteDir)), `"`+m[3]+`"`):
			t.Errorf("%s: %s has no case %q", attack, suiteDir, m[3])
		}
		named++
	}
	if named == 0 {
		t.Errorf("%s: no test is named in %q", attack, proof)
	}
}
