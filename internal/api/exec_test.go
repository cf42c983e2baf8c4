package api_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func readAll(t *testing.T, conn net.Conn) string {
	t.Helper()
	data, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestExec(t *testing.T) {
	b := newBed(t, nil)
	path := "/v1/sandboxes/" + b.sandbox("{}") + "/exec"
	golden(t, "exec", b.json("POST", path, `{"command":"echo out; echo err >&2; exit 3"}`).ok(t, 200).body)
	got := b.json("POST", path, `{"argv":["cat"],"stdin":"ä\u0000b","env":{"A":"1"}}`).ok(t, 200).json(t)
	if got["stdout"] != "ä\x00b" {
		t.Errorf("stdin came back as %q", got["stdout"])
	}
	binary := b.json("POST", path, `{"command":"printf 'a\\377\\376b'"}`).ok(t, 200).json(t)
	if raw, _ := base64.StdEncoding.DecodeString(binary["stdout_b64"].(string)); binary["stdout"] != "a\uFFFD\uFFFDb" || string(raw) != "a\xff\xfeb" {
		t.Errorf("binary: %v", binary)
	}
	for _, tt := range []struct{ name, body, fields string }{
		{"nothing", `{}`, "command"},
		{"both", `{"command":"x","argv":["x"]}`, "argv"},
		{"empty command", `{"command":""}`, "command"},
		{"empty argv", `{"argv":[]}`, "argv"},
		{"no program", `{"argv":["","x"]}`, "argv"},
		{"argv of numbers", `{"argv":["x",1,null]}`, "argv[1] argv[2]"},
		{"NUL", `{"argv":["x\u0000"],"cwd":"\u0000","user":"\u0000","env":{"A":"\u0000"}}`, "argv[0] cwd user env.A"},
		{"zero timeout", `{"command":"x","timeout_ms":0}`, "timeout_ms"},
		{"huge timeout", `{"command":"x","timeout_ms":86400001}`, "timeout_ms"},
		{"half timeout", `{"command":"x","timeout_ms":0.5}`, "timeout_ms"},
		{"null", `{"command":"x","cwd":null,"stdin":null}`, "cwd stdin"},
		{"disconnect", `{"command":"x","on_disconnect":"stay"}`, "on_disconnect"},
		{"endless argv", `{"argv":["a"` + strings.Repeat(`,""`, 1<<20) + `]}`, "argv"},
		{"check is the SDK's", `{"command":"x","check":true}`, "check"},
		{"open without stream", `{"command":"x","stdin_open":true}`, "stdin_open"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sameNames(t, "fields", strings.Fields(tt.fields), keys(b.json("POST", path, tt.body).want(t, 400, "invalid_request").fields(t)))
		})
	}
	b.json("POST", path, `{"command":"x","timeout_ms":86400000,"on_disconnect":"continue"}`).ok(t, 200)
}

func TestTruncatedOutputStaysText(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	text := strings.Repeat("日", 100)
	b.node.machine(id).running = func(_ context.Context, spec dayfly.ProcessSpec) (dayfly.Result, error) {
		return dayfly.Result{ID: spec.ID, Stdout: dayfly.Captured{Head: []byte(text)[:10], Tail: []byte(text)[290:], Bytes: 300},
			Stderr: dayfly.Captured{Head: []byte(text)[:10], Tail: []byte(text)[10:], Bytes: 300}}, nil
	}
	got := b.json("POST", "/v1/sandboxes/"+id+"/exec", `{"command":"x"}`).ok(t, 200).json(t)
	if got["truncated"] != true || got["stdout"] != strings.Repeat("日", 6) || got["stdout_bytes"] != 300.0 || got["stdout_b64"] != nil {
		t.Errorf("got %v", got)
	}
	if got["stderr"] != text {
		t.Errorf("head and tail that meet: %v", got["stderr"])
	}
}

