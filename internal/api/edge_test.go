package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/api"
	"dayfly.dev/dayfly/internal/control"
)

func TestHealth(t *testing.T) {
	b := newBed(t, nil)
	if got := b.get("/healthz", "Authorization", "").ok(t, 200).json(t); got["ok"] != true || got["version"] != "v1.2.3" {
		t.Errorf("healthz: %v", got)
	}
	if got := b.get("/readyz", "Authorization", "").ok(t, 200).json(t); got["ready"] != true || len(got["degraded"].([]any)) != 0 {
		t.Errorf("readyz: %v", got)
	}
	b.node.mu.Lock()
	b.node.problems = []control.Problem{{Component: "warden", Message: "no warden lives"}}
	b.node.mu.Unlock()
	golden(t, "readyz_503", b.get("/readyz", "Authorization", "").ok(t, 503).body)
}

func TestReadyNamesStuckTeardowns(t *testing.T) {
	b := newBed(t, func(is api.Backend) api.Backend { return stuckBackend{is} })
	got := b.get("/readyz", "Authorization", "").ok(t, 200).json(t)
	entry, _ := got["degraded"].([]any)[0].(map[string]any)
	if got["ready"] != true || entry["sandbox"] != "sb1" || entry["step"] != "remove disk" || entry["tries"] != 3.0 {
		t.Errorf("readyz: %v", got)
	}
	if ago := time.Since(when(t, entry, "since")); ago < 59*time.Second || ago > 2*time.Minute {
		t.Errorf("since %v", entry["since"])
	}
}

// stuckBackend has a teardown that fails for a minute.
type stuckBackend struct{ api.Backend }

func (s stuckBackend) Stuck() []control.Stuck {
	since := s.Now()
	since.Boot -= time.Minute
	return []control.Stuck{{Sandbox: "sb1", Step: "remove disk", Since: since, Tries: 3}}
}

func TestRoutes(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	for _, tt := range []struct {
		name, method, path, allow string
		status                    int
		code                      string
	}{
		{"unknown", "GET", "/v1/nothing", "", 404, "not_found"},
		{"root", "GET", "/", "", 404, "not_found"},
		{"trailing slash", "GET", "/v1/sandboxes/", "", 404, "not_found"},
		{"doubled slash", "GET", "//v1/sandboxes", "", 404, "not_found"},
		{"dots", "GET", "/v1/keys/../sandboxes", "", 404, "not_found"},
		{"not yet", "POST", "/v1/sandboxes/" + id + "/snapshot", "", 404, "not_found"},
		{"method", "PUT", "/v1/sandboxes", "GET, POST", 405, "method_not_allowed"},
		{"options", "OPTIONS", "/v1/sandboxes/" + id, "DELETE, GET, PATCH", 405, "method_not_allowed"},
		{"made-up method", "BREW", "/healthz", "GET", 405, "method_not_allowed"},
		{"bad id", "GET", "/v1/sandboxes/xyz", "", 404, "not_found"},
		{"id with a slash", "GET", "/v1/sandboxes/a%2Fb", "", 404, "not_found"},
		{"other id", "GET", "/v1/sandboxes/sb00000000000000000000", "", 404, "not_found"},
		{"bad process", "GET", "/v1/sandboxes/" + id + "/processes/1", "", 404, "not_found"},
		{"bad image", "GET", "/v1/images/none", "", 404, "not_found"},
		{"bad image name", "GET", "/v1/images/%00", "", 404, "not_found"},
		{"bad key", "DELETE", "/v1/keys/1", "", 404, "not_found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := b.send(tt.method, tt.path, nil).want(t, tt.status, tt.code)
			if got.header.Get("Allow") != tt.allow {
				t.Errorf("Allow is %q, want %q", got.header.Get("Allow"), tt.allow)
			}
			if got.fault(t)["request_id"] != got.header.Get("X-Request-Id") {
				t.Error("request ids differ")
			}
		})
	}
	if got := b.send("HEAD", "/v1/sandboxes", nil); got.status != 405 || got.header.Get("X-Error-Type") != "method_not_allowed" {
		t.Errorf("HEAD: %d %v", got.status, got.header)
	}
}

func TestAuthentication(t *testing.T) {
	b := newBed(t, nil)
	for _, tt := range []struct{ name, header string }{
		{"none", ""}, {"basic", "Basic dXNlcjpwdw=="}, {"empty", "Bearer "}, {"wrong", "Bearer dfk_wrong"}, {"bare", b.key}, {"not a key", "Bearer x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := b.get("/v1/sandboxes", "Authorization", tt.header).want(t, 401, "unauthorized")
			if got.header.Get("WWW-Authenticate") != "Bearer" || got.fault(t)["hint"] == nil {
				t.Errorf("%v %s", got.header, got.body)
			}
		})
	}
	b.get("/v1/sandboxes", "Authorization", "bearer  "+b.key).ok(t, 200)
	if strings.Contains(b.log.String(), b.key) {
		t.Error("the log holds the key")
	}
}

