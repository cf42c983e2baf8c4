package dayfly_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dayfly "dayfly.dev/dayfly/sdk/go"
)

const execRoute = "POST /v1/sandboxes/{id}/exec"

func TestExecPlain(t *testing.T) {
	s := newServer(t)
	raw := "caf\xe9\x00"
	s.mux.HandleFunc(execRoute, func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		reply(w, 200, map[string]any{"id": "pr1", "exit_code": 3, "signal": nil, "stdout": "caf�\x00",
			"stdout_b64": base64.StdEncoding.EncodeToString([]byte(raw)), "stderr": "bad ☕", "truncated": true, "stdout_bytes": 5})
	})
	res, err := s.sandbox().Exec(t.Context(), dayfly.Command("x"), dayfly.ExecOptions{
		Stdin: strings.NewReader("in\n"), Timeout: time.Second, Env: map[string]string{"A": "$(b)"}, Cwd: "/w"})
	if err != nil {
		t.Fatal(err)
	}
	if res.Stdout != raw || res.Stderr != "bad ☕" || res.ExitCode != 3 || !res.Truncated {
		t.Errorf("got %+v", res)
	}
	want := `{"command":"x","cwd":"/w","env":{"A":"$(b)"},"stdin":"in\n","timeout_ms":1000}`
	if got := s.requests()[0].body; got != want {
		t.Errorf("body = %s, want %s", got, want)
	}
	_, err = s.sandbox().Exec(t.Context(), dayfly.Command("x"), dayfly.ExecOptions{Check: true})
	var exit *dayfly.ExitError
	if !errors.As(err, &exit) || exit.Result.ExitCode != 3 || !strings.Contains(err.Error(), "bad ☕") {
		t.Errorf("check: %v", err)
	}
	if _, err := s.sandbox().Exec(t.Context(), dayfly.Argv("a", "\xff"), dayfly.ExecOptions{}); dayfly.ErrorCode(err) != dayfly.CodeInvalid {
		t.Errorf("an argument that JSON cannot carry: %v", err)
	}
}

// TestStreamResumes cuts the connection at several places; every byte must arrive once, and the exit be seen.
func TestStreamResumes(t *testing.T) {
	out := []string{`{"type":"stdout","offset":0,"data":"abc"}`, `{"type":"stderr","offset":0,"data_b64":"/w=="}`, `{"type":"stdout","offset":3,"data":"def"}`}
	exit := `{"type":"exit","id":"pr1","exit_code":7,"signal":null}`
	start := `{"type":"start","id":"pr1"}`
	for _, tt := range []struct {
		name    string
		first   func(w http.ResponseWriter)
		resumed string // query of the first resume, or empty for another POST
	}{
		{"before the start event", func(w http.ResponseWriter) { lines(w, `{"type":"ping"}`); cut(w) }, ""},
		{"between events", func(w http.ResponseWriter) { lines(w, start, out[0], out[1]); cut(w) }, "follow=true&stderr_offset=1&stdout_offset=3"},
		{"within an event", func(w http.ResponseWriter) {
			lines(w, start, out[0])
			_, _ = w.Write([]byte(out[1][:20]))
			w.(http.Flusher).Flush()
			cut(w)
		}, "follow=true&stderr_offset=0&stdout_offset=3"},
		{"a clean end without exit", func(w http.ResponseWriter) { lines(w, start, out[0]) }, "follow=true&stderr_offset=0&stdout_offset=3"},
		{"a restarting server says so", func(w http.ResponseWriter) {
			lines(w, start, `{"type":"error","error":{"type":"unavailable","message":"draining","status":503}}`)
		}, "follow=true&stderr_offset=0&stdout_offset=0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			var posts, gets atomic.Int32
			s.mux.HandleFunc(execRoute, func(w http.ResponseWriter, r *http.Request) {
				s.record(r)
				if posts.Add(1) == 1 {
					tt.first(w)
					return
				}
				lines(w, append(append([]string{start}, out...), exit)...)
			})
			s.mux.HandleFunc("GET /v1/sandboxes/{id}/processes/pr1/output", func(w http.ResponseWriter, r *http.Request) {
				s.record(r)
				if gets.Add(1) == 1 {
					fail(w, 503, "unavailable", "starting")
					return
				}
				// More than was asked for: what is known already must not come twice.
				lines(w, append(append([]string{start}, out...), exit)...)
			})
			var stdout, stderr bytes.Buffer
			got, err := s.sandbox().ExecTo(t.Context(), dayfly.Argv("x"), dayfly.ExecOptions{}, &stdout, &stderr)
			if err != nil {
				t.Fatal(err)
			}
			if got.ExitCode != 7 || stdout.String() != "abcdef" || stderr.String() != "\xff" {
				t.Errorf("exit %+v, stdout %q, stderr %q", got, &stdout, &stderr)
			}
			seen := s.requests()
			if tt.resumed == "" {
				if len(seen) != 2 || seen[0].key != seen[1].key || seen[0].key == "" {
					t.Errorf("requests %v, want the same POST twice", seen)
				}
				return
			}
			if !strings.HasSuffix(seen[1].uri, "?"+tt.resumed) {
				t.Errorf("resumed at %s, want %s", seen[1].uri, tt.resumed)
			}
		})
	}
}

