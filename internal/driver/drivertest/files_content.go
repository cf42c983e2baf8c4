package drivertest

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"dayfly.dev/dayfly"
)

func contentIsBytes(t *testing.T, s *suite) {
	g := s.guest(t)
	var every, zipped bytes.Buffer
	for b := range 256 {
		every.Write(bytes.Repeat([]byte{byte(b)}, 4<<10))
	}
	w := gzip.NewWriter(&zipped)
	_, _ = w.Write(every.Bytes())
	_ = w.Close()
	for name, content := range map[string][]byte{
		"every byte": every.Bytes(), "gzip": zipped.Bytes(), "NUL and lone CR": []byte("a\x00b\rc\r\nd\n\x1a"), "half a character": []byte("caf\xc3"),
	} {
		t.Run(name, func(t *testing.T) {
			g.put(t, "f", content)
			if got, want := g.sh(t, "sha256sum <f"), fmt.Sprintf("%x  -\n", sha256.Sum256(content)); got != want {
				t.Errorf("inside it is another: %s", got)
			}
			if got := g.content(t, "f"); got != string(content) {
				t.Errorf("%d bytes came back, %d went in", len(got), len(content))
			}
		})
	}
}

func everySize(t *testing.T, s *suite) {
	g := s.guest(t)
	noise := make([]byte, 64<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	for _, size := range []int{0, 1, 127 << 10, 129 << 10, 1 << 20, len(noise)} {
		info := g.put(t, "deep/er/f", noise[:size])
		if info.SizeBytes != int64(size) || info.Mode != 0o644 || info.Type != dayfly.FileRegular {
			t.Errorf("%+v", info)
		}
		if got, want := g.sh(t, "sha256sum <deep/er/f"), fmt.Sprintf("%x  -\n", sha256.Sum256(noise[:size])); got != want {
			t.Errorf("%d bytes: inside they are others", size)
		}
	}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			_, err := g.Write(ctx(t), fmt.Sprintf("p%d", i), nil, bytes.NewReader(noise[i:1<<20]))
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i := range 20 {
		if got := g.content(t, fmt.Sprintf("p%d", i)); got != string(noise[i:1<<20]) {
			t.Errorf("file %d of 20 at once is another", i)
		}
	}
	wholeOrNothing(t, g)
}

// wholeOrNothing replaces a file while a command reads it over and over: it sees the old one or the new one.
func wholeOrNothing(t *testing.T, g *guest) {
	t.Helper()
	sides := [][]byte{bytes.Repeat([]byte("a"), 300_000), bytes.Repeat([]byte("b"), 300_000)}
	g.put(t, "swap", sides[0])
	stream, p := g.begin(t, shell(`echo up; while ! test -e stop; do
		case $(wc -c <swap)$(tr -d a <swap | wc -c)$(tr -d b <swap | wc -c) in 300000*) ;; *) echo torn; exit 1;; esac; done; echo whole`))
	line(t, stream)
	for i := range 100 {
		g.put(t, "swap", sides[i%2])
	}
	g.put(t, "stop", nil)
	if r, err := g.Result(ctx(t), p.ID); err != nil || !strings.HasSuffix(kept(r.Stdout), "whole\n") {
		t.Errorf("a reader saw %q, %v", kept(r.Stdout), err)
	}
}

// zeros is a reader of so many zero bytes that holds none of them.
func zeros(n int64) io.Reader { return io.LimitReader(zero{}, n) }

type zero struct{}

func (zero) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// largeFilesFlow moves more bytes each way than either end may hold.
func largeFilesFlow(t *testing.T, s *suite) {
	const size, nodeMax, agentMax = 256 << 20, 32 << 20, 64 << 20
	g := s.guest(t, func(spec *dayfly.InstanceSpec) { spec.Limits.MemoryBytes = 4 * size }) // a test's disk may be in memory
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	info, err := g.Write(ctx(t), "big", nil, zeros(size))
	if dayfly.ErrorCode(err) == dayfly.CodeDiskFull {
		t.Skip("this host's disk has no room for it")
	}
	if err != nil || info.SizeBytes != size {
		t.Fatalf("%+v, %v", info, err)
	}
	_, r, err := g.Read(ctx(t), "big", dayfly.FileRange{Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := io.Copy(io.Discard, r); n != size || err != nil {
		t.Errorf("%d bytes came back, %v", n, err)
	}
	runtime.ReadMemStats(&after)
	if taken := int64(after.Sys) - int64(before.Sys); taken > nodeMax {
		t.Errorf("the node's end took %d MiB for %d", taken>>20, size>>20)
	}
	if rss := g.agentBytes(t); rss > agentMax {
		t.Errorf("the agent has %d MiB", rss>>20)
	}
	// A reader that leaves in the middle, or is slow, hurts nobody.
	_, slow, err := g.Read(ctx(t), "big", dayfly.FileRange{Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, slow, 1<<20); err != nil {
		t.Error(err)
	}
	if got := g.sh(t, "rm big; echo ok"); got != "ok\n" {
		t.Errorf("beside a slow reader: %q", got)
	}
	_ = slow.Close()
}

func cutUpload(t *testing.T, s *suite) {
	g := s.guest(t)
	g.put(t, "d/f", []byte("old"))
	fault := errors.New("the client's disk failed")
	half := io.MultiReader(zeros(1<<20), failing{fault})
	if _, err := g.Write(ctx(t), "d/f", nil, half); !errors.Is(err, fault) {
		t.Errorf("an upload that fails in the middle: %v", err)
	}
	left, cancel := context.WithCancel(ctx(t))
	slow, w := newPipe(t)
	go func() {
		_, _ = w.Write(make([]byte, 1<<20))
		cancel()
	}()
	if _, err := g.Write(left, "d/new", nil, slow); !errors.Is(err, context.Canceled) {
		t.Errorf("an upload whose client left: %v", err)
	}
	eventually(t, "nothing of them is left", func() bool { return g.sh(t, "ls -A d") == "f\n" })
	if got := g.content(t, "d/f"); got != "old" {
		t.Errorf("the file holds %.20q", got)
	}
}

// failing is a reader that fails.
type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

func emptyFiles(t *testing.T, s *suite) {
	g := s.guest(t)
	g.sh(t, "mkdir d; : >d/made")
	if info := g.put(t, "d/put", nil); info.SizeBytes != 0 {
		t.Errorf("%+v", info)
	}
	for _, name := range []string{"d/made", "d/put"} {
		info, err := g.Stat(ctx(t), name)
		if got := g.content(t, name); got != "" || err != nil || info.SizeBytes != 0 || info.Type != dayfly.FileRegular {
			t.Errorf("%s: %q, %+v, %v", name, got, info, err)
		}
	}
	if all := g.list(t, "d", false, 10); len(all) != 2 {
		t.Errorf("%+v", all)
	}
	if got := g.content(t, "/proc/uptime"); len(strings.Fields(got)) != 2 {
		t.Errorf("/proc/uptime: %q", got)
	}
}