func TestBodies(t *testing.T) {
	b := newBed(t, nil)
	big := func(n int) io.Reader { return io.LimitReader(endless('x'), int64(n)) }
	for _, tt := range []struct {
		name, kind string
		body       io.Reader
		status     int
		code       string
	}{
		{"form", "application/x-www-form-urlencoded", strings.NewReader(`{}`), 415, "unsupported_media_type"},
		{"text", "text/plain", strings.NewReader(`{}`), 415, "unsupported_media_type"},
		{"latin", "application/json; charset=latin1", strings.NewReader(`{}`), 415, "unsupported_media_type"},
		{"broken type", ";;", strings.NewReader(`{}`), 415, "unsupported_media_type"},
		{"too large, announced", "application/json", strings.NewReader(strings.Repeat(" ", api.BodyMaxBytes+1)), 413, "too_large"},
		{"too large, chunked", "application/json", big(api.BodyMaxBytes + 1), 413, "too_large"},
		{"far too large", "application/json", big(3 * api.BodyMaxBytes), 413, "too_large"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := b.send("POST", "/v1/sandboxes", tt.body, "Content-Type", tt.kind).want(t, tt.status, tt.code)
			if got.fault(t)["hint"] == nil {
				t.Error("no hint")
			}
		})
	}
	b.send("POST", "/v1/sandboxes", strings.NewReader(`{}`), "Content-Type", "application/json", "Content-Encoding", "gzip").want(t, 415, "unsupported_media_type")
	b.send("GET", "/v1/sandboxes", strings.NewReader(`{}`)).want(t, 400, "invalid_request")
	for name, kind := range map[string]string{"no type": "", "charset": "application/json; charset=UTF-8", "suffix": "application/merge-patch+json"} {
		t.Run(name, func(t *testing.T) {
			b.send("POST", "/v1/sandboxes", strings.NewReader(`{}`), "Content-Type", kind).ok(t, 201)
		})
	}
	b.send("POST", "/v1/sandboxes", nil).ok(t, 201)
	b.send("POST", "/v1/sandboxes", big(0)).ok(t, 201)
}

// TestRefusalReachesClientsThatOnlyWrite sends far too much, and looks for an answer only then, as many clients do.
func TestRefusalReachesClientsThatOnlyWrite(t *testing.T) {
	b := newBed(t, nil)
	const size = 2 * api.BodyMaxBytes
	conn := b.raw(t, fmt.Sprintf("POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", b.key, size))
	if _, err := io.CopyN(conn, endless(' '), size); err != nil {
		t.Fatalf("the server hung up: %v", err)
	}
	if got := readAll(t, conn); !strings.HasPrefix(got, "HTTP/1.1 413 ") || !strings.Contains(got, "too_large") {
		t.Errorf("got %.200s", got)
	}
}

// TestRefusalReachesAStalledClientSoon sends a part of what it announced and then waits.
func TestRefusalReachesAStalledClientSoon(t *testing.T) {
	b := newBed(t, nil)
	conn := b.raw(t, fmt.Sprintf("PUT /v1/sandboxes/sb00000000000000000000/files/content?path=x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000000\r\n\r\nstart", b.key))
	began := time.Now()
	if got := readAll(t, conn); !strings.HasPrefix(got, "HTTP/1.1 404 ") || time.Since(began) > 10*time.Second {
		t.Errorf("after %s: %.200s", time.Since(began), got)
	}
}

// endless is a reader of one byte for ever.
type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

// faulty replaces single use cases by faults.
type faulty struct {
	api.Backend
	list func() error
}

func (f faulty) Sandboxes(ctx context.Context, who control.Principal, l dayfly.SandboxFilter) ([]dayfly.Sandbox, string, error) {
	if f.list != nil {
		return nil, "", f.list()
	}
	return f.Backend.Sandboxes(ctx, who, l)
}

