package api_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly/internal/api"
)

// launch starts a process in the background and gives its record.
func (b *bed) launch(t *testing.T, id, body string, header ...string) map[string]any {
	t.Helper()
	return b.json("POST", "/v1/sandboxes/"+id+"/processes", body, header...).ok(t, 201).json(t)
}

func TestLaunch(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	base := "/v1/sandboxes/" + id + "/processes"
	started := b.json("POST", base, `{"command":"read line; echo got $line; echo err >&2; exit 3","name":"web.1","stdin":"in\n","restart":"on-failure","restarts":2}`).ok(t, 201)
	p := started.json(t)
	if p["name"] != "web.1" || p["on_disconnect"] != "continue" || p["restart"] != "on-failure" || p["tty"] != nil || p["replayed"] != nil {
		t.Errorf("started %v", p)
	}
	pid := base + "/" + p["id"].(string)
	if ended := b.get(pid+"/wait").ok(t, 200).json(t); ended["status"] != "exited" || ended["exit_code"] != 3.0 || ended["signal"] != nil {
		t.Errorf("ended %v", ended)
	}
	if got := parseEvents(t, b.get(pid+"/output?follow=true").ok(t, 200)); got[1]["data"] != "got in\n" || got[2]["data"] != "err\n" || got[3]["exit_code"] != 3.0 {
		t.Errorf("output %v", got)
	}
	for _, tt := range []struct{ name, body, fields string }{
		{"nothing", `{}`, "command"},
		{"a stream", `{"command":"x","stream":true}`, "stream"},
		{"names", `{"command":"x","name":""}`, "name"},
		{"long name", `{"command":"x","name":"` + strings.Repeat("n", 64) + `"}`, "name"},
		{"half a terminal", `{"command":"x","tty":{"cols":80}}`, "tty.rows"},
		{"no terminal", `{"command":"x","tty":{"cols":0,"rows":1001,"x":1}}`, "tty.cols tty.rows tty.x"},
		{"a terminal that is true", `{"command":"x","tty":true}`, "tty"},
		{"restarts alone", `{"command":"x","restarts":3}`, "restarts"},
		{"too many restarts", `{"command":"x","restart":"on-failure","restarts":101}`, "restarts"},
		{"bug 48: timeouts", `{"command":"x","timeout_ms":0,"restart":"always"}`, "timeout_ms restart"},
		{"bug 48: a fraction", `{"command":"x","timeout_ms":0.5}`, "timeout_ms"},
		{"bug 48: beyond every number", `{"command":"x","timeout_ms":1e400}`, "timeout_ms"},
		{"bug 48: a text", `{"command":"x","timeout_ms":"60"}`, "timeout_ms"},
		{"much input", `{"command":"x","stdin":"` + strings.Repeat("x", api.LaunchStdinMax+1) + `"}`, "stdin"},
		{"many at once", `{"argv":[],"cwd":1,"env":{"":""},"name":"a b","on_disconnect":"x"}`, "argv cwd env. name on_disconnect"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sameNames(t, "fields", strings.Fields(tt.fields), keys(b.json("POST", base, tt.body).want(t, 400, "invalid_request").fields(t)))
		})
	}
	if n := len(data(b.get(base).ok(t, 200).json(t))); n != 1 {
		t.Errorf("%d processes", n)
	}
}

func TestLaunchOnce(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	body := `{"command":"sleep 30","name":"one"}`
	first := b.launch(t, id, body, "Idempotency-Key", "k")
	answers := make(chan answer, 5)
	for range cap(answers) {
		go func() { answers <- b.json("POST", "/v1/sandboxes/"+id+"/processes", body, "Idempotency-Key", "k") }()
	}
	for range cap(answers) {
		again := (<-answers).ok(t, 201)
		if v := again.json(t); v["id"] != first["id"] || v["replayed"] != true || again.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("again: %v", v)
		}
	}
	base := "/v1/sandboxes/" + id + "/processes"
	b.json("POST", base, `{"command":"true"}`, "Idempotency-Key", "k").want(t, 422, "idempotency_key_reused")
	b.json("POST", base, body).want(t, 409, "conflict")
	b.json("POST", base, `{"command":"echo second","name":"one"}`, "Idempotency-Key", "later").want(t, 409, "conflict")
	b.json("POST", base+"/"+first["id"].(string)+"/signal", `{"signal":"KILL"}`).ok(t, 200)
	ended := b.get(base+"/"+first["id"].(string)+"/wait").ok(t, 200).json(t)
	if ended["signal"] != "KILL" || ended["exit_code"] != 137.0 || ended["duration_ms"] == nil {
		t.Errorf("ended %v", ended)
	}
	// A refused start does not burn its key, and the name is free.
	b.json("POST", base, `{"command":"echo second","name":"one"}`, "Idempotency-Key", "later").ok(t, 201)
}

