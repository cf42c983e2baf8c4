package cli_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestRun(t *testing.T) {
	for _, tt := range []struct {
		name   string
		args   []string
		stdin  string
		code   int
		stdout string
		stderr string // part of it
	}{
		{"both outputs", []string{"run", "--", "sh", "-c", "echo out; echo err >&2"}, "", 0, "out\n", "err\n"},
		{"exit code", []string{"run", "sh", "-c", "exit 7"}, "", 7, "", ""},
		{"exit code 2, which is not a wrong use of run", []string{"run", "sh", "-c", "exit 2"}, "", 2, "", ""},
		{"exit code 1", []string{"run", "sh", "-c", "exit 1"}, "", 1, "", ""},
		{"flags of the command", []string{"run", "echo", "-n", "--keep"}, "", 0, "--keep", ""},
		{"stdin", []string{"run", "--", "cat"}, "a\x00\xff\n", 0, "a\x00\xff\n", ""},
		{"no stdin", []string{"run", "-n", "--", "cat"}, "lost", 0, "", ""},
		{"no such program", []string{"run", "--", "/nope"}, "", 127, "", ""},
		{"environment", []string{"run", "--env", "A=b c", "--", "sh", "-c", "echo $#"}, "", 0, "0\n", ""},
		{"lost output is no success", []string{"run", "--", "sh", "-c", "echo out #drop"}, "", 125, "out\n", "100 bytes of its output were lost"},
		{"a failure with lost output", []string{"run", "--", "sh", "-c", "exit 6 #drop"}, "", 6, "", "100 bytes of stdout are no longer kept"},
		{"refused", []string{"run", "--image", "full", "--", "true"}, "", 125, "", "dayfly: your account may have 1 live sandbox"},
		{"no command", []string{"run"}, "", 125, "", "the command to run is missing"},
		{"bad label", []string{"run", "--label", "x", "true"}, "", 125, "", "not key=value"},
		{"nothing to copy", []string{"run", "--cp", "none:x", "true"}, "", 125, "", "no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			code, stdout, stderr := s.dayfly(t, tt.stdin, tt.args...)
			if code != tt.code || stdout != tt.stdout || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
			}
			if len(s.live) != 0 || len(s.ended()) != s.n {
				t.Errorf("%d made, %d destroyed", s.n, len(s.ended()))
			}
		})
	}
}

func TestRunKeep(t *testing.T) {
	s := newServer(t)
	code, stdout, stderr := s.dayfly(t, "", "run", "--keep", "--", "echo", "x")
	if code != 0 || stdout != "x\n" || !strings.Contains(stderr, "sandbox sb00000000000000000001 is kept until ") || len(s.live) != 1 {
		t.Errorf("exit %d, stdout %q, stderr %q, %d live", code, stdout, stderr, len(s.live))
	}
}

func TestRunCopies(t *testing.T) {
	s := newServer(t)
	src := filepath.Join(t.TempDir(), "src")
	if err := os.MkdirAll(filepath.Join(src, "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(src, "deep", "f"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := s.dayfly(t, "", "run", "--cp", src+":work", "--", "cat", "work/deep/f")
	if code != 0 || stdout != "content" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

// TestRunLargeInput: input of many requests arrives whole and in order.
func TestRunLargeInput(t *testing.T) {
	s := newServer(t)
	in := bytes.Repeat([]byte("0123456789abcde\n"), 200<<10) // 3.2 MB
	code, stdout, stderr := s.dayfly(t, string(in), "run", "--", "sha256sum")
	if want := fmt.Sprintf("%x  -\n", sha256.Sum256(in)); code != 0 || stdout != want {
		t.Errorf("exit %d, stdout %q, want %q, stderr %q", code, stdout, want, stderr)
	}
	code, stdout, _ = s.dayfly(t, string(in), "run", "--", "head", "-c", "5") // reads only a little
	if code != 0 || stdout != "01234" {
		t.Errorf("exit %d, stdout %q", code, stdout)
	}
}

// openInput is an input that never ends and never gives anything.
func openInput(t *testing.T) io.Reader {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return r
}

func TestInputThatNeverEnds(t *testing.T) {
	s := newServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	c := newCommand(t, ctx, t.TempDir(), s.env(), "run", "--", "echo", "hi")
	if code := c.run(t, openInput(t)); code != 0 || c.stdout.String() != "hi\n" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, &c.stdout, &c.stderr)
	}
}

func (s *testServer) env() []string {
	return []string{"DAYFLY_URL=" + s.URL, "DAYFLY_API_KEY=" + testKey}
}

// TestSignals: whatever ends the command line, the sandbox is destroyed.
func TestSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			c := newCommand(t, ctx, t.TempDir(), s.env(), "run", "--", "sh", "-c", "echo up; exec sleep 60")
			up := make(chan struct{})
			c.Stdout = &notify{want: "up\n", seen: up}
			c.Stdin = openInput(t)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			<-up
			if err := c.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = c.Wait()
			if code := c.ProcessState.ExitCode(); code != 128+int(sig) {
				t.Errorf("exit %d, want %d; stderr %q", code, 128+int(sig), &c.stderr)
			}
			if len(s.ended()) != 1 {
				t.Errorf("%d sandboxes destroyed, want 1", len(s.ended()))
			}
		})
	}
}

