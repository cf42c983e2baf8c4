package dayfly_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dayfly "dayfly.dev/dayfly/sdk/go"
)

func TestSettings(t *testing.T) {
	data := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(data, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("admin.key", "dfk_admin\n")
	write("server.json", `{"url":"http://127.0.0.1:7777","pid":1}`)
	for _, tt := range []struct {
		name    string
		options dayfly.Options
		env     map[string]string
		want    string
		code    dayfly.Code
	}{
		{"the running server's address", dayfly.Options{DataDir: data}, nil, "http://127.0.0.1:7777", ""},
		{"the default", dayfly.Options{DataDir: t.TempDir()}, nil, dayfly.DefaultURL, ""},
		{"the environment", dayfly.Options{DataDir: data}, map[string]string{"DAYFLY_URL": "https://df.test/x/"}, "https://df.test/x", ""},
		{"the data directory of the environment", dayfly.Options{}, map[string]string{"DAYFLY_DATA": data}, "http://127.0.0.1:7777", ""},
		{"an option before the environment", dayfly.Options{URL: "http://a.test/v1"}, map[string]string{"DAYFLY_URL": "http://b.test"}, "http://a.test", ""},
		{"a password is not shown", dayfly.Options{URL: "http://u:secret@a.test"}, nil, "http://u:xxxxx@a.test", ""},
		{"no scheme", dayfly.Options{URL: "localhost:2424"}, nil, "", dayfly.CodeInvalid},
		{"not a URL", dayfly.Options{URL: "http://u:secret@\x7f"}, nil, "", dayfly.CodeInvalid},
		{"a key of two lines", dayfly.Options{APIKey: "dfk_a\nX: y"}, nil, "", dayfly.CodeInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.options.Getenv = func(k string) string { return tt.env[k] }
			c, err := dayfly.New(tt.options)
			if got := dayfly.ErrorCode(err); got != tt.code {
				t.Fatalf("code = %q (%v), want %q", got, err, tt.code)
			}
			if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "dfk_")) {
				t.Errorf("the error shows a secret: %v", err)
			}
			if err == nil && c.URL() != tt.want {
				t.Errorf("URL = %q, want %q", c.URL(), tt.want)
			}
		})
	}
}

// TestLocalKeyStaysHere: the data directory's key goes to this machine's server and to nobody else.
func TestLocalKeyStaysHere(t *testing.T) {
	data := t.TempDir()
	if err := os.WriteFile(filepath.Join(data, "admin.key"), []byte(testKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newServer(t)
	s.mux.HandleFunc("GET /v1/sandboxes/{id}", func(w http.ResponseWriter, r *http.Request) {
		reply(w, 200, map[string]any{"id": testID, "status": "running"})
	})
	local, err := dayfly.New(dayfly.Options{URL: s.URL, DataDir: data, Getenv: noEnv})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := local.Get(t.Context(), testID); err != nil {
		t.Errorf("the local server was not shown the key: %v", err)
	}
	remote, err := dayfly.New(dayfly.Options{URL: "http://df.test", DataDir: data, Getenv: noEnv})
	if err != nil {
		t.Fatal(err)
	}
	_, err = remote.Get(t.Context(), testID)
	if dayfly.ErrorCode(err) != dayfly.CodeUnauthorized || !strings.Contains(err.Error(), "not shown to df.test") {
		t.Errorf("a remote server: %v, want unauthorized without a request", err)
	}
}

func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		name      string
		answer    func(w http.ResponseWriter)
		code      dayfly.Code
		status    int
		retryable bool
		tries     int
	}{
		{"typed", func(w http.ResponseWriter) { fail(w, 409, "quota_exceeded", "too many") }, dayfly.CodeQuotaExceeded, 409, false, 1},
		{"a code of a newer server", func(w http.ResponseWriter) { fail(w, 418, "teapot", "short") }, "teapot", 418, false, 1},
		{"no capacity is tried again", func(w http.ResponseWriter) { fail(w, 503, "no_capacity", "full") }, dayfly.CodeNoCapacity, 503, true, 4},
		{"after the head", func(w http.ResponseWriter) {
			_, _ = w.Write([]byte("   "))
			w.(http.Flusher).Flush()
			_, _ = w.Write([]byte(` {"error":{"type":"gone","message":"it ended","status":410}}`))
		}, dayfly.CodeGone, 410, false, 1},
		{"HTML of a proxy", func(w http.ResponseWriter) { w.WriteHeader(502); _, _ = w.Write([]byte("<html>")) }, dayfly.CodeBadAnswer, 502, true, 4},
		{"HTML as a success", func(w http.ResponseWriter) { _, _ = w.Write([]byte("<html>hello</html>")) }, dayfly.CodeBadAnswer, 200, false, 1},
		{"a redirect is not followed", func(w http.ResponseWriter) { w.Header().Set("Location", "/healthz"); w.WriteHeader(302) }, dayfly.CodeBadAnswer, 302, false, 1},
		{"a broken connection", func(w http.ResponseWriter) { cut(w) }, dayfly.CodeUnreachable, 0, true, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
				s.record(r)
				tt.answer(w)
			})
			_, err := s.client.Create(t.Context(), dayfly.CreateOptions{})
			var e *dayfly.Error
			if !errors.As(err, &e) {
				t.Fatalf("bug 99: error is %T (%v), want *Error", err, err)
			}
			if e.Code != tt.code || e.Status != tt.status || e.Retryable != tt.retryable {
				t.Errorf("bug 99: got %q %d retryable=%v (%v)", e.Code, e.Status, e.Retryable, e)
			}
			seen := s.requests()
			if len(seen) != tt.tries {
				t.Errorf("%d requests, want %d", len(seen), tt.tries)
			}
			for _, r := range seen {
				if r.key == "" || r.key != seen[0].key {
					t.Errorf("idempotency keys %q and %q, want one", seen[0].key, r.key)
				}
			}
			if strings.Contains(fmt.Sprintf("%v %+v", err, *e), testKey) {
				t.Error("the error shows the key")
			}
		})
	}
}