// TestBug49ProcessesAreFilteredExactly: a filter that matches nothing gives nothing, and one that is wrong is refused.
func TestBug49ProcessesAreFilteredExactly(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	base := "/v1/sandboxes/" + id + "/processes"
	web := b.launch(t, id, `{"command":"sleep 30","name":"web"}`)["id"]
	done := b.launch(t, id, `{"command":"true","name":"job"}`)["id"].(string)
	b.get(base+"/"+done+"/wait").ok(t, 200)
	for query, want := range map[string][]any{
		"": {web, done}, "?name=web": {web}, "?name=job": {done}, "?name=none": nil, "?status=running": {web}, "?status=exited": {done},
		"?status=exited&name=web": nil, "?limit=1&name=job": {done},
	} {
		got := map[any]bool{}
		for _, p := range data(b.get(base+query).ok(t, 200).json(t)) {
			got[p["id"]] = true
		}
		if len(got) != len(want) {
			t.Errorf("%s lists %v", query, got)
		}
		for _, one := range want {
			if !got[one] {
				t.Errorf("%s lacks %v", query, one)
			}
		}
	}
	for query, field := range map[string]string{"status=x": "status", "status=running&status=exited": "status", "name=": "name", "name=a%20b": "name", "state=running": "state", "limit=0": "limit"} {
		if got := b.get(base+"?"+query).want(t, 400, "invalid_request").fields(t); got[field] == "" {
			t.Errorf("?%s names %v", query, got)
		}
	}
}

func TestAwaitProcess(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	p := b.launch(t, id, `{"argv":["cat"],"stdin_open":true,"on_disconnect":"kill"}`)
	path := "/v1/sandboxes/" + id + "/processes/" + p["id"].(string)
	for _, timeout := range []string{"0", "20"} {
		if got := b.get(path+"/wait?timeout_ms="+timeout).ok(t, 200).json(t); got["status"] != "running" || got["exit_code"] != nil {
			t.Errorf("after %s ms: %v", timeout, got)
		}
	}
	answers := make(chan answer)
	go func() { answers <- b.get(path + "/wait?timeout_ms=86400000") }()
	b.send("POST", path+"/stdin?close=true", strings.NewReader("x")).ok(t, 200)
	if got := <-answers; got.ok(t, 200).json(t)["status"] != "exited" {
		t.Errorf("got %s", got.body)
	}
	for _, query := range []string{"timeout_ms=-1", "timeout_ms=86400001", "timeout_ms=1.5", "timeout=1"} {
		b.get(path+"/wait?"+query).want(t, 400, "invalid_request")
	}
	b.get("/v1/sandboxes/"+id+"/processes/pr00000000000000000000/wait").want(t, 404, "not_found")
}

// TestBug43LongWaitsAreKeptAlive: a wait that is silent for long sends signs of life, and answers.
func TestBug43LongWaitsAreKeptAlive(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	pid := b.launch(t, id, `{"command":"sleep 30"}`)["id"].(string)
	for _, path := range []string{"/processes/" + pid + "/wait?timeout_ms=200", "/ports/80/wait?timeout_ms=200"} {
		a := b.get("/v1/sandboxes/"+id+path).ok(t, 200)
		if a.body[0] != ' ' || a.json(t)["status"] != "running" && a.json(t)["listening"] != false {
			t.Errorf("%s: %q", path, a.body)
		}
	}
}

