package agent_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// sourceTree is the sources of Go itself: about 10,000 real files.
func sourceTree(b *testing.B) string {
	b.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	src := filepath.Join(strings.TrimSpace(string(root)), "src")
	if _, statErr := os.Stat(filepath.Join(src, "runtime")); err != nil || statErr != nil {
		b.Skip("the sources of Go are not here")
	}
	return src
}

// inTurns runs two things in turns, so that other load meets both, and reports their medians and the ratio.
func inTurns(b *testing.B, bare, ours func()) {
	b.Helper()
	var times [2][]time.Duration
	for b.Loop() {
		for i, do := range []func(){bare, ours} {
			start := time.Now()
			do()
			times[i] = append(times[i], time.Since(start))
		}
	}
	var median [2]float64
	for i := range times {
		slices.Sort(times[i])
		median[i] = float64(times[i][len(times[i])/2].Microseconds()) / 1000
	}
	b.ReportMetric(median[0], "bare-ms")
	b.ReportMetric(median[1], "ours-ms")
	b.ReportMetric(median[1]/median[0], "ratio")
}

// BenchmarkSearch compares a search with grep -rn, both from the page cache.
func BenchmarkSearch(b *testing.B) {
	src := sourceTree(b)
	m := startAgent(b, options{})
	for _, tt := range []struct {
		name string
		grep []string
		q    dayfly.SearchQuery
	}{
		{"literal", []string{"-F", "mheap_.lock"}, dayfly.SearchQuery{Pattern: "mheap_.lock", Literal: true}},
		{"ignore case", []string{"-Fi", "mheap_.lock"}, dayfly.SearchQuery{Pattern: "mheap_.lock", Literal: true, IgnoreCase: true}},
		{"expression", []string{"-E", `func \(h \*[a-z]+\) alloc[A-Z]`}, dayfly.SearchQuery{Pattern: `func \(h \*[a-z]+\) alloc[A-Z]`}},
		{"alternatives", []string{"-E", `runtime·rt0_go|sysmon_wait`}, dayfly.SearchQuery{Pattern: `runtime·rt0_go|sysmon_wait`}},
		{"no literal", []string{"-E", `[0-9][0-9][0-9]ms$`}, dayfly.SearchQuery{Pattern: `[0-9][0-9][0-9]ms$`}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			tt.q.Path, tt.q.Hidden, tt.q.Limit = src, true, dayfly.SearchLimitMax
			inTurns(b, func() {
				_ = exec.Command("grep", append(append([]string{"-rn"}, tt.grep...), src)...).Run()
			}, func() {
				if _, err := m.Search(b.Context(), tt.q); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

// BenchmarkFind compares a find with find(1).
func BenchmarkFind(b *testing.B) {
	src := sourceTree(b)
	m := startAgent(b, options{})
	inTurns(b, func() {
		_ = exec.Command("find", src, "-name", "*_linux_amd64.s").Run()
	}, func() {
		if _, _, err := m.Find(b.Context(), dayfly.FindQuery{Path: src, Names: []string{"*_linux_amd64.s"}, Limit: 1000}); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkArchiveUp compares unpacking a source tree with tar | tar.
func BenchmarkArchiveUp(b *testing.B) {
	src := sourceTree(b)
	m := startAgent(b, options{})
	archive, err := exec.Command("tar", "-C", src, "-c", ".").Output()
	if err != nil {
		b.Fatal(err)
	}
	bare, up := filepath.Join(m.home, "bare"), filepath.Join(m.home, "up")
	b.SetBytes(int64(len(archive)))
	inTurns(b, func() {
		_ = os.Mkdir(bare, 0o755)
		if out, err := exec.Command("sh", "-c", "tar -C "+src+" -c . | tar -C "+bare+" -x").CombinedOutput(); err != nil {
			b.Fatal(err, string(out))
		}
	}, func() {
		if err := m.WriteArchive(b.Context(), up, bytes.NewReader(archive)); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkArchiveUpNew is BenchmarkArchiveUp into a directory that is always new.
func BenchmarkArchiveUpNew(b *testing.B) {
	src := sourceTree(b)
	m := startAgent(b, options{})
	archive, err := exec.Command("tar", "-C", src, "-c", ".").Output()
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	inTurns(b, func() {
		n++
		bare := filepath.Join(m.home, "bare"+strconv.Itoa(n))
		_ = os.Mkdir(bare, 0o755)
		if out, err := exec.Command("sh", "-c", "tar -C "+src+" -c . | tar -C "+bare+" -x").CombinedOutput(); err != nil {
			b.Fatal(err, string(out))
		}
	}, func() {
		if err := m.WriteArchive(b.Context(), filepath.Join(m.home, "up"+strconv.Itoa(n)), bytes.NewReader(archive)); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkArchiveDown compares reading a source tree as a tar with tar -c.
func BenchmarkArchiveDown(b *testing.B) {
	src := sourceTree(b)
	m := startAgent(b, options{})
	inTurns(b, func() {
		if err := exec.Command("sh", "-c", "tar -C "+src+" -c . | cat > /dev/null").Run(); err != nil {
			b.Fatal(err)
		}
	}, func() {
		r, err := m.ReadArchive(b.Context(), src)
		if err == nil {
			_, err = io.Copy(io.Discard, r)
			_ = r.Close()
		}
		if err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkListLarge reads the first page of a directory of 100,000 entries.
func BenchmarkListLarge(b *testing.B) {
	m := startAgent(b, options{})
	dir := filepath.Join(m.home, "large")
	if err := os.Mkdir(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	for i := range 100_000 {
		fd, err := unix.Open(filepath.Join(dir, fmt.Sprintf("entry-%d.txt", i*7919%100_000)), unix.O_CREAT|unix.O_WRONLY, 0o644)
		if err != nil {
			b.Fatal(err)
		}
		_ = unix.Close(fd)
	}
	for _, limit := range []int{100, 1000} {
		b.Run(strconv.Itoa(limit), func(b *testing.B) {
			inTurns(b, func() { _ = exec.Command("ls", "-U", dir).Run() }, func() {
				page, next, err := m.List(b.Context(), dayfly.ListQuery{Path: dir, Limit: limit})
				if err != nil || len(page) != limit || next == "" {
					b.Fatal(len(page), err)
				}
			})
		})
	}
}