func TestStreamFails(t *testing.T) {
	for _, tt := range []struct {
		name  string
		write func(w http.ResponseWriter)
		code  dayfly.Code
	}{
		{"the sandbox ended", func(w http.ResponseWriter) {
			lines(w, `{"type":"start","id":"pr1"}`, `{"type":"error","error":{"type":"gone","message":"its lease ended","status":410}}`)
		}, dayfly.CodeGone},
		{"not JSON", func(w http.ResponseWriter) { lines(w, `{"type":"start","id":"pr1"}`, "<html>") }, dayfly.CodeBadAnswer},
		{"the record is gone", func(w http.ResponseWriter) { lines(w, `{"type":"start","id":"pr9"}`); cut(w) }, dayfly.CodeGone},
		{"refused", func(w http.ResponseWriter) { fail(w, 409, "sandbox_not_running", "paused") }, dayfly.CodeNotRunning},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.mux.HandleFunc(execRoute, func(w http.ResponseWriter, r *http.Request) { tt.write(w) })
			s.mux.HandleFunc("GET /v1/sandboxes/{id}/processes/pr9/output", func(w http.ResponseWriter, r *http.Request) { fail(w, 410, "gone", "dropped") })
			exit, err := s.sandbox().ExecTo(t.Context(), dayfly.Argv("x"), dayfly.ExecOptions{}, io.Discard, io.Discard)
			if dayfly.ErrorCode(err) != tt.code || exit != nil {
				t.Errorf("got %+v, %v (%q), want %q", exit, err, dayfly.ErrorCode(err), tt.code)
			}
		})
	}
}

// TestStreamTellsLoss: output that the server no longer keeps is an event, also when the server forgets to say so.
func TestStreamTellsLoss(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc(execRoute, func(w http.ResponseWriter, r *http.Request) {
		lines(w, `{"type":"start","id":"pr1"}`, `{"type":"dropped","stream":"stdout","offset":0,"bytes":10}`,
			`{"type":"stdout","offset":10,"data":"a"}`, `{"type":"stdout","offset":20,"data":"b"}`, `{"type":"exit","exit_code":0}`)
	})
	st, err := s.sandbox().ExecStream(t.Context(), dayfly.Argv("x"), dayfly.ExecOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for ev, err := range st.All() {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s@%d+%d%s", ev.Type, ev.Offset, ev.Bytes, ev.Data))
	}
	want := "[start@0+0 dropped@0+10 stdout@10+0a dropped@11+9 stdout@20+0b exit@0+0]"
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := st.Next(); err != nil && !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v, want io.EOF", err)
	}
}

// What a stdinServer is like.
const (
	stdinCounts = "counts input"
	stdinOld    = "of a time before offsets"
	stdinBreaks = "counts, loses an answer, and cuts a piece in the middle"
	stdinOldCut = "of a time before offsets, and loses an answer"
	stdinShared = "counts, and somebody else writes too"
)