func TestFaultsOfTheBackend(t *testing.T) {
	var list func() error
	b := newBed(t, func(be api.Backend) api.Backend { return faulty{be, func() error { return list() }} })
	for code, status := range api.Statuses() {
		t.Run(code, func(t *testing.T) {
			list = func() error { return dayfly.Errorf(dayfly.Code(code), "told").WithCause(errors.New("hidden-cause")) }
			got := b.get("/v1/sandboxes").want(t, status, code)
			if strings.Contains(string(got.body), "hidden-cause") {
				t.Error("the cause is shown")
			}
			if again := got.header.Get("Retry-After") != ""; again != (status == 429 || status == 503) {
				t.Errorf("Retry-After is %q", got.header.Get("Retry-After"))
			}
		})
	}
	t.Run("foreign error", func(t *testing.T) {
		list = func() error { return fmt.Errorf("wrapped: %w", errors.New("secret internals")) }
		got := b.get("/v1/sandboxes").want(t, 500, "internal")
		if strings.Contains(string(got.body), "secret internals") || !strings.Contains(b.log.String(), "secret internals") {
			t.Errorf("shown %s", got.body)
		}
	})
	t.Run("panic", func(t *testing.T) {
		list = func() error { panic("at the desk") }
		got := b.get("/v1/sandboxes").want(t, 500, "internal")
		if strings.Contains(string(got.body), "desk") || !strings.Contains(b.log.String(), "edge_test.go") {
			t.Errorf("shown %s; no stack in the log", got.body)
		}
		if !strings.Contains(b.log.String(), got.header.Get("X-Request-Id")) {
			t.Error("the log lacks the request id")
		}
	})
	t.Run("details that are no JSON", func(t *testing.T) {
		list = func() error { return dayfly.Errorf(dayfly.CodeConflict, "told").WithDetail("x", func() {}) }
		b.get("/v1/sandboxes").want(t, 409, "conflict")
	})
	list = func() error {
		return dayfly.Errorf(dayfly.CodeNoCapacity, "full").WithRetryAfter(1500 * time.Millisecond)
	}
	if got := b.get("/v1/sandboxes"); got.header.Get("Retry-After") != "2" {
		t.Errorf("Retry-After %q", got.header.Get("Retry-After"))
	}
}

func TestLogLine(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox(`{"env":{"TOKEN":"s3cr3t-value"},"labels":{"a":"b"}}`)
	b.get("/v1/sandboxes?label=k:hidden-label&limit=1")
	b.json("POST", "/v1/sandboxes/"+id+"/exec", `{"command":"echo hidden-command","env":{"T":"hidden-env"}}`)
	b.json("POST", "/v1/sandboxes", `{"env":{"BAD=NAME":"hidden-env"}}`).want(t, 400, "invalid_request")
	log := b.log.String()
	for _, secret := range []string{"s3cr3t-value", "hidden", b.key, id} {
		if strings.Contains(log, secret) {
			t.Errorf("bug 122: the log holds %q", secret)
		}
	}
	for _, want := range []string{`"route":"/v1/sandboxes/{id}/exec"`, `"method":"POST"`, `"status":400`, `"duration"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s", want)
		}
	}
}

// TestClientGone shows that a client that leaves ends its request's context and nothing else.
func TestClientGone(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	begun, ended := make(chan struct{}), make(chan struct{})
	b.node.machine(id).running = func(ctx context.Context, _ dayfly.ProcessSpec) (dayfly.Result, error) {
		close(begun)
		<-ctx.Done()
		close(ended)
		return dayfly.Result{}, ctx.Err()
	}
	ctx, leave := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, "POST", b.url+"/v1/sandboxes/"+id+"/exec", strings.NewReader(`{"command":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+b.key)
	go func() {
		<-begun
		leave()
	}()
	if resp, err := b.http.Do(req); err == nil {
		_ = resp.Body.Close()
		t.Fatal("the request was not cut")
	}
	waitFor(t, ended)
	b.get("/v1/sandboxes/"+id).ok(t, 200)
}

// TestHeadLimits shows that only the head of a request and the time before it have limits.
func TestHeadLimits(t *testing.T) {
	srv := api.NewServer(http.NotFoundHandler(), nil)
	if srv.ReadHeaderTimeout == 0 || srv.ReadTimeout != 0 || srv.WriteTimeout != 0 || srv.IdleTimeout == 0 {
		t.Errorf("limits: %v %v %v %v", srv.ReadHeaderTimeout, srv.ReadTimeout, srv.WriteTimeout, srv.IdleTimeout)
	}
}

// raw sends bytes over a connection of its own.
func (b *bed) raw(t *testing.T, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(waitMax)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// waitMax bounds every wait of these tests.
const waitMax = 20 * time.Second

func waitFor(t *testing.T, event <-chan struct{}) {
	t.Helper()
	select {
	case <-event:
	case <-time.After(waitMax):
		t.Fatal("it did not happen")
	}
}
