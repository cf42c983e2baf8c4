// Command summary reads the output of `go test -json` from the files that it is given, all at once because they may be pipes of
// runs that go on at the same time, or from standard input. It prints what a person wants to know: each package as it ends, then
// failures with their output, skips with their reasons, and one closing line. It exits 1 if anything failed or nothing passed.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"sync"
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
	mu                      sync.Mutex
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
	t := &tally{output: map[string][]string{}, skips: map[string][]string{}}
	err := t.read(os.Args[1:])
	t.print()
	if err != nil {
		fmt.Println("the output of go test could not be read:", err)
		os.Exit(1)
	}
	if t.failed > 0 || t.passed == 0 {
		os.Exit(1)
	}
}

// read reads all files to their ends, or standard input if there are none.
func (t *tally) read(names []string) error {
	if len(names) == 0 {
		return t.lines(os.Stdin)
	}
	errs := make([]error, len(names))
	var g sync.WaitGroup
	for i, name := range names {
		g.Go(func() {
			f, err := os.Open(name)
			if err == nil {
				err = errors.Join(t.lines(f), f.Close())
			}
			errs[i] = err
		})
	}
	g.Wait()
	return errors.Join(errs...)
}

// lines takes the events of one run. Each file has packages of its own.
func (t *tally) lines(r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, lineMax), lineMax)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			t.add(e)
		}
	}
	return lines.Err()
}

func (t *tally) add(e event) {
	t.mu.Lock()
	defer t.mu.Unlock()
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