func TestExecReplay(t *testing.T) {
	b := newBed(t, nil)
	path := "/v1/sandboxes/" + b.sandbox("{}") + "/exec"
	body := `{"command":"date +%N; echo >> ran; wc -l < ran"}`
	first := b.json("POST", path, body, "Idempotency-Key", "x").ok(t, 200).json(t)
	again := b.json("POST", path, body, "Idempotency-Key", "x").ok(t, 200)
	if v := again.json(t); v["stdout"] != first["stdout"] || v["id"] != first["id"] || v["replayed"] != true || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("first %v, then %v", first, v)
	}
}

// stream sends an exec and gives its events.
func (b *bed) stream(t *testing.T, id, body string, header ...string) []map[string]any {
	t.Helper()
	return parseEvents(t, b.json("POST", "/v1/sandboxes/"+id+"/exec", body, header...).ok(t, 200))
}

// parseEvents gives the events but pings, of which a busy host may have one anywhere.
func parseEvents(t *testing.T, a answer) []map[string]any {
	t.Helper()
	var out []map[string]any
	for _, line := range events(t, a) {
		var v map[string]any
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if v["type"] != "ping" {
			out = append(out, v)
		}
	}
	return out
}

func kinds(events []map[string]any) string {
	var out []string
	for _, e := range events {
		out = append(out, e["type"].(string))
	}
	return strings.Join(out, " ")
}

func TestStream(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	got := b.stream(t, id, `{"command":"echo hi; echo no >&2; exit 4","stream":true}`)
	if kinds(got) != "start stdout stderr exit" || got[1]["data"] != "hi\n" || got[3]["exit_code"] != 4.0 || got[3]["id"] != got[0]["id"] {
		t.Errorf("events: %v", got)
	}
	for _, accept := range []string{"application/x-ndjson", "text/event-stream", "text/html;q=0.9, text/event-stream"} {
		a := b.json("POST", "/v1/sandboxes/"+id+"/exec", `{"command":"echo hi"}`, "Accept", accept).ok(t, 200)
		if kinds(parseEvents(t, a)) != "start stdout exit" && kinds(parseEvents(t, a)) != "start stdout stderr exit" {
			t.Errorf("Accept %s: %s", accept, a.body)
		}
		sse := strings.Contains(accept, "event-stream")
		if sse != strings.HasPrefix(string(a.body), "data: {") || sse != strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
			t.Errorf("Accept %s: %s", accept, a.body)
		}
	}
	if a := b.json("POST", "/v1/sandboxes/"+id+"/exec", `{"command":"echo hi"}`, "Accept", "application/json, text/event-stream").ok(t, 200); a.json(t)["stdout"] != "hi\n" {
		t.Errorf("plain: %s", a.body)
	}
	b.json("POST", "/v1/sandboxes/"+id+"/exec", `{"stream":true}`).want(t, 400, "invalid_request")
	replay := b.json("POST", "/v1/sandboxes/"+id+"/exec", `{"command":"date +%N","stream":true}`, "Idempotency-Key", "s").ok(t, 200)
	again := b.json("POST", "/v1/sandboxes/"+id+"/exec", `{"command":"date +%N","stream":true}`, "Idempotency-Key", "s").ok(t, 200)
	if first, then := parseEvents(t, replay), parseEvents(t, again); first[1]["data"] != then[1]["data"] || then[0]["replayed"] != true {
		t.Errorf("replay: %v then %v", first, then)
	}
}

