package api_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func TestSandboxLife(t *testing.T) {
	b := newBed(t, nil)
	made := b.json("POST", "/v1/sandboxes", `{"size":"small","timeout_minutes":20,"on_lease_end":"stop","labels":{"repo":"shop","pr":"a:b"},
		"env":{"B":"2","A":"1"},"name":"one","network":{"internet":false},"vcpu":2.0}`).ok(t, 201)
	golden(t, "create", made.body)
	id := made.json(t)["id"].(string)
	path := "/v1/sandboxes/" + id
	golden(t, "patch", b.json("PATCH", path, `{"labels":{"k":"v"},"name":null}`).ok(t, 200).body)
	if got := b.json("PATCH", path, `{}`).ok(t, 200).json(t); got["labels"].(map[string]any)["k"] != "v" {
		t.Errorf("an empty patch changed %v", got)
	}
	golden(t, "extend", b.json("POST", path+"/extend", `{"additional_seconds":60}`).ok(t, 200).body)
	if got := b.json("POST", path+"/extend", `{"additional_minutes":1440}`).ok(t, 200).json(t); got["clamped"] != true || got["expires_at"] != got["ceiling_at"] {
		t.Errorf("at the ceiling: %v", got)
	}
	b.json("POST", path+"/extend", ``).want(t, 409, "lease_ceiling")
	deleted := b.send("DELETE", path, nil).ok(t, 200)
	golden(t, "delete", deleted.body)
	if left := deleted.json(t)["remaining_ms"]; left != 0.0 {
		t.Errorf("remaining_ms is %v after the end", left)
	}
	again := b.json("POST", path+"/stop", `{}`).ok(t, 200).json(t)
	if again["ended_at"] != deleted.json(t)["ended_at"] {
		t.Errorf("the end moved: %v", again)
	}
	gone := b.json("POST", path+"/extend", `{}`).want(t, 410, "gone").fault(t)["details"].(map[string]any)
	if gone["end_reason"] != "requested" || gone["ended_at"] == nil {
		t.Errorf("details: %v", gone)
	}
	b.json("POST", path+"/exec", `{"command":"true"}`).want(t, 410, "gone")
	b.get(path+"/files?path=x").want(t, 410, "gone")
	b.get(path).ok(t, 200)
}

func TestPause(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	path := "/v1/sandboxes/" + id
	golden(t, "pause", b.json("POST", path+"/pause", ``).ok(t, 200).body)
	if got := b.json("POST", path+"/pause", `{}`).ok(t, 200).json(t); got["status"] != "paused" {
		t.Errorf("paused again: %v", got)
	}
	for _, refused := range []answer{
		b.json("POST", path+"/exec", `{"command":"true"}`), b.get(path + "/files?path=x"), b.get(path + "/processes"),
	} {
		fault := refused.want(t, 409, "sandbox_not_running").fault(t)
		if fault["details"].(map[string]any)["status"] != "paused" || !strings.Contains(fault["hint"].(string), "resume") {
			t.Errorf("refused with %v", fault)
		}
	}
	b.json("POST", path+"/extend", `{}`).ok(t, 200)
	b.json("PATCH", path, `{"name":"still"}`).ok(t, 200)
	if got := b.get("/v1/sandboxes?status=paused").ok(t, 200).json(t)["data"].([]any); len(got) != 1 {
		t.Errorf("listed as paused: %v", got)
	}
	b.json("POST", path+"/pause", `{"memory":true}`).want(t, 400, "invalid_request")
	if got := b.json("POST", path+"/resume", `{}`, "Idempotency-Key", "r").ok(t, 200).json(t); got["status"] != "running" {
		t.Errorf("resumed: %v", got)
	}
	b.json("POST", path+"/exec", `{"command":"true"}`).ok(t, 200)
	b.json("POST", path+"/pause", `{}`).ok(t, 200)
	if got := b.json("POST", path+"/resume", `{}`, "Idempotency-Key", "r").ok(t, 200).json(t); got["replayed"] != true || got["status"] != "paused" {
		t.Errorf("a replay does nothing and shows what is: %v", got)
	}
	if got := b.send("DELETE", path, nil).ok(t, 200).json(t); got["status"] != "deleted" {
		t.Errorf("deleted: %v", got)
	}
	b.json("POST", path+"/pause", `{}`).want(t, 410, "gone")
	b.json("POST", path+"/resume", `{}`).want(t, 410, "gone")
	b.json("POST", "/v1/sandboxes/sb00000000000000000000/pause", `{}`).want(t, 404, "not_found")
	events := data(b.get(path + "/events").json(t))
	if got := kinds(events); got != "sandbox.accepted sandbox.running sandbox.paused sandbox.extended sandbox.resumed sandbox.paused sandbox.deleting sandbox.ended" {
		t.Errorf("events %s", got)
	}
}

