package dayfly_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	dayfly "dayfly.dev/dayfly/sdk/go"
)

const (
	testKey = "dfk_canary123"
	testID  = "sbabcdefghij0123456789"
)

// testServer answers with handlers that a test sets, remembers requests, and checks the key of each.
type testServer struct {
	*httptest.Server
	client *dayfly.Client
	mux    *http.ServeMux

	mu   sync.Mutex
	seen []request
}

type request struct {
	method, uri, key string
	header           http.Header
	body             string
}

// newServer starts a server. Its connections are its own, so that leaving one open shows.
func newServer(t *testing.T) *testServer {
	t.Helper()
	s := &testServer{mux: http.NewServeMux()}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+testKey && r.URL.Path != "/healthz" {
			fail(w, http.StatusUnauthorized, "unauthorized", "the key is not known")
			return
		}
		s.mux.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	client, err := dayfly.New(dayfly.Options{URL: s.URL, APIKey: testKey, Getenv: noEnv, DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s.client = client
	return s
}

func noEnv(string) string { return "" }

// record takes a request with its whole body.
func (s *testServer) record(r *http.Request) request {
	body, _ := io.ReadAll(r.Body)
	q := request{method: r.Method, uri: r.RequestURI, key: r.Header.Get("Idempotency-Key"), header: r.Header, body: string(body)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, q)
	return q
}

func (s *testServer) requests() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]request(nil), s.seen...)
}

func (s *testServer) sandbox() *dayfly.Sandbox { return s.client.Sandbox(testID) }

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func fail(w http.ResponseWriter, status int, code, message string) {
	reply(w, status, map[string]any{"error": map[string]any{"type": code, "message": message, "hint": "a hint",
		"details": map[string]any{"field": "x"}, "request_id": "rq1"}})
}

// lines writes events and flushes each.
func lines(w http.ResponseWriter, events ...string) {
	for _, e := range events {
		fmt.Fprintln(w, e)
		w.(http.Flusher).Flush()
	}
}

// cut breaks the connection as a dying server does.
func cut(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}
