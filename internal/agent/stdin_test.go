package agent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agent"
)

// open is a shell command whose stdin stays open.
func open(command string) dayfly.ProcessSpec {
	s := shell(command)
	s.OpenStdin, s.Follow = true, true
	return s
}

func TestStdinInPieces(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		s := open("sha256sum")
		stream := m.start1(t, s)
		sum := sha256.New()
		for i := range 40 {
			piece := bytes.Repeat([]byte{byte(i)}, i*37_000)
			sum.Write(piece)
			if err := m.WriteStdin(t.Context(), s.ID, bytes.NewReader(piece), false); err != nil {
				t.Fatal(err)
			}
		}
		m.typeIn(t, s.ID, "", true) // closing is a write of nothing
		if got, _ := collect(t, stream, 0); got != fmt.Sprintf("%x  -\n", sum.Sum(nil)) {
			t.Errorf("got %q", got)
		}
	})
}

// TestStdinTakenWhole: a command that takes its input and ends at once has taken it; that it ended before the input could be
// closed is no conflict.
func TestStdinTakenWhole(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		for range 200 {
			s := open("read x; exit 0")
			stream := m.start1(t, s)
			m.typeIn(t, s.ID, "\n", true)
			collect(t, stream, 0)
		}
	})
}

// counted counts what is read of an endless input.
type counted struct{ n *atomic.Int64 }

func (c counted) Read(p []byte) (int, error) { c.n.Add(int64(len(p))); return len(p), nil }

func TestStdinOfOneThatNeverReads(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		s := open("echo up; sleep 600")
		stream := m.start1(t, s)
		until(t, stream, "up")
		var taken atomic.Int64
		fed := make(chan error, 1)
		go func() { fed <- m.WriteStdin(t.Context(), s.ID, counted{&taken}, false) }()
		var last int64
		eventually(t, "the client is held", func() bool {
			m.run(t, shell("sleep 0.05")) // other requests go on meanwhile
			same := taken.Load() == last && last > 0
			last = taken.Load()
			return same
		})
		if last > 4<<20 {
			t.Errorf("%d bytes were taken from the client", last)
		}
		waiting, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := m.WriteStdin(waiting, s.ID, strings.NewReader("x"), true); err == nil {
			t.Error("a second writer did not wait for its turn")
		}
		if err := m.Signal(t.Context(), s.ID, "KILL", true); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-fed:
			wantCode(t, err, dayfly.CodeConflict)
		case <-time.After(testLimit):
			t.Fatal("the client is held after the end")
		}
	})
}

func TestBrokenStdin(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		s := open("exec 0<&-; echo closed; sleep 600")
		stream := m.start1(t, s)
		until(t, stream, "closed")
		wantCode(t, m.WriteStdin(t.Context(), s.ID, strings.NewReader(strings.Repeat("x", 1<<20)), false), dayfly.CodeConflict)
		if err := m.Signal(t.Context(), s.ID, "KILL", true); err != nil {
			t.Fatal(err)
		}
		none := shell("sleep 600")
		m.start1(t, none)
		wantCode(t, m.WriteStdin(t.Context(), none.ID, strings.NewReader("x"), false), dayfly.CodeConflict)
		if err := m.Signal(t.Context(), none.ID, "KILL", true); err != nil {
			t.Fatal(err)
		}
		broken := open("cat")
		stream = m.start1(t, broken)
		if err := m.WriteStdin(t.Context(), broken.ID, io.MultiReader(strings.NewReader("half"), failing{}), true); !errors.Is(err, errBroken) {
			t.Errorf("a client's own failure is %v", err)
		}
		m.typeIn(t, broken.ID, " whole", true) // it was not closed by that
		if got, _ := collect(t, stream, 0); got != "half whole" {
			t.Errorf("got %q", got)
		}
	})
}

func TestManyAtOnce(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		start := time.Now()
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				if r := m.run(t, shell("printf late")); out(r.Stdout) != "late" {
					t.Errorf("bug 40: %q", out(r.Stdout))
				}
			})
		}
		all.Wait()
		t.Logf("200 at once: %s", time.Since(start))
	})
}