func TestResize(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	p := b.launch(t, id, `{"command":"stty size; read x; stty size","tty":{"cols":80,"rows":24}}`)
	path := "/v1/sandboxes/" + id + "/processes/" + p["id"].(string)
	if got, _ := json.Marshal(p["tty"]); string(got) != `{"cols":80,"rows":24}` {
		t.Errorf("tty %s", got)
	}
	resized := b.json("POST", path+"/resize", `{"cols":132,"rows":43}`, "Idempotency-Key", "r").ok(t, 200).json(t)
	if got, _ := json.Marshal(resized["tty"]); string(got) != `{"cols":132,"rows":43}` {
		t.Errorf("tty %s", got)
	}
	if again := b.json("POST", path+"/resize", `{"cols":132,"rows":43}`, "Idempotency-Key", "r").ok(t, 200).json(t); again["replayed"] != true || again["id"] != p["id"] {
		t.Errorf("again %v", again)
	}
	b.send("POST", path+"/stdin", strings.NewReader("\n")).ok(t, 200)
	b.get(path+"/wait").ok(t, 200)
	if got := b.get(path+"/output").ok(t, 200); !strings.Contains(string(got.body), "43 132") {
		t.Errorf("output %s", got.body)
	}
	for body, fields := range map[string]string{`{}`: "cols rows", `{"cols":1}`: "rows", `{"cols":0,"rows":"x"}`: "cols rows", `{"cols":1,"rows":1001,"x":1}`: "rows x"} {
		sameNames(t, "fields", strings.Fields(fields), keys(b.json("POST", path+"/resize", body).want(t, 400, "invalid_request").fields(t)))
	}
	pipes := b.launch(t, id, `{"command":"sleep 30"}`)["id"].(string)
	b.json("POST", "/v1/sandboxes/"+id+"/processes/"+pipes+"/resize", `{"cols":1,"rows":1}`).want(t, 409, "conflict")
}

func TestAwaitPort(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	path := "/v1/sandboxes/" + id + "/ports/"
	if got := b.get(path+"8080/wait?timeout_ms=0").ok(t, 200).json(t); got["listening"] != false || got["port"] != 8080.0 {
		t.Errorf("got %v", got)
	}
	answers := make(chan answer)
	go func() { answers <- b.get(path + "8080/wait?timeout_ms=60000") }()
	b.node.machine(id).opened(8080)
	if got := (<-answers).ok(t, 200).json(t); got["listening"] != true || got["waited_ms"] == nil {
		t.Errorf("got %v", got)
	}
	for _, port := range []string{"0", "65536", "-1", "x", "080", "+80", "1.0"} {
		if got := b.get(path+port+"/wait").want(t, 400, "invalid_request").fields(t); got["port"] == "" {
			t.Errorf("port %s: %v", port, got)
		}
	}
}

// TestBug12WhoWaitsIsToldThatTheSandboxEnded: everyone who waits hears of the end at once, with its reason, in whatever way is still possible.
func TestBug12WhoWaitsIsToldThatTheSandboxEnded(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	pid := b.launch(t, id, `{"command":"sleep 30"}`)["id"].(string)
	at := "/v1/sandboxes/" + id
	plain, streams := make(chan answer), make(chan answer)
	for _, path := range []string{"/processes/" + pid + "/wait", "/ports/80/wait"} {
		go func() { plain <- b.get(at + path) }()
	}
	for _, path := range []string{"/processes/" + pid + "/output?follow=true", "/files/watch?path=."} {
		go func() { streams <- b.get(at + path) }()
	}
	attached := b.attach(t, id, pid, "")
	attached.event("start")
	m := b.node.machine(id)
	for m.waiting() < 5 {
		time.Sleep(time.Millisecond)
	}
	b.send("DELETE", at, nil).ok(t, 200)
	for range 2 {
		if a := <-plain; a.fault(t)["type"] != "gone" || a.fault(t)["details"].(map[string]any)["end_reason"] != "requested" {
			t.Errorf("a plain answer: %s", a.body)
		}
	}
	gone := []map[string]any{attached.event("error")}
	for range 2 {
		all := parseEvents(t, (<-streams).ok(t, 200))
		gone = append(gone, all[len(all)-1])
	}
	for _, e := range gone {
		told, ok := e["error"].(map[string]any)
		if !ok || told["type"] != "gone" || told["status"] != 410.0 || told["details"].(map[string]any)["end_reason"] != "requested" {
			t.Errorf("a stream ends in %v", e)
		}
	}
	attached.closed(1011)
}
