package cli_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const testKey = "dfk_canary123"

// testServer answers as a server would, with local processes and folders as its machines. It isolates nothing.
type testServer struct {
	*httptest.Server
	dir string

	mu        sync.Mutex
	n         int
	created   chan string // ids, for tests that wait for one
	live      map[string]map[string]any
	deleted   []string
	processes map[string]*process
	signalled []string
	n2        int
	started   map[string]*background
	hold      chan struct{} // nil, or what answers to signals wait for
	slow      int           // bytes a second of an upload; 0: as fast as it goes
}

func (s *testServer) signals() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.signalled)
}

type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

func newServer(t *testing.T) *testServer {
	t.Helper()
	s := &testServer{dir: t.TempDir(), live: map[string]map[string]any{}, processes: map[string]*process{}, created: make(chan string, 100)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/sandboxes", s.create)
	mux.HandleFunc("GET /v1/sandboxes", s.list)
	mux.HandleFunc("GET /v1/sandboxes/{id}", s.show)
	mux.HandleFunc("DELETE /v1/sandboxes/{id}", s.remove)
	mux.HandleFunc("POST /v1/sandboxes/{id}/extend", s.extend)
	mux.HandleFunc("POST /v1/sandboxes/{id}/pause", s.become("paused"))
	mux.HandleFunc("POST /v1/sandboxes/{id}/resume", s.become("running"))
	mux.HandleFunc("POST /v1/sandboxes/{id}/exec", s.exec)
	mux.HandleFunc("POST /v1/sandboxes/{id}/processes/{pid}/stdin", s.stdin)
	mux.HandleFunc("POST /v1/sandboxes/{id}/processes/{pid}/signal", s.signal)
	s.routeProcesses(t, mux)
	mux.HandleFunc("/v1/sandboxes/{id}/files/content", s.content)
	mux.HandleFunc("/v1/sandboxes/{id}/files/archive", s.archive)
	s.routeFiles(mux)
	mux.HandleFunc("GET /v1/events", s.events)
	mux.HandleFunc("GET /v1/sandboxes/{id}/events", s.events)
	mux.HandleFunc("POST /v1/keys", func(w http.ResponseWriter, r *http.Request) {
		reply(w, 201, map[string]any{"id": "ke1", "account": "web", "account_id": "ac1", "admin": false, "secret": "dfk_new", "hint": "_new", "created_at": epoch})
	})
	mux.HandleFunc("GET /v1/keys", func(w http.ResponseWriter, r *http.Request) {
		reply(w, 200, map[string]any{"data": []any{map[string]any{"id": "ke1", "account": "web", "account_id": "ac1", "admin": true, "hint": "_new", "created_at": epoch}}, "next_cursor": nil})
	})
	mux.HandleFunc("DELETE /v1/keys/{id}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") == "last" {
			fail(w, 409, "conflict", "this is the last admin key")
			return
		}
		fail(w, 404, "not_found", "no such key")
	})
	image := map[string]any{"id": "im1", "name": "base", "digest": "sha256:00", "size_bytes": 1 << 29, "files": 12, "user": "user", "workdir": "/home/user", "env_names": []string{}, "created_at": epoch}
	mux.HandleFunc("GET /v1/images", func(w http.ResponseWriter, r *http.Request) {
		reply(w, 200, map[string]any{"data": []any{image}, "next_cursor": nil})
	})
	mux.HandleFunc("POST /v1/images", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		made := map[string]any{"id": "im2", "name": r.URL.Query().Get("name"), "size_bytes": n, "files": 1, "user": r.URL.Query().Get("user"), "workdir": "/", "created_at": epoch}
		reply(w, 201, made)
	})
	mux.HandleFunc("DELETE /v1/images/{ref}", func(w http.ResponseWriter, r *http.Request) { reply(w, 200, map[string]any{"removed": true}) })
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+testKey {
			fail(w, 401, "unauthorized", "the key is not known")
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.mu.Lock()
		for _, p := range s.processes {
			_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		}
		s.mu.Unlock()
		s.Close()
	})
	return s
}

const epoch = "2026-01-02T03:04:05.678Z"