func TestLastBytesAThousandTimes(t *testing.T) {
	m := startAgent(t, options{cgroup: os.Getuid() == 0})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 250 {
				if got := out(m.run(t, argv("printf", "late")).Stdout); got != "late" {
					t.Errorf("bug 40: %q", got)
				}
			}
		})
	}
	all.Wait()
}

func TestAGibibyte(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 2 GiB")
	}
	m := startAgent(t, options{cgroup: os.Getuid() == 0, config: agent.Config{MemoryBytes: 512 << 20}})
	pid := m.cmd.Process.Pid
	start := time.Now()
	r := m.run(t, shell("head -c 1073741824 /dev/zero; printf END"))
	if r.Stdout.Bytes != 1<<30+3 || !bytes.HasSuffix(r.Stdout.Tail, []byte("END")) {
		t.Errorf("bug 15: %d bytes", r.Stdout.Bytes)
	}
	t.Logf("captured in %s, the agent has %d KiB", time.Since(start), rssBytes(t, pid)>>10)
	start = time.Now()
	s := shell("head -c 1073741824 /dev/zero; printf END")
	s.Follow = true
	stream := m.start1(t, s)
	var total int64
	for {
		o, err := stream.Next()
		if err != nil || o.Kind == dayfly.OutputDropped {
			t.Fatalf("%+v, %v", o, err)
		}
		if o.Kind == dayfly.OutputExit {
			break
		}
		total += int64(len(o.Data))
	}
	if total != 1<<30+3 {
		t.Errorf("%d bytes were streamed", total)
	}
	rss := rssBytes(t, pid)
	t.Logf("streamed in %s, the agent has %d KiB", time.Since(start), rss>>10)
	if rss > 32<<20 {
		t.Errorf("bug 15: the agent has %d bytes", rss)
	}
}

// TestStdinAtAnOffset: what a process has already is skipped, also when a break cut it anywhere, and a gap is refused.
func TestStdinAtAnOffset(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		all := make([]byte, 300_000)
		for i := range all {
			all[i] = byte(i * 7 / 3)
		}
		s := open("sha256sum")
		stream := m.start1(t, s)
		write := func(offset int64, r io.Reader, closeAfter bool, want int64) {
			t.Helper()
			if n, err := m.WriteStdinAt(t.Context(), s.ID, offset, r, closeAfter); err != nil || n != want {
				t.Fatalf("at %d: %d, %v, want %d", offset, n, err, want)
			}
		}
		write(dayfly.StdinNext, strings.NewReader(""), false, 0)
		write(0, bytes.NewReader(all[:1000]), false, 1000)
		write(0, bytes.NewReader(all[:1000]), false, 1000) // the answer was lost
		write(10, bytes.NewReader(all[10:200_000]), false, 200_000)
		if _, err := m.WriteStdinAt(t.Context(), s.ID, 200_000, io.MultiReader(bytes.NewReader(all[200_000:250_000]), failing{}), true); err == nil {
			t.Error("a break was not told")
		}
		if _, err := m.WriteStdinAt(t.Context(), s.ID, 250_001, strings.NewReader("gap"), false); dayfly.ErrorCode(err) != dayfly.CodeConflict ||
			!strings.Contains(err.Error(), "250000") {
			t.Errorf("a gap: %v", err)
		}
		write(200_000, bytes.NewReader(all[200_000:]), false, int64(len(all)))
		write(200_000, bytes.NewReader(all[200_000:]), true, int64(len(all)))
		if got, _ := collect(t, stream, 0); got != fmt.Sprintf("%x  -\n", sha256.Sum256(all)) {
			t.Errorf("got %q", got)
		}
		if _, err := m.WriteStdinAt(t.Context(), s.ID, 0, bytes.NewReader(append(all, 'x')), true); dayfly.ErrorCode(err) != dayfly.CodeConflict {
			t.Errorf("more after the end: %v", err)
		}
	})
}
