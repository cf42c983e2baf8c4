package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/api"
	"dayfly.dev/dayfly/internal/control"
	"dayfly.dev/dayfly/internal/metrics"
	"dayfly.dev/dayfly/internal/store"
)

// bed is a whole server: the real control plane and store on a node whose machines are directories and processes of this host.
type bed struct {
	t       *testing.T
	url     string
	key     string
	node    *deskNode
	images  *deskImages
	plane   *control.Plane
	handler *api.Handler
	log     *lockedBuffer
	http    *http.Client
}

// lockedBuffer is a log that can be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

const (
	testSilence   = 30 * time.Millisecond
	testSlowLimit = 300 * time.Millisecond
	testSlowGrace = 10 * time.Second
)

// newBed starts a server. wrap replaces parts of the backend, or is nil.
func newBed(t *testing.T, wrap func(api.Backend) api.Backend) *bed {
	t.Helper()
	return newBedThatCuts(t, testSlowLimit, wrap)
}

// newBedThatCuts is newBed with another time after which a client that takes nothing is cut.
func newBedThatCuts(t *testing.T, slowLimit time.Duration, wrap func(api.Backend) api.Backend) *bed {
	t.Helper()
	ctx := context.Background()
	db, err := store.Open(ctx, ":memory:", store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	logged := &lockedBuffer{}
	log := slog.New(slog.NewJSONHandler(logged, nil))
	node := newDeskNode(t)
	images := &deskImages{}
	figures := metrics.New("v1.2.3", log)
	plane := control.New(db, node, images, control.Config{Meter: figures}, log)
	figures.Watch(metrics.Sources{Sandboxes: plane.Count})
	if err := plane.Start(ctx); err != nil {
		t.Fatal(err)
	}
	plane.Accept()
	t.Cleanup(plane.Close)
	if _, err := plane.ImportBase(ctx, control.ImportImage{Name: dayfly.ImageBase, Body: strings.NewReader("")}); err != nil {
		t.Fatal(err)
	}
	admin, err := plane.IssueAdminKey(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var backend api.Backend = plane
	if wrap != nil {
		backend = wrap(plane)
	}
	handler := api.New(backend, api.Options{Log: log, Version: "v1.2.3", Metrics: figures.Handler(), Silence: testSilence,
		SlowLimit: slowLimit, SlowGrace: testSlowGrace})
	srv := httptest.NewUnstartedServer(handler)
	srv.Config = api.NewServer(handler, log)
	srv.Start()
	t.Cleanup(srv.Close)
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &bed{t: t, url: srv.URL, key: admin.Secret, node: node, images: images, plane: plane, handler: handler, log: logged,
		http: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// answer is a whole answer.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) json(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatalf("answer %d %q is not a JSON object: %v", a.status, a.body, err)
	}
	return v
}

// fault is the error of an answer.
func (a answer) fault(t *testing.T) map[string]any {
	t.Helper()
	e, ok := a.json(t)["error"].(map[string]any)
	if !ok {
		t.Fatalf("answer %d %s has no error", a.status, a.body)
	}
	return e
}

func (a answer) want(t *testing.T, status int, code string) answer {
	t.Helper()
	if a.status != status || a.fault(t)["type"] != code {
		t.Fatalf("got %d %s, want %d %s", a.status, a.body, status, code)
	}
	return a
}

func (a answer) ok(t *testing.T, status int) answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("got %d %s, want %d", a.status, a.body, status)
	}
	return a
}

// fields are the names of the fields that an invalid request names.
func (a answer) fields(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	details, _ := a.fault(t)["details"].(map[string]any)
	list, _ := details["fields"].([]any)
	for _, one := range list {
		m := one.(map[string]any)
		out[m["field"].(string)] = m["message"].(string)
	}
	return out
}

// send sends a request and checks its answer against the contract.
func (b *bed) send(method, path string, body io.Reader, header ...string) answer {
	b.t.Helper()
	req, err := http.NewRequest(method, b.url+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+b.key)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if header[i+1] == "" {
			req.Header.Del(header[i])
		}
	}
	return b.do(req)
}

func (b *bed) do(req *http.Request) answer {
	b.t.Helper()
	resp, err := b.http.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatalf("read the answer to %s %s: %v", req.Method, req.URL, err)
	}
	a := answer{resp.StatusCode, resp.Header, data}
	checkContract(b.t, req, a)
	return a
}

// json sends a JSON body.
func (b *bed) json(method, path, body string, header ...string) answer {
	b.t.Helper()
	return b.send(method, path, strings.NewReader(body), append([]string{"Content-Type", "application/json"}, header...)...)
}

// get sends a GET.
func (b *bed) get(path string, header ...string) answer {
	b.t.Helper()
	return b.send("GET", path, nil, header...)
}

// sandbox makes a sandbox and gives its id.
func (b *bed) sandbox(body string) string {
	b.t.Helper()
	return b.json("POST", "/v1/sandboxes", body).ok(b.t, 201).json(b.t)["id"].(string)
}