// TestWallClockSteps: what is told of a lease is told by the clock of the answer; what remains and what is billed never jumps.
func TestWallClockSteps(t *testing.T) {
	for name, by := range map[string]time.Duration{"forward": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, nil)
			made := b.json("POST", "/v1/sandboxes", `{"timeout_minutes":20}`).ok(t, 201).json(t)
			path := "/v1/sandboxes/" + made["id"].(string)
			b.node.stepped.Add(int64(by))
			got := b.get(path).ok(t, 200).json(t)
			for _, field := range []string{"expires_at", "ceiling_at"} {
				if moved := when(t, got, field).Sub(when(t, made, field)) - by; moved.Abs() > time.Second {
					t.Errorf("%s is %v, was %v", field, got[field], made[field])
				}
			}
			if left := time.Duration(got["remaining_ms"].(float64)) * time.Millisecond; left > 20*time.Minute || left < 18*time.Minute {
				t.Errorf("%s remain", left)
			}
			if got["created_at"] != made["created_at"] || got["ready_at"] != made["ready_at"] || got["billed_seconds"].(float64) > 60 {
				t.Errorf("after the step: %v", got)
			}
			b.json("POST", path+"/extend", `{"additional_minutes":1440}`).ok(t, 200)
			if got := b.get(path).ok(t, 200).json(t); got["expires_at"] != got["ceiling_at"] {
				t.Errorf("at the ceiling: %v", got)
			}
			ended := b.send("DELETE", path, nil).ok(t, 200).json(t)
			if ended["billed_seconds"].(float64) > 60 || when(t, ended, "ended_at").Sub(time.Now().Add(by)).Abs() > time.Minute {
				t.Errorf("after the end: %v", ended)
			}
		})
	}
}

