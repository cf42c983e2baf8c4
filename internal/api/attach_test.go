package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// terminal is the client's end of an attachment.
type terminal struct {
	t    *testing.T
	conn *websocket.Conn
	ctx  context.Context
	out  [3][]byte // of the channels, so far
}

// attach connects to a process.
func (b *bed) attach(t *testing.T, id, pid, query string) *terminal {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitMax)
	t.Cleanup(cancel)
	conn, resp, err := b.dial(ctx, id, pid, query)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(1 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	if conn.Subprotocol() != "dayfly.v1" {
		t.Errorf("subprotocol %q", conn.Subprotocol())
	}
	checkContract(t, resp.Request, answer{resp.StatusCode, resp.Header, nil})
	return &terminal{t: t, conn: conn, ctx: ctx}
}

func (b *bed) dial(ctx context.Context, id, pid, query string, header ...string) (*websocket.Conn, *http.Response, error) {
	h := http.Header{"Authorization": {"Bearer " + b.key}}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return websocket.Dial(ctx, b.url+"/v1/sandboxes/"+id+"/processes/"+pid+"/attach"+query, &websocket.DialOptions{HTTPClient: b.http, HTTPHeader: h, Subprotocols: []string{"dayfly.v1"}})
}

// frame reads a frame: an event, or nil for output, which is kept.
func (w *terminal) frame() map[string]any {
	w.t.Helper()
	kind, data, err := w.conn.Read(w.ctx)
	if err != nil {
		w.t.Fatalf("no frame: %v", err)
	}
	if kind == websocket.MessageBinary {
		w.out[data[0]] = append(w.out[data[0]], data[1:]...)
		return nil
	}
	c, err := theContract()
	if err != nil {
		w.t.Fatal(err)
	}
	c.visit(w.t, "AttachEvent", data)
	var v map[string]any
	if err := json.Unmarshal(data, &v); err != nil {
		w.t.Fatal(err)
	}
	return v
}

// event reads up to the next event.
func (w *terminal) event(kind string) map[string]any {
	w.t.Helper()
	for {
		if e := w.frame(); e != nil {
			if e["type"] != kind {
				w.t.Fatalf("event %v, want %s", e, kind)
			}
			return e
		}
	}
}

// until reads until a text was written.
func (w *terminal) until(channel int, text string) {
	w.t.Helper()
	for !strings.Contains(string(w.out[channel]), text) {
		if e := w.frame(); e != nil {
			w.t.Fatalf("event %v after %q, want %q", e, w.out[channel], text)
		}
	}
}