func TestErrorFields(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc("GET /v1/sandboxes/{id}", func(w http.ResponseWriter, r *http.Request) { fail(w, 400, "invalid_request", "no") })
	_, err := s.client.Get(t.Context(), "../keys?x=%")
	var e *dayfly.Error
	if !errors.As(err, &e) || e.Hint != "a hint" || e.RequestID != "rq1" || e.Details["field"] != "x" {
		t.Errorf("got %+v", e)
	}
}

func TestRetryAfter(t *testing.T) {
	s := newServer(t)
	var n atomic.Int32
	var first time.Time
	s.mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		if n.Add(1) == 1 {
			first = time.Now()
			w.Header().Set("Retry-After", "1")
			fail(w, 429, "rate_limited", "slow down")
			return
		}
		if d := time.Since(first); d < time.Second {
			t.Errorf("tried again after %v, before the advised second", d)
		}
		reply(w, 201, map[string]any{"id": testID, "status": "running"})
	})
	if _, err := s.client.Create(t.Context(), dayfly.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestCancelledCall(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) { cut(w) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.client.Create(ctx, dayfly.CreateOptions{})
	if !errors.Is(err, context.Canceled) || dayfly.ErrorCode(err) != dayfly.CodeCancelled {
		t.Errorf("got %v (%q)", err, dayfly.ErrorCode(err))
	}
}

func TestCreateBody(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		reply(w, 201, map[string]any{"id": testID, "status": "running", "remaining_ms": 5000, "expires_at": "1999-01-01T00:00:00.000Z",
			"name": nil, "node": nil, "end_reason": nil, "new_field": 1})
	})
	sb, err := s.client.Create(t.Context(), dayfly.CreateOptions{
		Size: "small", Timeout: 1500 * time.Millisecond, Labels: map[string]string{"k": "a:b"},
		Env: map[string]string{"E": "{\n\"x\":\"<é>\"}"}, NoInternet: true, IdempotencyKey: "mine",
	})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(s.requests()[0].body), &got); err != nil {
		t.Fatal(err)
	}
	want := `map[env:map[E:{
"x":"<é>"}] labels:map[k:a:b] network:map[internet:false] size:small timeout_seconds:2]`
	if fmt.Sprint(got) != want {
		t.Errorf("body = %v, want %v", got, want)
	}
	if s.requests()[0].key != "mine" {
		t.Errorf("key = %q", s.requests()[0].key)
	}
	info := sb.Info()
	if d := time.Until(*info.ExpiresAt); d < 3*time.Second || d > 5*time.Second {
		t.Errorf("expires in %v: the server's clock was used, not the remaining time", d)
	}
	if r := info.Remaining(); r <= 3*time.Second || r > 5*time.Second {
		t.Errorf("remaining = %v", r)
	}
	_, err = s.client.Create(t.Context(), dayfly.CreateOptions{Env: map[string]string{"E": "\xff secret"}})
	if dayfly.ErrorCode(err) != dayfly.CodeInvalid || strings.Contains(err.Error(), "secret") {
		t.Errorf("a value that is not UTF-8: %v", err)
	}
}

func TestListVisitsEachOnce(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc("GET /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		switch r.URL.Query().Get("cursor") {
		case "":
			reply(w, 200, map[string]any{"data": []map[string]any{{"id": "sb1"}, {"id": "sb2"}}, "next_cursor": "a+/="})
		case "a+/=":
			reply(w, 200, map[string]any{"data": []map[string]any{{"id": "sb3"}}, "next_cursor": nil})
		}
	})
	var ids []string
	for sb, err := range s.client.List(t.Context(), dayfly.ListOptions{Labels: map[string]string{"b": "2", "a": "x:y"}, IncludeEnded: true}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, sb.ID)
	}
	if fmt.Sprint(ids) != "[sb1 sb2 sb3]" {
		t.Errorf("ids = %v", ids)
	}
	want := "/v1/sandboxes?include_ended=true&label=a%3Ax%3Ay&label=b%3A2&limit=100"
	if got := s.requests()[0].uri; got != want {
		t.Errorf("uri = %s, want %s", got, want)
	}
}