func when(t *testing.T, sb map[string]any, field string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, sb[field].(string))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestCreateIsStrict(t *testing.T) {
	b := newBed(t, nil)
	long := strings.Repeat("x", 300)
	var many []string
	for i := range 33 {
		many = append(many, fmt.Sprintf(`"k%d":""`, i))
	}
	for _, tt := range []struct {
		name, body string
		fields     string // space-separated; empty: the whole body is wrong
	}{
		{"null", `null`, ""}, {"list", `[]`, ""}, {"text", `"x"`, ""}, {"trailing", `{} {}`, ""}, {"trailing comma", `{},`, ""},
		{"cut", `{"size":`, ""}, {"not UTF-8", "{\"name\":\"\xff\"}", ""}, {"twice", `{"size":"small","size":"large"}`, ""},
		{"BOM", "\uFEFF{}", ""}, {"NaN", `{"timeout_minutes":NaN}`, ""},
		{"unknown", `{"zz":1,"aa":2,"Size":"small"}`, "zz aa Size"},
		{"all at once", `{"size":7,"vcpu":"2","memory_mb":1,"disk_mb":-1,"image":[],"labels":[],"env":7,"name":"a b","network":3,"what":1}`,
			"size vcpu memory_mb disk_mb image labels env name network what"},
		{"not yet", `{"volumes":[],"snapshot":"x","secrets":{},"repo":"x","artifacts":[],"funding":1}`, "volumes snapshot secrets repo artifacts funding"},
		{"nested", `{"network":{"internet":"yes","allow":[]}}`, "network.internet network.allow"},
		{"zero", `{"timeout_minutes":0}`, "timeout_minutes"},
		{"negative", `{"timeout_minutes":-5}`, "timeout_minutes"},
		{"half", `{"timeout_minutes":0.5}`, "timeout_minutes"},
		{"text number", `{"timeout_minutes":"60"}`, "timeout_minutes"},
		{"null number", `{"timeout_minutes":null}`, "timeout_minutes"},
		{"huge", `{"timeout_minutes":1e400}`, "timeout_minutes"},
		{"2^63", `{"timeout_seconds":9223372036854775808}`, "timeout_seconds"},
		{"tiny", `{"timeout_seconds":4}`, "timeout_seconds"},
		{"a day and more", `{"timeout_seconds":86401}`, "timeout_seconds"},
		{"true", `{"timeout_seconds":true}`, "timeout_seconds"},
		{"both", `{"timeout_seconds":60,"timeout_minutes":1}`, "timeout_seconds"},
		{"lease end", `{"on_lease_end":"snapshot"}`, "on_lease_end"},
		{"33 labels", `{"labels":{` + strings.Join(many, ",") + `}}`, "labels"},
		{"label twice", `{"labels":{"a":"1","a":"2"}}`, "labels"},
		{"label key", `{"labels":{"":"x","a:b":"x","n":1}}`, "labels. labels.a:b labels.n"},
		{"label value", `{"labels":{"k":"` + long + `"}}`, "labels.k"},
		{"env name", `{"env":{"":"x","A=B":"x"}}`, "env. env.A=…"},
		{"env NUL", `{"env":{"A":"x\u0000"}}`, "env.A"},
		{"half a pair", `{"env":{"A":"\ud800"},"image":"\udc00x"}`, "env.A image"},
		{"name with NUL", `{"name":"a\u0000"}`, "name"},
		{"long name", `{"name":"` + long + `"}`, "name"},
		{"empty name", `{"name":""}`, "name"},
		{"unknown image", `{"image":"none"}`, "image"},
		{"unknown size", `{"size":"giant"}`, "size"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := b.json("POST", "/v1/sandboxes", tt.body).want(t, 400, "invalid_request")
			sameNames(t, "fields", strings.Fields(strings.ReplaceAll(tt.fields, "labels. ", "labels. ")), keys(got.fields(t)))
		})
	}
	for _, tt := range []struct {
		name, body string
		status     int
		code       string
	}{
		{"no node ever", `{"vcpu":1000}`, 409, "size_unavailable"},
		{"not now", `{"vcpu":40}`, 503, "no_capacity"},
		{"isolation", `{"isolation":"vault"}`, 400, "invalid_request"},
	} {
		t.Run(tt.name, func(t *testing.T) { b.json("POST", "/v1/sandboxes", tt.body).want(t, tt.status, tt.code) })
	}
	b.json("POST", "/v1/sandboxes", `{"env":{"A":"😀"},"labels":{"k":"`+long[:255]+`"},"name":"`+long[:63]+`","timeout_seconds":5}`).ok(t, 201)
	if found := b.get("/v1/sandboxes?status=running").ok(t, 200).json(t)["data"].([]any); len(found) != 1 {
		t.Errorf("bad requests made %d sandboxes", len(found)-1)
	}
}

func keys(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	return out
}

func TestListing(t *testing.T) {
	b := newBed(t, nil)
	for i := range 5 {
		b.sandbox(fmt.Sprintf(`{"labels":{"n":"%d","k":"a:b"},"name":"s%d"}`, i, i))
	}
	count := func(query string) int {
		t.Helper()
		return len(b.get("/v1/sandboxes?"+query).ok(t, 200).json(t)["data"].([]any))
	}
	for query, want := range map[string]int{
		"": 5, "label=k:a:b": 5, "label=k:a:b&label=n:3": 1, "label=n:1&label=n:2": 0, "label=n:": 0, "name=s2": 1, "limit=2": 2,
		"status=deleted": 0, "status=running&status=failed": 5, "include_ended=true": 5, "include_ended=false": 5,
	} {
		if got := count(query); got != want {
			t.Errorf("?%s lists %d, want %d", query, got, want)
		}
	}
	seen, cursor := 0, ""
	for {
		page := b.get("/v1/sandboxes?limit=2"+cursor).ok(t, 200).json(t)
		for _, one := range page["data"].([]any) {
			seen++
			b.send("DELETE", "/v1/sandboxes/"+one.(map[string]any)["id"].(string), nil).ok(t, 200)
		}
		if page["next_cursor"] == nil {
			break
		}
		cursor = "&cursor=" + page["next_cursor"].(string)
	}
	if seen != 5 || count("") != 0 || count("status=deleted") != 5 || count("include_ended=true") != 5 {
		t.Errorf("visited %d, left %d, ended %d", seen, count(""), count("status=deleted"))
	}
	for query, field := range map[string]string{
		"limit=0": "limit", "limit=101": "limit", "limit=x": "limit", "limit=": "limit", "limit=%2B5": "limit", "limit=1&limit=2": "limit",
		"status=": "status", "status=Running": "status", "label=x": "label", "label=:v": "label", "name=": "name",
		"name=%00": "name", "include_ended=yes": "include_ended", "labels=x": "labels", "label=k:%FF": "label",
	} {
		if got := b.get("/v1/sandboxes?"+query).want(t, 400, "invalid_request").fields(t); got[field] == "" {
			t.Errorf("?%s names %v", query, got)
		}
	}
	b.get("/v1/sandboxes?cursor=!!").want(t, 400, "invalid_request")
	b.get("/v1/sandboxes?a=%zz").want(t, 400, "invalid_request")
	b.get("/v1/sandboxes?a=1;b=2").want(t, 400, "invalid_request")
	if got := b.get("/v1/sandboxes?zz=1&limit=0&status=x").fields(t); len(got) != 3 {
		t.Errorf("not all are named: %v", got)
	}
	b.json("POST", "/v1/sandboxes?x=1", `{}`).want(t, 400, "invalid_request")
}