func TestStreamCutsBetweenCharacters(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	data := func(offset int64, s string) dayfly.Output {
		return dayfly.Output{Kind: dayfly.OutputStdout, Offset: offset, Data: []byte(s)}
	}
	text := "a日b😀"
	var parts []dayfly.Output
	for i := range len(text) {
		parts = append(parts, data(int64(i), text[i:i+1]))
	}
	n := int64(len(text))
	parts = append(parts, data(n, "\xff"), data(n+1, "\xe6"),
		dayfly.Output{Kind: dayfly.OutputDropped, Stream: dayfly.OutputStdout, Offset: n + 2, Bytes: 5}, data(n+7, "x\xe6\x97"),
		dayfly.Output{Kind: dayfly.OutputExit, Exit: &dayfly.Exit{}})
	b.node.machine(id).following = func(ctx context.Context) dayfly.OutputStream { return &scripted{ctx: ctx, events: parts} }
	got := b.stream(t, id, `{"command":"x","stream":true}`)
	var joined []byte
	for _, e := range got {
		switch e["type"] {
		case "stdout":
			if int64(e["offset"].(float64)) != int64(len(joined)) {
				t.Errorf("offset %v after %d bytes", e["offset"], len(joined))
			}
			if s, ok := e["data"].(string); ok {
				joined = append(joined, s...)
				if strings.ContainsRune(s, '\uFFFD') {
					t.Errorf("a cut character: %v", e)
				}
				continue
			}
			raw, err := base64.StdEncoding.DecodeString(e["data_b64"].(string))
			if err != nil {
				t.Fatal(err)
			}
			joined = append(joined, raw...)
		case "dropped":
			joined = append(joined, "-----"...)
		}
	}
	if want := text + "\xff\xe6-----x\xe6\x97"; string(joined) != want {
		t.Errorf("joined %q, want %q", joined, want)
	}
	if last := got[len(got)-1]; last["type"] != "exit" || last["truncated"] != true {
		t.Errorf("last: %v", last)
	}
}

func TestBrokenStreamEndsInError(t *testing.T) {
	b := newBed(t, nil)
	for _, tt := range []struct {
		name string
		fail error
		code string
	}{
		{"machine gone", dayfly.Errorf(dayfly.CodeGone, "the sandbox has ended"), "gone"},
		{"link broken", errors.New("yamux: broken"), "internal"},
		{"end without exit", nil, "internal"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id := b.sandbox("{}")
			b.node.machine(id).following = func(ctx context.Context) dayfly.OutputStream {
				return &scripted{ctx: ctx, fail: tt.fail, events: []dayfly.Output{{Kind: dayfly.OutputStdout, Data: []byte("x\xe6")}}}
			}
			got := b.stream(t, id, `{"command":"x","stream":true}`)
			last := got[len(got)-1]
			if kinds(got) != "start stdout stdout error" || last["error"].(map[string]any)["type"] != tt.code {
				t.Errorf("bug 42: nobody saw the command end: %v", got)
			}
		})
	}
	t.Run("panic", func(t *testing.T) {
		id := b.sandbox("{}")
		b.node.machine(id).following = func(context.Context) dayfly.OutputStream { return panicking{} }
		if got := b.stream(t, id, `{"command":"x","stream":true}`); kinds(got) != "start error" {
			t.Errorf("bug 42: nobody saw the command end: %v", got)
		}
	})
}

type panicking struct{}

func (panicking) Next() (dayfly.Output, error) { panic("in a stream") }
func (panicking) Close() error                 { return nil }

// promptMax is within which something that is not held back arrives, also on a busy host.
const promptMax = 20 * time.Second

// TestStreamIsFlushedAndKeptAlive reads events while the command still runs.
func TestStreamIsFlushedAndKeptAlive(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	ctx, cancel := context.WithTimeout(context.Background(), promptMax)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", b.url+"/v1/sandboxes/"+id+"/exec", strings.NewReader(`{"argv":["cat"],"stream":true,"stdin_open":true}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+b.key)
	resp, err := b.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	next := func() map[string]any {
		t.Helper()
		var v map[string]any
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &v) != nil {
			t.Fatalf("no event: %q %v", lines.Text(), lines.Err())
		}
		return v
	}
	start := next()
	for range 2 {
		if e := next(); e["type"] != "ping" {
			t.Fatalf("got %v, want a ping", e)
		}
	}
	stdin := "/v1/sandboxes/" + id + "/processes/" + start["id"].(string) + "/stdin"
	b.send("POST", stdin, strings.NewReader("ab")).ok(t, 200)
	for range 2 { // with an offset it may be repeated
		if got := b.send("POST", stdin+"?offset=1", strings.NewReader("bc")).ok(t, 200).json(t); got["stdin_bytes"] != 3.0 {
			t.Errorf("%v", got)
		}
	}
	b.send("POST", stdin+"?offset=4", strings.NewReader("gap")).want(t, 409, "conflict")
	b.send("POST", stdin+"?offset=-1", strings.NewReader("x")).want(t, 400, "invalid_request")
	golden(t, "stdin", b.send("POST", stdin+"?close=true", strings.NewReader("d\n")).ok(t, 200).body)
	for {
		if e := next(); e["type"] == "stdout" {
			if e["data"] != "abcd\n" {
				t.Errorf("got %v", e)
			}
			break
		}
	}
}