// stdinServer plays a command that copies its input to its output.
func stdinServer(t *testing.T, kind string) *testServer {
	s := newServer(t)
	input, done := make(chan []byte, 64), make(chan struct{})
	var once sync.Once
	var mu sync.Mutex
	delivered := map[string]bool{} // by idempotency key
	has, pieces := 0, 0
	s.mux.HandleFunc(execRoute, func(w http.ResponseWriter, r *http.Request) {
		if q := s.record(r); !strings.Contains(q.body, `"stdin_open":true`) {
			t.Errorf("body = %s, want stdin_open", q.body)
		}
		lines(w, `{"type":"start","id":"pr1"}`)
		n := 0
		for {
			select {
			case b := <-input:
				lines(w, fmt.Sprintf(`{"type":"stdout","offset":%d,"data_b64":%q}`, n, base64.StdEncoding.EncodeToString(b)))
				n += len(b)
			case <-done:
				for len(input) > 0 {
					b := <-input
					lines(w, fmt.Sprintf(`{"type":"stdout","offset":%d,"data_b64":%q}`, n, base64.StdEncoding.EncodeToString(b)))
					n += len(b)
				}
				lines(w, `{"type":"exit","exit_code":0}`)
				return
			case <-r.Context().Done():
				return
			}
		}
	})
	s.mux.HandleFunc("POST /v1/sandboxes/{id}/processes/pr1/stdin", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		key, query := r.Header.Get("Idempotency-Key"), r.URL.Query()
		mu.Lock()
		defer mu.Unlock()
		breaks := false
		if len(body) > 0 {
			pieces++
			breaks = pieces == 2 && (kind == stdinBreaks || kind == stdinOldCut) || pieces == 3 && kind == stdinBreaks
		}
		if at := query.Get("offset"); at != "" {
			offset, err := strconv.Atoi(at)
			if err != nil || offset > has || kind == stdinOld || kind == stdinOldCut {
				t.Errorf("offset %s of %d", at, has)
			}
			body = body[min(len(body), has-offset):]
		} else if delivered[key] {
			body = nil
		}
		if pieces == 3 && breaks {
			body = body[:len(body)/2]
		}
		delivered[key] = true
		if len(body) > 0 {
			input <- body
			has += len(body)
		}
		if breaks {
			cut(w)
			return
		}
		answer := map[string]any{"id": "pr1"}
		if kind != stdinOld && kind != stdinOldCut {
			answer["stdin_bytes"] = has
		}
		if kind == stdinShared && pieces > 0 {
			answer["stdin_bytes"] = has + 1
		}
		reply(w, 200, answer)
		if r.URL.Query().Get("close") == "true" {
			once.Do(func() { close(done) })
		}
	})
	return s
}