func TestOtherAccountsSeeNothing(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	other := *b
	other.key = b.json("POST", "/v1/keys", `{"account":"other"}`).ok(t, 201).json(t)["secret"].(string)
	for _, path := range []string{"", "/processes", "/files?path=x", "/files/content?path=x"} {
		other.get("/v1/sandboxes/"+id+path).want(t, 404, "not_found")
	}
	other.send("DELETE", "/v1/sandboxes/"+id, nil).want(t, 404, "not_found")
	other.json("POST", "/v1/sandboxes/"+id+"/exec", `{"command":"true"}`).want(t, 404, "not_found")
	other.json("POST", "/v1/sandboxes/"+id+"/extend", `{}`).want(t, 404, "not_found")
	if got := other.get("/v1/sandboxes").json(t)["data"].([]any); len(got) != 0 {
		t.Errorf("the other account lists %v", got)
	}
	other.get("/v1/accounts").want(t, 403, "forbidden")
}

func TestIdempotency(t *testing.T) {
	b := newBed(t, nil)
	first := b.json("POST", "/v1/sandboxes", `{"timeout_minutes":20,"labels":{"a":"1","b":"2"}}`, "Idempotency-Key", "job-1").ok(t, 201)
	if first.header.Get("Idempotency-Replayed") != "" || first.json(t)["replayed"] != nil {
		t.Error("the first is no replay")
	}
	id := first.json(t)["id"]
	again := b.json("POST", "/v1/sandboxes", ` { "labels" : {"b":"2","a":"1"}, "timeout_minutes": 20 }`, "Idempotency-Key", "job-1").ok(t, 201)
	if again.json(t)["id"] != id || again.json(t)["replayed"] != true || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("replay: %v %s", again.header, again.body)
	}
	b.json("POST", "/v1/sandboxes", `{}`, "Idempotency-Key", "job-1").want(t, 422, "idempotency_key_reused")
	b.json("POST", fmt.Sprintf("/v1/sandboxes/%s/extend", id), `{"timeout_minutes":20}`, "Idempotency-Key", "job-1").want(t, 400, "invalid_request")
	b.json("POST", "/v1/sandboxes", `{"vcpu":40}`, "Idempotency-Key", "burnt").want(t, 503, "no_capacity")
	b.json("POST", "/v1/sandboxes", `{}`, "Idempotency-Key", "burnt").ok(t, 201)
	for name, key := range map[string]string{"long": strings.Repeat("k", 256), "not UTF-8": "\xff"} {
		t.Run(name, func(t *testing.T) {
			b.json("POST", "/v1/sandboxes", `{}`, "Idempotency-Key", key).want(t, 400, "invalid_request")
		})
	}
	b.json("POST", "/v1/sandboxes", `{}`, "Idempotency-Key", strings.Repeat("ä", 255)).ok(t, 201)
	t.Run("empty", func(t *testing.T) {
		conn := b.raw(t, "POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+b.key+"\r\nIdempotency-Key:\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		if got := readAll(t, conn); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
			t.Errorf("got %s", got)
		}
	})
	t.Run("extend", func(t *testing.T) {
		path := fmt.Sprintf("/v1/sandboxes/%s/extend", id)
		before := b.json("POST", path, `{}`, "Idempotency-Key", "e").ok(t, 200).json(t)
		after := b.json("POST", path, ``, "Idempotency-Key", "e").ok(t, 200).json(t)
		if after["replayed"] != true || after["remaining_ms"].(float64) > before["remaining_ms"].(float64) {
			t.Errorf("extended twice: %v then %v", before["remaining_ms"], after["remaining_ms"])
		}
	})
	t.Run("stop", func(t *testing.T) {
		path := "/v1/sandboxes/" + b.sandbox("{}") + "/stop"
		b.json("POST", path, `{}`, "Idempotency-Key", "s").ok(t, 200)
		if got := b.json("POST", path, `{}`, "Idempotency-Key", "s").ok(t, 200).json(t); got["replayed"] != true || got["status"] != "deleted" {
			t.Errorf("replay: %v", got)
		}
	})
	t.Run("in parallel", func(t *testing.T) {
		ids := make([]any, 10)
		var all sync.WaitGroup
		for i := range ids {
			all.Go(func() {
				ids[i] = b.json("POST", "/v1/sandboxes", `{"name":"par"}`, "Idempotency-Key", "par").json(t)["id"]
			})
		}
		all.Wait()
		for _, one := range ids {
			if one != ids[0] || one == nil {
				t.Fatalf("ids differ: %v", ids)
			}
		}
	})
}