func (s *testServer) create(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Labels map[string]string `json:"labels"`
		Env    map[string]string `json:"env"`
		Name   string            `json:"name"`
		Image  string            `json:"image"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	if body.Image == "full" {
		fail(w, 409, "quota_exceeded", "your account may have 1 live sandbox")
		return
	}
	s.mu.Lock()
	s.n++
	id := fmt.Sprintf("sb%020d", s.n)
	if body.Labels == nil {
		body.Labels = map[string]string{}
	}
	sb := map[string]any{"id": id, "status": "running", "size": "small", "vcpu": 1, "memory_mb": 1024, "disk_mb": 8192, "image": "base",
		"isolation": "linux", "node": "no1", "labels": body.Labels, "env_names": []string{}, "name": body.Name, "created_at": epoch,
		"ready_at": epoch, "remaining_ms": 900000, "ceiling_at": epoch, "ended_at": nil, "end_reason": nil, "billed_seconds": 7}
	s.live[id] = sb
	s.mu.Unlock()
	_ = os.Mkdir(s.home(id), 0o755)
	reply(w, 201, sb)
	s.created <- id
}

// events tells of a sandbox that lived once.
func (s *testServer) events(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("id") == "sbnone" {
		fail(w, 404, "not_found", "there is no such sandbox")
		return
	}
	event := func(seq int, kind string, cause any) map[string]any {
		return map[string]any{"seq": seq, "at": epoch, "type": kind, "account": "ac1", "sandbox": "sb00000000000000000001", "actor": "key:ke1",
			"cause": cause, "message": nil}
	}
	all := []map[string]any{event(3, "sandbox.accepted", nil), event(4, "sandbox.running", nil), event(9, "sandbox.ended", "requested")}
	all[2]["message"] = "it\x1b[1mwas asked for"
	if r.URL.Query().Get("follow") == "true" {
		out := &eventWriter{w: w}
		for _, e := range all {
			out.write(e)
		}
		return
	}
	if r.URL.Query().Get("cursor") == "4" {
		all = all[2:]
	}
	reply(w, 200, map[string]any{"data": all, "next_cursor": nil})
}

func (s *testServer) home(id string) string { return filepath.Join(s.dir, id) }

func (s *testServer) find(w http.ResponseWriter, r *http.Request) (map[string]any, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, ok := s.live[r.PathValue("id")]
	if !ok {
		fail(w, 404, "not_found", "there is no such sandbox")
	}
	return sb, ok
}

func (s *testServer) show(w http.ResponseWriter, r *http.Request) {
	if sb, ok := s.find(w, r); ok {
		reply(w, 200, sb)
	}
}

func (s *testServer) extend(w http.ResponseWriter, r *http.Request) {
	if sb, ok := s.find(w, r); ok {
		sb["clamped"] = true
		reply(w, 200, sb)
	}
}

// become answers with a sandbox that has the status from now on.
func (s *testServer) become(status string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if sb, ok := s.find(w, r); ok {
			sb["status"] = status
			reply(w, 200, sb)
		}
	}
}

func (s *testServer) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data := []map[string]any{}
	for i := 1; i <= s.n; i++ {
		sb, ok := s.live[fmt.Sprintf("sb%020d", i)]
		for _, l := range r.URL.Query()["label"] {
			k, v, _ := strings.Cut(l, ":")
			ok = ok && sb["labels"].(map[string]string)[k] == v
		}
		if ok {
			data = append(data, sb)
		}
	}
	reply(w, 200, map[string]any{"data": data, "next_cursor": nil})
}

func (s *testServer) remove(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if id == "sbbroken" {
		fail(w, 500, "internal", "an internal error happened")
		return
	}
	sb, ok := s.find(w, r)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, id)
	s.deleted = append(s.deleted, id)
	for _, p := range s.processes {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	}
	s.endAttached()
	sb["status"], sb["ended_at"], sb["end_reason"] = "deleted", epoch, "requested"
	reply(w, 200, sb)
}

// ended are the sandboxes that were destroyed.
func (s *testServer) ended() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.deleted...)
}

func (s *testServer) exec(w http.ResponseWriter, r *http.Request) {
	if _, ok := s.find(w, r); !ok {
		return
	}
	var body struct {
		Argv      []string          `json:"argv"`
		Env       map[string]string `json:"env"`
		StdinOpen bool              `json:"stdin_open"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	cmd := exec.Command(body.Argv[0], body.Argv[1:]...)
	cmd.Dir = s.home(r.PathValue("id"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = os.Environ()
	for k, v := range body.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	events := &eventWriter{w: w}
	cmd.Stdout, cmd.Stderr = &streamWriter{events: events, name: "stdout"}, &streamWriter{events: events, name: "stderr"}
	p := &process{cmd: cmd}
	if body.StdinOpen {
		p.stdin, _ = cmd.StdinPipe()
	}
	if err := cmd.Start(); err != nil {
		events.write(map[string]any{"type": "start", "id": "pr0"})
		events.write(map[string]any{"type": "exit", "exit_code": 127})
		return
	}
	id := fmt.Sprintf("pr%d", cmd.Process.Pid)
	s.mu.Lock()
	s.processes[id] = p
	s.mu.Unlock()
	events.write(map[string]any{"type": "start", "id": id})
	_ = cmd.Wait()
	if strings.HasSuffix(body.Argv[len(body.Argv)-1], "#drop") { // as for a reader that was away for too long
		events.write(map[string]any{"type": "dropped", "stream": "stdout", "offset": 4, "bytes": 100})
	}
	s.mu.Lock()
	delete(s.processes, id)
	s.mu.Unlock()
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		if _, alive := s.live[r.PathValue("id")]; !alive {
			events.write(map[string]any{"type": "error", "error": map[string]any{"type": "gone", "message": "the sandbox has ended"}})
			return
		}
		events.write(map[string]any{"type": "exit", "exit_code": 128 + int(status.Signal()), "signal": "X"})
		return
	}
	events.write(map[string]any{"type": "exit", "exit_code": status.ExitStatus(), "signal": nil, "duration_ms": 5})
}

type eventWriter struct {
	mu sync.Mutex
	w  http.ResponseWriter
}

func (e *eventWriter) write(v any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = json.NewEncoder(e.w).Encode(v)
	e.w.(http.Flusher).Flush()
}

type streamWriter struct {
	events *eventWriter
	name   string
	offset int
}

func (s *streamWriter) Write(p []byte) (int, error) {
	s.events.write(map[string]any{"type": s.name, "offset": s.offset, "data_b64": p})
	s.offset += len(p)
	return len(p), nil
}

func (s *testServer) stdin(w http.ResponseWriter, r *http.Request) {
	var to io.WriteCloser
	s.mu.Lock()
	if p := s.processes[r.PathValue("pid")]; p != nil {
		to = p.stdin
	} else if p := s.started[r.PathValue("pid")]; p != nil {
		to = p.stdin
	}
	s.mu.Unlock()
	if to == nil {
		fail(w, 410, "gone", "the process has ended")
		return
	}
	b, _ := io.ReadAll(r.Body)
	if _, err := to.Write(b); err != nil {
		fail(w, 409, "conflict", "the process reads no more")
		return
	}
	if r.URL.Query().Get("close") == "true" {
		_ = to.Close()
	}
	reply(w, 200, map[string]any{})
}

func (s *testServer) signal(w http.ResponseWriter, r *http.Request) {
	var body struct{ Signal string }
	_ = json.NewDecoder(r.Body).Decode(&body)
	s.mu.Lock()
	s.signalled = append(s.signalled, body.Signal)
	if s.hold != nil {
		s.mu.Unlock()
		<-s.hold
		s.mu.Lock()
	}
	number := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL, "HUP": syscall.SIGHUP}[body.Signal]
	if p := s.started[r.PathValue("pid")]; p != nil {
		_ = syscall.Kill(-p.cmd.Process.Pid, number)
	} else if p := s.processes[r.PathValue("pid")]; p != nil {
		_ = syscall.Kill(-p.cmd.Process.Pid, number)
	}
	s.mu.Unlock()
	reply(w, 200, map[string]any{})
}

