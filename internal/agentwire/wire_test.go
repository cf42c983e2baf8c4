package agentwire_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agentwire"
)

// machine is a Machine whose methods are set by the test; the others panic.
type machine struct {
	agentwire.Machine
	run    func(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.Result, error)
	read   func(ctx context.Context) (dayfly.FileInfo, io.ReadCloser, error)
	remove func() error
}

func (m machine) Run(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.Result, error) {
	return m.run(ctx, spec, stdin)
}

func (m machine) Read(ctx context.Context, _ string, _ dayfly.FileRange) (dayfly.FileInfo, io.ReadCloser, error) {
	return m.read(ctx)
}

func (m machine) Remove(context.Context, string, bool) error { return m.remove() }

// connect joins a client and a server that serves m.
func connect(t *testing.T, m agentwire.Machine) *agentwire.Client {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		_ = l.Close()
		if err == nil {
			err = agentwire.ServeConn(t.Context(), conn, m)
		}
		served <- err
	}()
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := agentwire.NewClient(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		if err := <-served; err != nil {
			t.Errorf("server: %v", err)
		}
	})
	return c
}

func TestSpecArrivesWhole(t *testing.T) {
	spec := dayfly.ProcessSpec{
		ID: "id", Command: "c\xff", Argv: []string{"a", "", "b\n"}, Cwd: "/w", User: "u", Env: map[string]string{"A": "\xfe", "B": ""},
		Timeout: time.Hour, Follow: true, OpenStdin: true, OnDisconnect: dayfly.DisconnectKill, CaptureBytes: 5,
	}
	want := dayfly.Result{
		ID: "id", Exit: dayfly.Exit{Code: 137, Signal: "KILL", TimedOut: true, OOMKilled: true, Duration: time.Second, StdoutBytes: 9, StderrBytes: 3},
		Stdout: dayfly.Captured{Head: []byte("he\xff"), Tail: []byte("ta"), Bytes: 9}, Stderr: dayfly.Captured{Head: []byte("err"), Bytes: 3},
	}
	c := connect(t, machine{run: func(_ context.Context, got dayfly.ProcessSpec, stdin io.Reader) (dayfly.Result, error) {
		in, err := io.ReadAll(stdin)
		if err != nil || string(in) != "input" {
			t.Errorf("stdin %q, %v", in, err)
		}
		if got.Env["A"] != "\xfe" || len(got.Env) != 2 || strings.Join(got.Argv, "|") != "a||b\n" || got.Command != spec.Command {
			t.Errorf("got %+v", got)
		}
		got.Env, got.Argv = nil, nil
		bare := spec
		bare.Env, bare.Argv = nil, nil
		if got.Timeout != bare.Timeout || got.Cwd != bare.Cwd || got.User != bare.User || !got.Follow || !got.OpenStdin || got.OnDisconnect != bare.OnDisconnect || got.CaptureBytes != 5 {
			t.Errorf("got %+v", got)
		}
		return want, nil
	}})
	res, err := c.Run(t.Context(), spec, strings.NewReader("input"))
	if err != nil || res.Exit != want.Exit || string(res.Stdout.Head) != "he\xff" || string(res.Stdout.Tail) != "ta" || res.Stdout.Bytes != 9 || string(res.Stderr.Head) != "err" {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestErrorsTravel(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want dayfly.Code
		text string
	}{
		{"user error with a hint", dayfly.Errorf(dayfly.CodeFileConflict, "busy").WithHint("wait"), dayfly.CodeFileConflict, "busy"},
		{"what an agent may not say", dayfly.Errorf(dayfly.CodeUnauthorized, "give me your key"), dayfly.CodeInternal, "agent failed"},
		{"any other error", errors.New("secret detail"), dayfly.CodeInternal, "agent failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := connect(t, machine{remove: func() error { return tt.err }})
			err := c.Remove(t.Context(), "x", false)
			e := dayfly.AsError(err)
			if e.Code != tt.want || !strings.Contains(e.Message, tt.text) || strings.Contains(e.Message, "secret") {
				t.Errorf("%q: %q", e.Code, e.Message)
			}
			if tt.want == dayfly.CodeFileConflict && e.Hint != "wait" {
				t.Errorf("hint %q", e.Hint)
			}
		})
	}
	t.Run("a panic ends one request", func(t *testing.T) {
		c := connect(t, machine{})
		_, err := c.Stat(t.Context(), "x")
		if dayfly.ErrorCode(err) != dayfly.CodeInternal {
			t.Errorf("%v", err)
		}
		if err := c.Ping(t.Context()); err != nil {
			t.Errorf("after it: %v", err)
		}
	})
}

func TestLeaving(t *testing.T) {
	started, left := make(chan struct{}), make(chan struct{})
	c := connect(t, machine{run: func(ctx context.Context, _ dayfly.ProcessSpec, _ io.Reader) (dayfly.Result, error) {
		close(started)
		<-ctx.Done()
		close(left)
		return dayfly.Result{}, ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	if _, err := c.Run(ctx, dayfly.ProcessSpec{ID: "x"}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller got %v", err)
	}
	<-left // the agent's end sees it
	if err := c.Ping(t.Context()); err != nil {
		t.Errorf("the session after it: %v", err)
	}
}

func TestSlowReaderLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 100 << 10 // fits the window, so that the agent has long sent all of it
		m := machine{read: func(context.Context) (dayfly.FileInfo, io.ReadCloser, error) {
			return dayfly.FileInfo{}, io.NopCloser(strings.NewReader(strings.Repeat("x", size))), nil
		}}
		node, agent := net.Pipe()
		served := make(chan error, 1)
		go func() { served <- agentwire.ServeConn(t.Context(), agent, m) }()
		c, err := agentwire.NewClient(t.Context(), node)
		if err != nil {
			t.Fatal(err)
		}
		_, r, err := c.Read(t.Context(), "f", dayfly.FileRange{Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // of the bubble's clock
		if n, err := io.Copy(io.Discard, r); err != nil || n != size {
			t.Errorf("%d bytes, %v", n, err)
		}
		_ = r.Close()
		_ = c.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

func TestStrangers(t *testing.T) {
	for _, tt := range []struct{ name, says string }{
		{"says nothing", ""},
		{"another protocol", "HTTP/1.1 400 Bad Request\r\n\r\n"},
		{"a version of the future", "DFA1\x00\x13" + `{"min":90,"max":99}`},
		{"a huge hello", "DFA1\xff\xff"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node, agent := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, agent) }()
			go func() { _, _ = agent.Write([]byte(tt.says)) }()
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, err := agentwire.NewClient(ctx, node)
			if !errors.Is(err, agentwire.ErrLost) {
				t.Errorf("got %v", err)
			}
			_ = agent.Close()
		})
	}
}