func (w *terminal) send(text string) {
	w.t.Helper()
	if err := w.conn.Write(w.ctx, websocket.MessageText, []byte(text)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *terminal) type_(text string) {
	w.t.Helper()
	if err := w.conn.Write(w.ctx, websocket.MessageBinary, append([]byte{0}, text...)); err != nil {
		w.t.Fatal(err)
	}
}

// closed wants the connection to end in a close frame.
func (w *terminal) closed(code websocket.StatusCode) {
	w.t.Helper()
	for {
		_, data, err := w.conn.Read(w.ctx)
		if err == nil {
			w.t.Errorf("a frame behind the last: %q", data)
			continue
		}
		if websocket.CloseStatus(err) != code {
			w.t.Errorf("it ends in %v, want %d", err, code)
		}
		return
	}
}

func TestAttach(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	p := b.launch(t, id, `{"command":"stty -echo; stty size; while read x; do [ \"$x\" = end ] && exit 7; echo \"<$x $(stty size)>\"; done","tty":{"cols":80,"rows":24}}`)
	pid := p["id"].(string)
	one := b.attach(t, id, pid, "")
	if e := one.event("start"); e["id"] != pid || e["stdout_offset"] != 0.0 || e["tty"].(map[string]any)["cols"] != 80.0 {
		t.Errorf("start %v", e)
	}
	one.until(1, "24 80")
	one.type_("hi é\n")
	one.until(1, "<hi é 24 80>")
	two := b.attach(t, id, pid, "?cols=100&rows=30")
	if e := two.event("start"); e["tty"].(map[string]any)["cols"] != 100.0 {
		t.Errorf("start %v", e)
	}
	two.until(1, "<hi é 24 80>") // what was before it came
	two.type_("from two\n")
	one.until(1, "<from two 30 100>")
	two.until(1, "<from two 30 100>")
	one.send(`{"type":"resize","cols":132,"rows":43}`)
	one.type_("again\n")
	one.until(1, "<again 43 132>")
	two.until(1, "<again 43 132>")
	if string(one.out[1]) != string(two.out[1]) {
		t.Errorf("one saw %q, two %q", one.out[1], two.out[1])
	}
	seen := len(two.out[1])
	_ = two.conn.CloseNow() // leaves; comes back where it was
	one.type_("later\n")
	one.until(1, "<later 43 132>")
	back := b.attach(t, id, pid, fmt.Sprintf("?stdout_offset=%d", seen))
	if e := back.event("start"); e["stdout_offset"] != float64(seen) {
		t.Errorf("start %v", e)
	}
	back.until(1, "<later 43 132>")
	back.type_("end\n")
	for _, w := range []*terminal{one, back} {
		if e := w.event("exit"); e["exit_code"] != 7.0 || e["id"] != pid {
			t.Errorf("exit %v", e)
		}
		w.closed(1000)
	}
	if got := b.get("/v1/sandboxes/"+id+"/processes/"+pid).ok(t, 200).json(t); got["exit_code"] != 7.0 {
		t.Errorf("record %v", got)
	}
	after := b.attach(t, id, pid, "") // to one that has ended: its output and its end
	after.event("start")
	after.event("exit")
	after.closed(1000)
	if !strings.HasPrefix(string(after.out[1]), string(one.out[1])) {
		t.Errorf("afterwards %q, live %q", after.out[1], one.out[1])
	}
}

func TestAttachToPipes(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	pid := b.launch(t, id, `{"command":"cat; echo err >&2; sleep 30","stdin_open":true}`)["id"].(string)
	w := b.attach(t, id, pid, "")
	if e := w.event("start"); e["tty"] != nil {
		t.Errorf("start %v", e)
	}
	large := strings.Repeat("0123456789", 50_000)
	for i := 0; i < len(large); i += 100_000 {
		w.type_(large[i : i+100_000])
	}
	w.type_("") // nothing
	w.send(`{"type":"close_stdin"}`)
	w.until(2, "err")
	for len(w.out[1]) < len(large) {
		w.frame()
	}
	if string(w.out[1]) != large {
		t.Error("what was written came back changed")
	}
	w.send(`{"type":"signal","signal":"SIGTERM","tree":true}`)
	if e := w.event("exit"); e["signal"] != "TERM" || e["exit_code"] != 143.0 {
		t.Errorf("exit %v", e)
	}
	w.closed(1000)
	b.json("POST", "/v1/sandboxes/"+id+"/processes/"+pid+"/resize", `{"cols":1,"rows":1}`).want(t, 409, "conflict")
}

func TestAttachRefusals(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	pid := b.launch(t, id, `{"command":"sleep 30"}`)["id"].(string)
	path := "/v1/sandboxes/" + id + "/processes/" + pid + "/attach"
	b.get(path).want(t, 400, "invalid_request")
	for query, fields := range map[string]string{
		"?cols=80": "cols", "?rows=24": "cols", "?cols=0&rows=1001": "cols rows", "?stdout_offset=-1&x=1": "stdout_offset x", "?token=" + b.key: "token",
	} {
		sameNames(t, "fields", strings.Fields(fields), keys(b.get(path+query).want(t, 400, "invalid_request").fields(t)))
	}
	for _, tt := range []struct {
		name, id, pid, query string
		header               []string
		status               int
	}{
		{"no key", id, pid, "", []string{"Authorization", ""}, 401},
		{"no process", id, "pr00000000000000000000", "", nil, 404},
		{"no sandbox", "sb00000000000000000000", pid, "", nil, 404},
		{"no terminal", id, pid, "?cols=80&rows=24", nil, 409},
		{"another origin", id, pid, "", []string{"Origin", "http://evil.test"}, 403},
		{"an origin that is no address", id, pid, "", []string{"Origin", "null"}, 403},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, resp, err := b.dial(t.Context(), tt.id, tt.pid, tt.query, tt.header...)
			if err == nil {
				_ = conn.CloseNow()
			}
			if resp == nil || resp.StatusCode != tt.status || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
				t.Errorf("got %v, %v", resp, err)
			}
		})
	}
	for name, header := range map[string][]string{
		"another protocol": {"Sec-WebSocket-Protocol", "other.v1"}, "another version": {"Sec-WebSocket-Version", "12"}, "no key": {"Sec-WebSocket-Key", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			b.get(path, append([]string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13",
				"Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="}, header...)...).want(t, 400, "invalid_request")
		})
	}
	conn, _, err := b.dial(t.Context(), id, pid, "", "Origin", b.url)
	if err != nil {
		t.Fatalf("a page of this server: %v", err)
	}
	_ = conn.CloseNow()
	for _, tt := range []struct {
		name string
		kind websocket.MessageType
		data string
		code string
	}{
		{"no JSON", websocket.MessageText, `{`, "invalid_request"},
		{"no type", websocket.MessageText, `{}`, "invalid_request"},
		{"unknown", websocket.MessageText, `{"type":"start"}`, "invalid_request"},
		{"a field too many", websocket.MessageText, `{"type":"close_stdin","x":1}`, "invalid_request"},
		{"a signal that is none", websocket.MessageText, `{"type":"signal","signal":"NOPE"}`, "invalid_request"},
		{"no size", websocket.MessageText, `{"type":"resize","cols":10}`, "invalid_request"},
		{"a terminal that is none", websocket.MessageText, `{"type":"resize","cols":10,"rows":10}`, "conflict"},
		{"a long text", websocket.MessageText, `{"type":"signal"` + strings.Repeat(" ", 5000) + `}`, "too_large"},
		{"no channel", websocket.MessageBinary, "", "invalid_request"},
		{"another channel", websocket.MessageBinary, "\x01x", "invalid_request"},
		{"input that nobody takes", websocket.MessageBinary, "\x00x", "conflict"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := b.attach(t, id, pid, "")
			w.event("start")
			if err := w.conn.Write(w.ctx, tt.kind, []byte(tt.data)); err != nil {
				t.Fatal(err)
			}
			if e := w.event("error"); e["error"].(map[string]any)["type"] != tt.code {
				t.Errorf("error %v", e)
			}
			w.closed(1011)
		})
	}
	t.Run("a message that is too long", func(t *testing.T) {
		w := b.attach(t, id, b.launch(t, id, `{"argv":["sh","-c","cat >/dev/null"],"stdin_open":true}`)["id"].(string), "")
		w.event("start")
		err := w.conn.Write(w.ctx, websocket.MessageBinary, make([]byte, 3<<20))
		for err == nil {
			_, _, err = w.conn.Read(w.ctx)
		}
		if code := websocket.CloseStatus(err); code != websocket.StatusMessageTooBig && code != -1 { // or cut while it was written
			t.Errorf("it ends in %v", err)
		}
	})
	if got := b.get("/v1/sandboxes/"+id+"/processes/"+pid).ok(t, 200).json(t); got["status"] != "running" {
		t.Errorf("after all that: %v", got)
	}
}