func (s *testServer) path(r *http.Request) string {
	return filepath.Join(s.home(r.PathValue("id")), r.URL.Query().Get("path"))
}

func (s *testServer) content(w http.ResponseWriter, r *http.Request) {
	path := s.path(r)
	if r.Method == "GET" {
		b, err := os.ReadFile(path)
		if err != nil {
			fail(w, 404, "file_not_found", "there is no such file")
			return
		}
		w.Header().Set("X-File-Mode", "0640")
		_, _ = w.Write(b)
		return
	}
	var b []byte
	for chunk := make([]byte, 64<<10); ; {
		n, err := r.Body.Read(chunk)
		b = append(b, chunk[:n]...)
		if s.slow > 0 {
			time.Sleep(time.Duration(n) * time.Second / time.Duration(s.slow)) // a slow network is what is tested
		}
		if err != nil {
			break
		}
	}
	_ = os.MkdirAll(filepath.Dir(path), 0o755)
	if err := os.WriteFile(path, b, 0o644); err != nil {
		fail(w, 409, "file_conflict", "it is a directory")
		return
	}
	reply(w, 200, map[string]any{"path": path, "size_bytes": len(b)})
}

func (s *testServer) archive(w http.ResponseWriter, r *http.Request) {
	path := s.path(r)
	if r.Method == "PUT" {
		_ = os.MkdirAll(path, 0o755)
		cmd := exec.Command("tar", "x", "-C", path)
		cmd.Stdin = r.Body
		if out, err := cmd.CombinedOutput(); err != nil {
			fail(w, 400, "invalid_request", string(out))
			return
		}
		reply(w, 200, map[string]any{"path": path})
		return
	}
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	_ = tw.AddFS(os.DirFS(path))
	_ = tw.Close()
	_, _ = w.Write(b.Bytes())
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func fail(w http.ResponseWriter, status int, code, message string) {
	reply(w, status, map[string]any{"error": map[string]any{"type": code, "message": message, "hint": "", "details": map[string]any{}, "request_id": "rq1"}})
}

// wait bounds what a test waits for.
const wait = 20 * time.Second