func TestAsyncCreate(t *testing.T) {
	b := newBed(t, nil)
	release := make(chan struct{})
	b.node.creating = func(context.Context, dayfly.Sandbox) error { <-release; return nil }
	got := b.json("POST", "/v1/sandboxes", `{}`, "Prefer", "wait=10, Respond-Async").ok(t, 202).json(t)
	if got["status"] != "provisioning" || got["ready_at"] != nil {
		t.Errorf("answered %v", got)
	}
	b.json("POST", "/v1/sandboxes/"+got["id"].(string)+"/exec", `{"command":"true"}`).want(t, 409, "sandbox_not_running")
	close(release)
}

// TestLongAnswers shows the signs of life of a slow create, in success and in failure.
func TestLongAnswers(t *testing.T) {
	b := newBed(t, nil)
	for _, tt := range []struct {
		name string
		err  error
	}{
		{"success", nil},
		{"failure", dayfly.Errorf(dayfly.CodeDiskFull, "the disk is full").WithHint("free some")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.node.mu.Lock()
			b.node.creating = func(ctx context.Context, _ dayfly.Sandbox) error {
				slow := time.NewTimer(5 * testSilence)
				defer slow.Stop()
				<-slow.C
				return tt.err
			}
			b.node.mu.Unlock()
			got := b.json("POST", "/v1/sandboxes", `{}`).ok(t, 201)
			if len(got.body) == 0 || got.body[0] != ' ' {
				t.Errorf("no sign of life: %q", got.body)
			}
			if tt.err == nil {
				if got.json(t)["status"] != "running" {
					t.Errorf("body: %s", got.body)
				}
				return
			}
			if e := got.fault(t); e["status"] != 507.0 || e["type"] != "disk_full" || e["hint"] != "free some" {
				t.Errorf("error: %v", e)
			}
		})
	}
}

// TestLongUploads shows that signs of life begin only behind the end of an upload: before, nobody would read them.
func TestLongUploads(t *testing.T) {
	b := newBed(t, nil)
	b.images.unpacking = 5 * testSilence
	if got := b.send("POST", "/v1/images?name=slow", strings.NewReader("tar")).ok(t, 201); got.body[0] != ' ' || got.json(t)["name"] != "slow" {
		t.Errorf("got %q", got.body)
	}
	path := "/v1/sandboxes/" + b.sandbox("{}") + "/files/content?path=dir"
	b.send("PUT", path+"/f", strings.NewReader("")).ok(t, 200)
	body := &pausing{pause: 5 * testSilence, left: []string{"a", "b"}}
	b.send("PUT", path, body).want(t, 409, "file_conflict")
}

// pausing is a body whose parts come slowly.
type pausing struct {
	pause time.Duration
	left  []string
}

func (p *pausing) Read(buf []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	wait := time.NewTimer(p.pause)
	defer wait.Stop()
	<-wait.C
	n := copy(buf, p.left[0])
	p.left = p.left[1:]
	return n, nil
}