// notify closes seen once want was written.
type notify struct {
	got  string
	want string
	seen chan struct{}
}

// Write implements io.Writer.
func (n *notify) Write(p []byte) (int, error) {
	before := strings.Contains(n.got, n.want)
	n.got += string(p)
	if !before && strings.Contains(n.got, n.want) {
		close(n.seen)
	}
	return len(p), nil
}

// TestReaderLeaves: like head, a reader of the output may leave; the sandbox is destroyed nevertheless.
func TestReaderLeaves(t *testing.T) {
	s := newServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	c := newCommand(t, ctx, t.TempDir(), s.env(), "run", "--", "yes")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout = w
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	_ = r.Close()
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 141 || len(s.ended()) != 1 || c.stderr.Len() > 0 {
		t.Errorf("exit %d, %d destroyed, stderr %q", code, len(s.ended()), &c.stderr)
	}
}

// TestExecSignal: Ctrl-C goes to the command, whose last words are shown and whose code is passed on; the sandbox stays.
func TestExecSignal(t *testing.T) {
	s := newServer(t)
	_, id, _ := s.dayfly(t, "", "create")
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	c := newCommand(t, ctx, t.TempDir(), s.env(), "exec", strings.TrimSpace(id), "--", "sh", "-c", `trap 'echo bye; exit 3' INT; echo up; while :; do read x || sleep 0.05; done`)
	up := make(chan struct{})
	out := &notify{want: "up\n", seen: up}
	c.Stdout = out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	<-up
	_ = c.Process.Signal(syscall.SIGINT)
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 3 || out.got != "up\nbye\n" || len(s.live) != 1 {
		t.Errorf("exit %d, stdout %q, stderr %q, %d live", code, out.got, &c.stderr, len(s.live))
	}
}

// TestExecSignalTwice: a command that ignores Ctrl-C is killed by the second one, and not before.
func TestExecSignalTwice(t *testing.T) {
	s := newServer(t)
	_, id, _ := s.dayfly(t, "", "create")
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	c := newCommand(t, ctx, t.TempDir(), s.env(), "exec", strings.TrimSpace(id), "--", "sh", "-c", `trap 'echo ignored' INT; echo up; while :; do sleep 0.05; done`)
	up, ignored := make(chan struct{}), make(chan struct{})
	c.Stdout = io.MultiWriter(&notify{want: "up\n", seen: up}, &notify{want: "ignored\n", seen: ignored})
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	<-up
	_ = c.Process.Signal(syscall.SIGINT)
	<-ignored
	_ = c.Process.Signal(syscall.SIGINT)
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 130 && code != 137 {
		t.Errorf("exit %d, stderr %q", code, &c.stderr)
	}
	if got := s.signals(); !slices.Equal(got, []string{"INT", "KILL"}) {
		t.Errorf("signals %v", got)
	}
}

// TestEndedMeanwhile: a sandbox that ends under its command is Dayfly's failure, with no exit code made up.
func TestEndedMeanwhile(t *testing.T) {
	s := newServer(t)
	_, id, _ := s.dayfly(t, "", "create")
	id = strings.TrimSpace(id)
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	c := newCommand(t, ctx, t.TempDir(), s.env(), "exec", id, "--", "sh", "-c", "echo up; exec sleep 60")
	up := make(chan struct{})
	c.Stdout = &notify{want: "up\n", seen: up}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	<-up
	if code, _, stderr := s.dayfly(t, "", "rm", id); code != 0 {
		t.Error(stderr)
	}
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 125 || !strings.Contains(c.stderr.String(), "the sandbox has ended") {
		t.Errorf("exit %d, stderr %q", code, &c.stderr)
	}
}

// TestInterruptedCall: Ctrl-C ends any command at once, with the code that says so and no error text.
func TestInterruptedCall(t *testing.T) {
	s := newServer(t)
	asked := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	}))
	t.Cleanup(silent.Close)
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	c := newCommand(t, ctx, t.TempDir(), s.env(), "ls", "--url", silent.URL)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	<-asked
	_ = c.Process.Signal(syscall.SIGTERM)
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 143 || c.stderr.Len() > 0 {
		t.Errorf("exit %d, stderr %q", code, &c.stderr)
	}
}
