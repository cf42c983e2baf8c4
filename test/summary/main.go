// Command summary reads the output of `go test -json` from standard input and prints what a person wants to know: each package
// as it ends, then failures with their output, skips with their reasons, and one closing line. It exits 1 if anything failed
// or nothing passed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
)

// event is one line of go test -json.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
}

type tally struct {
	passed, failed, skipped int
	output                  map[string][]string // by package and test
	failures                []string
	skips                   map[string][]string // reason → tests
}

const (
	lineMax    = 1 << 20 // bytes of one event
	outputKept = 400     // lines of a test's output
)

func main() {
	t := tally{output: map[string][]string{}, skips: map[string][]string{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, lineMax), lineMax)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			t.add(e)
		}
	}
	t.print()
	if err := lines.Err(); err != nil {
		fmt.Println("the output of go test could not be read:", err)
		os.Exit(1)
	}
	if t.failed > 0 || t.passed == 0 {
		os.Exit(1)
	}
}

func (t *tally) add(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		if len(t.output[key]) < outputKept {
			t.output[key] = append(t.output[key], e.Output)
		}
		return
	case "build-output":
		fmt.Print(e.Output)
		return
	case "pass", "fail", "skip":
	default:
		return
	}
	if e.Test == "" {
		if e.Action != "skip" { // a package without tests
			fmt.Printf("%-4s %7.1f s  %s\n", e.Action, e.Elapsed, e.Package)
		}
		if e.Action == "fail" {
			t.failed++
			t.failures = append(t.failures, key)
		}
		return
	}
	switch e.Action {
	case "pass":
		t.passed++
	case "fail":
		t.failed++
		t.failures = append(t.failures, key)
	case "skip":
		t.skipped++
		reason := t.reason(key)
		t.skips[reason] = append(t.skips[reason], e.Test)
	}
}

// reason is the text of a test's Skip call: the last line of its output that has a file and line before it.
func (t *tally) reason(key string) string {
	for i := len(t.output[key]) - 1; i >= 0; i-- {
		line := strings.TrimSpace(t.output[key][i])
		if _, text, ok := strings.Cut(line, ".go:"); ok {
			if _, text, ok = strings.Cut(text, ": "); ok {
				return text
			}
		}
	}
	return "no reason given"
}

func (t *tally) print() {
	for _, key := range t.failures {
		fmt.Printf("FAIL %s\n%s", key, strings.Join(t.output[key], ""))
	}
	reasons := make([]string, 0, len(t.skips))
	for r := range t.skips {
		reasons = append(reasons, r)
	}
	sort.Strings(reasons)
	for _, r := range reasons {
		fmt.Printf("skipped: %s (%d: %s)\n", r, len(t.skips[r]), brief(t.skips[r]))
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
}

func brief(tests []string) string {
	const shown = 3
	if len(tests) <= shown {
		return strings.Join(tests, ", ")
	}
	return strings.Join(tests[:shown], ", ") + ", …"
}
