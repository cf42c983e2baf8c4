package agent_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agentwire"
)

// follow starts a command and collects its stdout; offsets must have no gap.
func follow(t testing.TB, c *agentwire.Client, s dayfly.ProcessSpec) (string, dayfly.Exit) {
	t.Helper()
	stream, _, err := c.Start(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	return collect(t, stream, 0)
}

func collect(t testing.TB, stream dayfly.OutputStream, from int64) (string, dayfly.Exit) {
	t.Helper()
	var b strings.Builder
	for {
		o, err := stream.Next()
		if err != nil {
			t.Fatalf("after %d bytes: %v", b.Len(), err)
		}
		switch o.Kind {
		case dayfly.OutputStdout:
			if o.Offset != from+int64(b.Len()) {
				t.Fatalf("offset %d after %d bytes", o.Offset, b.Len())
			}
			b.Write(o.Data)
		case dayfly.OutputDropped:
			t.Fatalf("dropped %d at %d", o.Bytes, o.Offset)
		case dayfly.OutputExit:
			if _, err := stream.Next(); err != io.EOF {
				t.Fatalf("after the exit: %v", err)
			}
			return b.String(), *o.Exit
		}
	}
}

func TestLostConnection(t *testing.T) {
	m := startAgent(t, options{cgroup: os.Getuid() == 0})
	s := shell("for i in $(seq 100); do echo $i; sleep 0.02; done; exit 5")
	s.Follow = true
	c := m.connect(t)
	stream, p, err := c.Start(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	o, err := stream.Next()
	if err != nil {
		t.Fatal(err)
	}
	got := string(o.Data)
	_ = c.Close()
	for err == nil {
		if o, err = stream.Next(); err == nil {
			got += string(o.Data)
		}
	}
	if !errors.Is(err, agentwire.ErrLost) {
		t.Errorf("bug 42: the broken stream ended with %v", err)
	}
	_ = stream.Close()
	again, err := m.Output(t.Context(), p.ID, dayfly.Offsets{Stdout: int64(len(got))}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	rest, exit := collect(t, again, int64(len(got)))
	if want := out(m.run(t, shell("seq 100")).Stdout); got+rest != want || exit.Code != 5 {
		t.Errorf("bug 89: resumed to %q, code %d", got+rest, exit.Code)
	}
	r, err := m.Result(t.Context(), p.ID)
	if err != nil || r.Exit.Code != 5 || out(r.Stdout) != got+rest {
		t.Errorf("result %+v, %v", r.Exit, err)
	}
	_, err = m.Output(t.Context(), p.ID, dayfly.Offsets{Stdout: 1 << 30}, true)
	wantCode(t, err, dayfly.CodeInvalid)
}

func TestBackPressure(t *testing.T) {
	m := startAgent(t, options{cgroup: os.Getuid() == 0})
	const n = 8 << 20
	s := shell(fmt.Sprintf("head -c %d /dev/urandom | tee copy", n))
	s.Follow = true
	stream, p, err := m.Start(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var last int64
	eventually(t, "the command waits for its reader", func() bool {
		rec, err := m.Process(t.Context(), p.ID)
		if err != nil {
			t.Fatal(err)
		}
		same := rec.StdoutBytes == last && last > 0
		last = rec.StdoutBytes
		m.run(t, shell("sleep 0.05"))
		return same
	})
	if last > 4<<20 {
		t.Errorf("%d bytes were taken from the command while nobody read", last)
	}
	got, _ := collect(t, stream, 0)
	copied, err := os.ReadFile(filepath.Join(m.home, "copy"))
	if err != nil || got != string(copied) {
		t.Errorf("%d bytes arrived of %d", len(got), len(copied))
	}
}

func TestNobodyAttached(t *testing.T) {
	m := startAgent(t, options{cgroup: os.Getuid() == 0})
	s := shell("echo start; read x; head -c 8388608 /dev/zero; echo end")
	s.Follow, s.OpenStdin = true, true
	stream, p, err := m.Start(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Next(); err != nil {
		t.Fatal(err)
	}
	_ = stream.Close()
	if err := m.WriteStdin(t.Context(), p.ID, strings.NewReader("go\n"), false); err != nil {
		t.Fatal(err)
	}
	if r, err := m.Result(t.Context(), p.ID); err != nil || r.Exit.StdoutBytes != 8388608+10 {
		t.Fatalf("%+v, %v", r.Exit, err)
	}
	again, err := m.Output(t.Context(), p.ID, dayfly.Offsets{Stdout: 6}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	var at, dropped int64 = 6, 0
	for {
		o, err := again.Next()
		if err != nil {
			t.Fatal(err)
		}
		if o.Kind == dayfly.OutputExit {
			break
		}
		if o.Offset != at {
			t.Fatalf("offset %d, want %d", o.Offset, at)
		}
		at += int64(len(o.Data)) + o.Bytes
		dropped += o.Bytes
	}
	if at != 8388608+10 || dropped == 0 {
		t.Errorf("replayed to %d with %d dropped", at, dropped)
	}
}