func TestStdin(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, tt := range []struct {
		name  string
		in    []byte
		kind  string
		fails dayfly.Code
		plain bool // through Exec, which chooses the way
	}{
		{"empty", nil, stdinCounts, "", false},
		{"every byte", all, stdinCounts, "", false},
		{"large", bytes.Repeat(all, 8<<10), stdinCounts, "", false},
		{"breaks", bytes.Repeat(all, 32<<10), stdinBreaks, "", false},
		{"large to an old server", bytes.Repeat(all, 8<<10), stdinOld, "", false},
		{"an answer of an old server is lost", bytes.Repeat(all, 32<<10), stdinOldCut, dayfly.CodeUnreachable, false},
		{"somebody else writes", bytes.Repeat(all, 32<<10), stdinShared, dayfly.CodeLocal, false},
		{"binary through Exec", all, stdinCounts, "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := stdinServer(t, tt.kind)
			var got string
			if tt.plain {
				res, err := s.sandbox().Exec(t.Context(), dayfly.Argv("cat"), dayfly.ExecOptions{Stdin: bytes.NewReader(tt.in)})
				if err != nil {
					t.Fatal(err)
				}
				got = res.Stdout
			} else {
				var out bytes.Buffer
				_, err := s.sandbox().ExecTo(t.Context(), dayfly.Argv("cat"), dayfly.ExecOptions{Stdin: bytes.NewReader(tt.in)}, &out, nil)
				if tt.fails != "" {
					if dayfly.ErrorCode(err) != tt.fails || !strings.Contains(err.Error(), "input") || !bytes.HasPrefix(tt.in, out.Bytes()) {
						t.Errorf("%d bytes of %d, %v", out.Len(), len(tt.in), err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				got = out.String()
			}
			if got != string(tt.in) {
				t.Errorf("%d bytes came back of %d, or others", len(got), len(tt.in))
			}
		})
	}
}

// TestStdinThatNeverEnds: a command that does not read must not wait for its input.
func TestStdinThatNeverEnds(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc(execRoute, func(w http.ResponseWriter, r *http.Request) {
		lines(w, `{"type":"start","id":"pr1"}`, `{"type":"stdout","offset":0,"data":"hi"}`, `{"type":"exit","exit_code":0}`)
	})
	r, w := io.Pipe()
	defer w.Close()
	var out bytes.Buffer
	exit, err := s.sandbox().ExecTo(t.Context(), dayfly.Argv("echo", "hi"), dayfly.ExecOptions{Stdin: r}, &out, nil)
	if err != nil || exit.ExitCode != 0 || out.String() != "hi" {
		t.Errorf("got %+v, %q, %v", exit, &out, err)
	}
}

// TestStdinFails: input that breaks on this side is a failure of the call, not an end of file that the command believes.
func TestStdinFails(t *testing.T) {
	s := stdinServer(t, stdinCounts)
	broken := io.MultiReader(strings.NewReader("half"), failingReader{})
	_, err := s.sandbox().ExecTo(t.Context(), dayfly.Argv("cat"), dayfly.ExecOptions{Stdin: broken}, nil, nil)
	if dayfly.ErrorCode(err) != dayfly.CodeLocal || !strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("got %v", err)
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("disk on fire") }

func TestSignal(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc("POST /v1/sandboxes/{id}/processes/{pid}/signal", func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		reply(w, 200, map[string]any{})
	})
	if err := s.sandbox().Signal(t.Context(), "pr1", "TERM", true); err != nil {
		t.Fatal(err)
	}
	if got := s.requests()[0].body; got != `{"signal":"TERM","tree":true}` {
		t.Errorf("body = %s", got)
	}
}

// TestPipeStdin: what is read while a request is on its way travels in the next one; the end closes the input, a failure is told.
func TestPipeStdin(t *testing.T) {
	s := newServer(t)
	first := make(chan struct{})
	s.mux.HandleFunc("POST /v1/sandboxes/{id}/processes/pr1/stdin", func(w http.ResponseWriter, r *http.Request) {
		if len(s.requests()) == 0 {
			<-first // until all has been written
		}
		s.record(r)
		reply(w, 200, map[string]any{})
	})
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- s.sandbox().PipeStdin(t.Context(), "pr1", r) }()
	want := ""
	for i := range 100 {
		line := fmt.Sprintf("line %d\n", i)
		want += line
		if _, err := io.WriteString(w, line); err != nil {
			t.Fatal(err)
		}
	}
	_ = w.Close()
	close(first)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	seen, got := s.requests(), ""
	for _, q := range seen {
		got += q.body
	}
	if got != want || len(seen) > 4 || !strings.HasSuffix(seen[len(seen)-1].uri, "?close=true") {
		t.Errorf("%d requests brought %d of %d bytes, the last %s", len(seen), len(got), len(want), seen[len(seen)-1].uri)
	}
	if err := s.sandbox().PipeStdin(t.Context(), "pr1", io.MultiReader(strings.NewReader("x"), brokenReader{})); dayfly.ErrorCode(err) != dayfly.CodeLocal {
		t.Errorf("a reader that fails: %v", err)
	}
	s.mux.HandleFunc("POST /v1/sandboxes/{id}/processes/ended/stdin", func(w http.ResponseWriter, r *http.Request) { fail(w, 410, "gone", "it has ended") })
	if err := s.sandbox().PipeStdin(t.Context(), "ended", strings.NewReader("x")); err != nil {
		t.Errorf("a command that has ended: %v", err)
	}
}

// brokenReader is a reader that fails.
type brokenReader struct{}

// Read implements io.Reader.
func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("the disk is broken") }