func TestDelete(t *testing.T) {
	for _, tt := range []struct {
		status int
		code   string
		handle bool // whether the handle calls it a success
	}{{404, "not_found", true}, {410, "gone", true}, {401, "unauthorized", false}, {500, "internal", false}} {
		t.Run(tt.code, func(t *testing.T) {
			s := newServer(t)
			s.mux.HandleFunc("DELETE /v1/sandboxes/{id}", func(w http.ResponseWriter, r *http.Request) { fail(w, tt.status, tt.code, "x") })
			if err := s.sandbox().Delete(t.Context()); (err == nil) != tt.handle {
				t.Errorf("Sandbox.Delete: %v", err)
			}
			if _, err := s.client.Delete(t.Context(), testID); string(dayfly.ErrorCode(err)) != tt.code {
				t.Errorf("Client.Delete: %v", err)
			}
		})
	}
}

func TestExtend(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc("POST /v1/sandboxes/{id}/extend", func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		reply(w, 200, map[string]any{"id": testID, "status": "running", "remaining_ms": 60000, "clamped": true})
	})
	sb := s.sandbox()
	_, clamped, err := sb.Extend(t.Context(), 30*time.Minute)
	if err != nil || !clamped {
		t.Fatalf("clamped=%v, %v", clamped, err)
	}
	if body := s.requests()[0].body; body != `{"additional_seconds":1800}` {
		t.Errorf("body = %s", body)
	}
	if sb.Info().Status != dayfly.StatusRunning || sb.Info().AsOf().IsZero() {
		t.Errorf("the handle did not remember: %+v", sb.Info())
	}
}

func TestPauseAndResume(t *testing.T) {
	s := newServer(t)
	for do, status := range map[string]string{"pause": "paused", "resume": "running"} {
		s.mux.HandleFunc("POST /v1/sandboxes/{id}/"+do, func(w http.ResponseWriter, r *http.Request) {
			reply(w, 200, map[string]any{"id": testID, "status": status, "remaining_ms": 60000})
		})
	}
	sb := s.sandbox()
	for range 2 {
		if info, err := sb.Pause(t.Context()); err != nil || info.Status != dayfly.StatusPaused || sb.Info().Status != dayfly.StatusPaused {
			t.Errorf("Pause: %+v, %v", info, err)
		}
		if info, err := sb.Resume(t.Context()); err != nil || info.Status != dayfly.StatusRunning {
			t.Errorf("Resume: %+v, %v", info, err)
		}
	}
}

func TestReady(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { reply(w, 200, map[string]string{"status": "ok"}) })
	s.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		reply(w, 503, map[string]any{"ready": false, "problems": []map[string]string{{"component": "warden", "message": "none"}},
			"degraded": []map[string]any{{"sandbox": "sb1", "step": "remove disk", "since": "2026-01-02T03:04:05.678Z", "tries": 3}}})
	})
	if err := s.client.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
	ready, err := s.client.Ready(t.Context())
	if err != nil || ready.Ready || len(ready.Problems) != 1 || ready.Problems[0].Component != "warden" || len(ready.Degraded) != 1 || ready.Degraded[0].Sandbox != "sb1" ||
		ready.Degraded[0].Step != "remove disk" || ready.Degraded[0].Since.IsZero() || ready.Degraded[0].Tries != 3 {
		t.Errorf("got %+v, %v", ready, err)
	}
}

// TestDescriptors: many clients and calls open no more descriptors than few.
func TestDescriptors(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc("POST /v1/sandboxes/{id}/exec", func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Accept"), "ndjson") {
			lines(w, `{"type":"start","id":"pr1"}`, `{"type":"exit","id":"pr1","exit_code":0}`)
			return
		}
		reply(w, 200, map[string]any{"id": "pr1", "exit_code": 0})
	})
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("no /proc here: ", err)
		}
		return len(entries)
	}
	use := func() {
		c, err := dayfly.New(dayfly.Options{URL: s.URL, APIKey: testKey, Getenv: noEnv})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Sandbox(testID).Exec(t.Context(), dayfly.Argv("true"), dayfly.ExecOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Sandbox(testID).ExecTo(t.Context(), dayfly.Argv("true"), dayfly.ExecOptions{}, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	use()
	before := open()
	for range 200 {
		use()
	}
	if after := open(); after > before+4 {
		t.Errorf("%d descriptors before, %d after 200 clients", before, after)
	}
}