// TestDrainEndsAttachments: a server that stops says so to those that are attached, waits for them, and leaves the process alone.
func TestDrainEndsAttachments(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	pid := b.launch(t, id, `{"command":"echo hi; sleep 30"}`)["id"].(string)
	w := b.attach(t, id, pid, "")
	w.event("start")
	w.until(1, "hi")
	watching, followed := make(chan answer), make(chan answer)
	go func() {
		followed <- b.get("/v1/sandboxes/" + id + "/processes/" + pid + "/output?follow=true&stdout_offset=1")
	}()
	go func() { watching <- b.get("/v1/sandboxes/" + id + "/files/watch?path=.") }()
	for b.node.machine(id).waiting() < 3 {
		time.Sleep(time.Millisecond)
	}
	drained := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), waitMax)
	defer cancel()
	go func() { drained <- b.handler.Drain(ctx) }()
	e := w.event("error")["error"].(map[string]any)
	if e["type"] != "unavailable" || e["details"].(map[string]any)["stdout_offset"] != 3.0 {
		t.Errorf("error %v", e)
	}
	w.closed(1001)
	if err := <-drained; err != nil {
		t.Errorf("drain: %v", err)
	}
	watch := parseEvents(t, (<-watching).ok(t, 200))
	if why, _ := watch[len(watch)-1]["error"].(map[string]any); kinds(watch) != "start error" || why["type"] != "unavailable" {
		t.Errorf("the watch: %v", watch)
	}
	all := parseEvents(t, (<-followed).ok(t, 200))
	last := all[len(all)-1]["error"].(map[string]any)
	if next := last["details"].(map[string]any)["stdout_offset"]; last["type"] != "unavailable" || next != 1.0 && next != 3.0 {
		t.Errorf("the output: %v", all)
	}
	if _, resp, err := b.dial(t.Context(), id, pid, ""); err == nil || resp.StatusCode != 503 {
		t.Errorf("after it: %v, %v", resp, err)
	}
	if got := b.get("/v1/sandboxes/"+id+"/processes/"+pid).ok(t, 200).json(t); got["status"] != "running" {
		t.Errorf("the process: %v", got)
	}
	if err := b.handler.Drain(ctx); err != nil {
		t.Errorf("again: %v", err)
	}
}

// TestAttachedClientVanishes: one that answers no ping and takes nothing is left; the process is not.
func TestAttachedClientVanishes(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	pid := b.launch(t, id, `{"command":"sleep 30"}`)["id"].(string)
	w := b.attach(t, id, pid, "")
	w.event("start")
	m := b.node.machine(id)
	for m.waiting() > 0 { // nobody reads, so no ping is answered
		if w.ctx.Err() != nil {
			t.Fatal("it is still there")
		}
		time.Sleep(time.Millisecond)
	}
	var closed error
	for closed == nil {
		_, _, closed = w.conn.Read(w.ctx)
	}
	if errors.Is(closed, context.DeadlineExceeded) {
		t.Errorf("it ends in %v", closed)
	}
	if got := b.get("/v1/sandboxes/"+id+"/processes/"+pid).ok(t, 200).json(t); got["status"] != "running" {
		t.Errorf("the process: %v", got)
	}
}