// TestStdinAnswersWhileTheClientTypes shows that an idle standard input does not hold the answer back.
func TestStdinAnswersWhileTheClientTypes(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	conn := b.raw(t, "POST /v1/sandboxes/"+id+"/processes/pr00000000000000000000/stdin HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+b.key+
		"\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nls\r\n")
	if err := conn.SetDeadline(time.Now().Add(promptMax)); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "HTTP/1.1 404 ") {
		t.Errorf("got %q, %v", line, err)
	}
}

func TestProcesses(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	base := "/v1/sandboxes/" + id + "/processes"
	for range 3 {
		b.json("POST", "/v1/sandboxes/"+id+"/exec", `{"command":"echo 0123456789"}`).ok(t, 200)
	}
	seen, cursor := map[string]bool{}, ""
	for {
		page := b.get(base+"?limit=2"+cursor).ok(t, 200).json(t)
		for _, p := range page["data"].([]any) {
			seen[p.(map[string]any)["id"].(string)] = true
		}
		if page["next_cursor"] == nil {
			break
		}
		cursor = "&cursor=" + page["next_cursor"].(string)
	}
	if len(seen) != 3 {
		t.Fatalf("listed %v", seen)
	}
	var pid string
	for pid = range seen {
	}
	golden(t, "process", b.get(base+"/"+pid).ok(t, 200).body)
	got := parseEvents(t, b.get(base+"/"+pid+"/output?stdout_offset=4&follow=true").ok(t, 200))
	if kinds(got) != "start stdout exit" && kinds(got) != "start stdout stderr exit" || got[1]["data"] != "456789\n" || got[1]["offset"] != 4.0 {
		t.Errorf("resumed: %v", got)
	}
	if a := b.get(base+"/"+pid+"/output", "Accept", "text/event-stream").ok(t, 200); !strings.HasPrefix(string(a.body), "data: ") {
		t.Errorf("events: %s", a.body)
	}
	golden(t, "signal", b.json("POST", base+"/"+pid+"/signal", `{"signal":"SIGKILL","tree":true}`, "Idempotency-Key", "k").ok(t, 200).body)
	if got := b.json("POST", base+"/"+pid+"/signal", `{"signal":"SIGKILL","tree":true}`, "Idempotency-Key", "k").ok(t, 200).json(t); got["replayed"] != true {
		t.Errorf("replay: %v", got)
	}
	b.json("POST", base+"/"+pid+"/signal", `{"signal":"NOPE"}`).want(t, 400, "invalid_request")
	b.json("POST", base+"/"+pid+"/signal", `{"signal":9}`).want(t, 400, "invalid_request")
	b.get(base+"/"+pid+"/output?stdout_offset=-1").want(t, 400, "invalid_request")
	b.get(base+"/"+pid+"/output?stderr_offset=9223372036854775808").want(t, 400, "invalid_request")
	b.get(base+"/pr00000000000000000000").want(t, 404, "not_found")
	b.json("POST", base+"/pr00000000000000000000/signal", `{}`).want(t, 404, "not_found")
}

// TestLongExec shows that a silent command's plain answer is kept alive, and that its late failure is told.
func TestLongExec(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	b.node.machine(id).running = func(_ context.Context, _ dayfly.ProcessSpec) (dayfly.Result, error) {
		slow := time.NewTimer(4 * testSilence)
		defer slow.Stop()
		<-slow.C
		panic("late")
	}
	got := b.json("POST", "/v1/sandboxes/"+id+"/exec", `{"command":"x"}`).ok(t, 200)
	if e := got.fault(t); got.body[0] != ' ' || e["status"] != 500.0 {
		t.Errorf("got %q", got.body)
	}
}

func decode(t *testing.T, b64 string) []byte {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(b64)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
