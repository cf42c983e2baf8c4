package api_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"dayfly.dev/dayfly/internal/api"
)

func TestMetrics(t *testing.T) {
	b := newBed(t, nil)
	gone, live := b.sandbox("{}"), b.sandbox("{}")
	b.json("POST", "/v1/sandboxes/"+live+"/exec", `{"command":"true"}`).ok(t, 200)
	b.json("POST", "/v1/sandboxes/"+live+"/exec", `{"command":"true","stream":true}`).ok(t, 200)
	b.send("DELETE", "/v1/sandboxes/"+gone, nil).ok(t, 200)
	a := b.get("/metrics", "Authorization", "").ok(t, 200)
	if kind := a.header.Get("Content-Type"); !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
		t.Errorf("type %q", kind)
	}
	text := string(a.body)
	for _, line := range []string{
		`dayfly_sandboxes{status="running"} 1`, `dayfly_sandboxes{status="provisioning"} 0`, `dayfly_sandboxes_ended_total{reason="requested"} 1`,
		`dayfly_sandboxes_ended_total{reason="lease_expired"} 0`, `dayfly_sandbox_create_seconds_count 2`, `dayfly_exec_seconds_count 2`,
		`dayfly_execs_running 0`, `dayfly_sandbox_delete_seconds_count 1`, `dayfly_lease_end_lateness_seconds_count 0`,
		`dayfly_metrics_source_failed{source="sandboxes"} 0`, `dayfly_build_info{version="v1.2.3"} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
	for _, name := range []string{"process_resident_memory_bytes", "process_open_fds", "go_goroutines"} {
		if !strings.Contains(text, "\n"+name+" ") {
			t.Errorf("no %s", name)
		}
	}
	if strings.Contains(text, live) || strings.Contains(text, gone) {
		t.Error("a sandbox is named")
	}
	b.send("POST", "/metrics", nil).want(t, 405, "method_not_allowed")
	b.get("/metrics?x=1").want(t, 400, "invalid_request")
}

func TestMetricsAreForAdminsOrThisMachine(t *testing.T) {
	b := newBed(t, nil)
	team := b.json("POST", "/v1/keys", `{"account":"team"}`).ok(t, 201).json(t)["secret"].(string)
	handler := api.New(b.plane, api.Options{Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("figures")) })})
	for _, tt := range []struct {
		name, from, key, header string
		status                  int
	}{
		{"this machine", "127.0.0.1:1000", "", "", 200},
		{"this machine, IPv6", "[::1]:1000", "", "", 200},
		{"this machine, mapped", "[::ffff:127.0.0.1]:1000", "", "", 200},
		{"another machine", "192.0.2.1:1000", "", "", 401},
		{"another machine, admin", "192.0.2.1:1000", b.key, "", 200},
		{"another machine, no admin", "192.0.2.1:1000", team, "", 403},
		{"this machine, no admin", "127.0.0.1:1000", team, "", 403},
		{"this machine, no key of ours", "127.0.0.1:1000", "dfk_x", "", 401},
		{"a proxy", "127.0.0.1:1000", "", "X-Forwarded-For", 401},
		{"a proxy, admin", "127.0.0.1:1000", b.key, "Forwarded", 200},
		{"no address", "@", "", "", 401},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/metrics", nil)
			r.RemoteAddr = tt.from
			if tt.key != "" {
				r.Header.Set("Authorization", "Bearer "+tt.key)
			}
			if tt.header != "" {
				r.Header.Set(tt.header, "for=192.0.2.1")
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != tt.status || (w.Body.String() == "figures") != (tt.status == 200) {
				t.Errorf("got %d %s, want %d", w.Code, w.Body, tt.status)
			}
		})
	}
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.RemoteAddr = "127.0.0.1:1000"
	w := httptest.NewRecorder()
	api.New(b.plane, api.Options{}).ServeHTTP(w, r)
	if w.Code != 404 {
		t.Errorf("a server without metrics: %d", w.Code)
	}
}
