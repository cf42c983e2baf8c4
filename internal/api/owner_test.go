package api_test

import (
	"context"
	"strings"
	"testing"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/api"
)

// samples are a query and a body that are right for a route, where an empty query and {} are not.
var samples = map[string]struct{ query, body string }{
	"POST /v1/sandboxes/{id}/exec":                   {"", `{"command":"true"}`},
	"POST /v1/sandboxes/{id}/processes":              {"", `{"command":"true"}`},
	"POST /v1/sandboxes/{id}/processes/{pid}/resize": {"", `{"cols":80,"rows":24}`},
	"GET /v1/sandboxes/{id}/files":                   {"path=x", ""},
	"PUT /v1/sandboxes/{id}/files":                   {"", `{"path":"x","content":"y"}`},
	"DELETE /v1/sandboxes/{id}/files":                {"path=x", ""},
	"GET /v1/sandboxes/{id}/files/content":           {"path=x", ""},
	"HEAD /v1/sandboxes/{id}/files/content":          {"path=x", ""},
	"PUT /v1/sandboxes/{id}/files/content":           {"path=x", "y"},
	"GET /v1/sandboxes/{id}/files/archive":           {"path=x", ""},
	"PUT /v1/sandboxes/{id}/files/archive":           {"path=x", "y"},
	"GET /v1/sandboxes/{id}/files/stat":              {"path=x", ""},
	"GET /v1/sandboxes/{id}/files/watch":             {"path=x", ""},
	"POST /v1/sandboxes/{id}/files/mkdir":            {"", `{"path":"x"}`},
	"POST /v1/sandboxes/{id}/files/move":             {"", `{"from":"x","to":"y"}`},
	"POST /v1/sandboxes/{id}/files/chmod":            {"", `{"path":"x","mode":"0644"}`},
	"POST /v1/sandboxes/{id}/files/search":           {"", `{"pattern":"x"}`},
}

// withoutMachine are the routes of a sandbox that need no running machine.
var withoutMachine = map[string]bool{
	"GET /v1/sandboxes/{id}": true, "PATCH /v1/sandboxes/{id}": true, "DELETE /v1/sandboxes/{id}": true, "POST /v1/sandboxes/{id}/stop": true,
	"GET /v1/sandboxes/{id}/events": true, "POST /v1/sandboxes/{id}/extend": true,
	"POST /v1/sandboxes/{id}/pause": true, "POST /v1/sandboxes/{id}/resume": true,
}

// eachRoute runs a test for every route of a sandbox, with a request that is right for it.
func eachRoute(t *testing.T, test func(t *testing.T, name string, send func(b *bed, id, pid string) answer)) {
	t.Helper()
	for _, rt := range api.RouteTable() {
		if !strings.HasPrefix(rt.Path, "/v1/sandboxes/{id}") {
			continue
		}
		name := rt.Method + " " + rt.Path
		t.Run(name, func(t *testing.T) {
			test(t, name, func(b *bed, id, pid string) answer {
				sample := samples[name]
				path := strings.NewReplacer("{id}", id, "{pid}", pid, "{port}", "80").Replace(rt.Path)
				if sample.query != "" {
					path += "?" + sample.query
				}
				switch rt.Body {
				case "none":
					return b.send(rt.Method, path, nil)
				case "raw":
					return b.send(rt.Method, path, strings.NewReader(sample.body))
				}
				body := sample.body
				if body == "" {
					body = "{}"
				}
				return b.json(rt.Method, path, body)
			})
		})
	}
}

// refused checks an error, of a HEAD by its header.
func (a answer) refused(t *testing.T, status int, code string) {
	t.Helper()
	if len(a.body) == 0 {
		if a.status != status || a.header.Get("X-Error-Type") != code {
			t.Errorf("got %d %v, want %d %s", a.status, a.header, status, code)
		}
		return
	}
	a.want(t, status, code)
}

// TestBug17EveryRouteKeepsAccountsApart: on each route of a sandbox, another account's is answered as one that never was, and
// nothing happens to it. A new route is in by itself.
func TestBug17EveryRouteKeepsAccountsApart(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	pid := b.launch(t, id, `{"command":"sleep 30","stdin_open":true}`)["id"].(string)
	other := *b
	other.key = b.json("POST", "/v1/keys", `{"account":"other"}`).ok(t, 201).json(t)["secret"].(string)
	own := other.sandbox("{}")
	eachRoute(t, func(t *testing.T, _ string, send func(*bed, string, string) answer) {
		const unknown = "sb00000000000000000000"
		stolen, never := send(&other, id, pid), send(&other, unknown, pid)
		stolen.refused(t, 404, "not_found")
		never.refused(t, 404, "not_found")
		if len(stolen.body) > 0 && strings.ReplaceAll(stolen.fault(t)["message"].(string), id, unknown) != never.fault(t)["message"] {
			t.Errorf("they can be told apart: %s %s", stolen.body, never.body)
		}
		if a := send(&other, own, pid); strings.Contains(a.header.Get("Content-Type"), "json") && strings.Contains(string(a.body), pid) && a.status < 400 {
			t.Errorf("the process of another's sandbox through one's own: %d %s", a.status, a.body)
		}
	})
	if got := b.get("/v1/sandboxes/"+id).ok(t, 200).json(t); got["status"] != "running" || got["name"] != nil {
		t.Errorf("the sandbox: %v", got)
	}
	if got := data(b.get("/v1/sandboxes/"+id+"/processes").ok(t, 200).json(t)); len(got) != 1 || got[0]["status"] != "running" {
		t.Errorf("its processes: %v", got)
	}
	if got := b.get("/v1/sandboxes/"+id+"/files?path=.&list=true").ok(t, 200).json(t)["entries"].([]any); len(got) != 0 {
		t.Errorf("its files: %v", got)
	}
}

// TestRoutesOfASandboxThatDoesNotRun: whatever needs a machine says that there is none yet, or none any more.
func TestRoutesOfASandboxThatDoesNotRun(t *testing.T) {
	b := newBed(t, nil)
	gone := b.sandbox("{}")
	pid := b.launch(t, gone, `{"command":"sleep 30"}`)["id"].(string)
	b.send("DELETE", "/v1/sandboxes/"+gone, nil).ok(t, 200)
	release := make(chan struct{})
	b.node.mu.Lock()
	b.node.creating = func(ctx context.Context, _ dayfly.Sandbox) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	b.node.mu.Unlock()
	young := b.json("POST", "/v1/sandboxes", "{}", "Prefer", "respond-async").ok(t, 202).json(t)["id"].(string)
	eachRoute(t, func(t *testing.T, name string, send func(*bed, string, string) answer) {
		if withoutMachine[name] {
			return
		}
		send(b, young, pid).refused(t, 409, "sandbox_not_running")
		ended := send(b, gone, pid)
		ended.refused(t, 410, "gone")
		if len(ended.body) > 0 {
			if d := ended.fault(t)["details"].(map[string]any); d["end_reason"] != "requested" || d["ended_at"] == nil {
				t.Errorf("details %v", d)
			}
		}
	})
	close(release)
}
