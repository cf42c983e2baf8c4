package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/api"
	"dayfly.dev/dayfly/internal/control"
)

func TestEvents(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	b.json("POST", "/v1/sandboxes/"+id+"/extend", "{}").ok(t, 200)
	b.send("DELETE", "/v1/sandboxes/"+id, nil).ok(t, 200)
	page := b.get("/v1/sandboxes/"+id+"/events").ok(t, 200)
	golden(t, "events", page.body)
	if got := kinds(data(page.json(t))); got != "sandbox.accepted sandbox.running sandbox.extended sandbox.deleting sandbox.ended" {
		t.Errorf("events: %s", got)
	}
	all := data(b.get("/v1/events").ok(t, 200).json(t))
	if len(all) <= 5 || all[0]["type"] != "server.started" {
		t.Errorf("all: %v", all)
	}
	var seen []map[string]any
	for path := "/v1/events?limit=2"; path != ""; {
		page := b.get(path).ok(t, 200).json(t)
		seen = append(seen, data(page)...)
		path = ""
		if next, ok := page["next_cursor"].(string); ok {
			path = "/v1/events?limit=2&cursor=" + next
		}
	}
	if kinds(seen) != kinds(all) {
		t.Errorf("page by page %s, at once %s", kinds(seen), kinds(all))
	}
	if got := data(b.get("/v1/events?since="+seq(all[len(all)-1])).ok(t, 200).json(t)); len(got) != 0 {
		t.Errorf("since the last: %v", got)
	}
	for query, field := range map[string]string{
		"since=-1": "since", "since=x": "since", "since=1.5": "since", "since=9223372036854775808": "since", "cursor=x": "cursor", "cursor=-1": "cursor",
		"since=1&cursor=1": "cursor", "limit=0": "limit", "limit=101": "limit", "follow=1": "follow", "follow=true&limit=2": "limit", "after=1": "after",
	} {
		if got := b.get("/v1/events?"+query).want(t, 400, "invalid_request").fields(t); got[field] == "" {
			t.Errorf("?%s names %v", query, got)
		}
	}
	b.get("/v1/events?follow=true", "Last-Event-ID", "x").want(t, 400, "invalid_request")
}

func data(page map[string]any) []map[string]any {
	var out []map[string]any
	for _, one := range page["data"].([]any) {
		out = append(out, one.(map[string]any))
	}
	return out
}

func seq(event map[string]any) string { return strconv.Itoa(int(event["seq"].(float64))) }

// TestEventsOfAccounts: an account sees what is its own, and never that something else is there.
func TestEventsOfAccounts(t *testing.T) {
	b := newBed(t, nil)
	mine := b.sandbox("{}")
	team := *b
	team.key = b.json("POST", "/v1/keys", `{"account":"team"}`).ok(t, 201).json(t)["secret"].(string)
	theirs := team.sandbox("{}")
	for _, query := range []string{"", "?follow=true"} {
		team.get("/v1/sandboxes/"+mine+"/events"+query).want(t, 404, "not_found")
		team.get("/v1/sandboxes/sb00000000000000000000/events"+query).want(t, 404, "not_found")
		team.get("/v1/events"+query, "Authorization", "").want(t, 401, "unauthorized")
	}
	for _, e := range data(team.get("/v1/events").ok(t, 200).json(t)) {
		if e["sandbox"] != theirs && e["type"] != "key.created" || e["account"] == nil {
			t.Errorf("the team sees %v", e)
		}
	}
	admin := kinds(data(b.get("/v1/events").ok(t, 200).json(t)))
	if strings.Count(admin, "sandbox.running") != 2 {
		t.Errorf("an admin sees %s", admin)
	}
}

// following is a stream of events that is being read.
type following struct {
	t     *testing.T
	body  io.ReadCloser
	lines *bufio.Scanner
}

func (b *bed) followEvents(t *testing.T, path string, header ...string) *following {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", b.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+b.key)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := b.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d", resp.StatusCode)
	}
	return &following{t, resp.Body, bufio.NewScanner(resp.Body)}
}

// next gives the next event that is no ping, or nil at the end.
func (f *following) next() map[string]any {
	f.t.Helper()
	for f.lines.Scan() {
		var v map[string]any
		if err := json.Unmarshal(f.lines.Bytes(), &v); err != nil {
			f.t.Fatalf("%q: %v", f.lines.Text(), err)
		}
		if v["type"] != "ping" {
			return v
		}
	}
	if err := f.lines.Err(); err != nil {
		f.t.Fatal(err)
	}
	return nil
}

func (f *following) want(types string) map[string]any {
	f.t.Helper()
	var last map[string]any
	for _, want := range strings.Fields(types) {
		if last = f.next(); last == nil || last["type"] != want {
			f.t.Fatalf("event %v, want %s", last, want)
		}
	}
	return last
}

func (f *following) wantEnd() {
	f.t.Helper()
	if e := f.next(); e != nil {
		f.t.Errorf("%v after the end", e)
	}
}

func TestEventsFollowed(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	own, all := b.followEvents(t, "/v1/sandboxes/"+id+"/events?follow=true"), b.followEvents(t, "/v1/events?follow=true&since=3")
	own.want("sandbox.accepted sandbox.running")
	all.want("sandbox.running")
	other := b.sandbox("{}")
	b.send("DELETE", "/v1/sandboxes/"+id, nil).ok(t, 200)
	own.want("sandbox.deleting sandbox.ended")
	own.wantEnd()
	if e := all.want("sandbox.accepted sandbox.running sandbox.deleting sandbox.ended"); e["sandbox"] != id || e["cause"] != "requested" {
		t.Errorf("ended: %v", e)
	}
	whole := events(t, b.get("/v1/sandboxes/"+id+"/events?follow=true").ok(t, 200)) // held against the contract
	if len(whole) != 4 {
		t.Errorf("after its end: %s", whole)
	}
	var last struct{ Seq int }
	if err := json.Unmarshal(whole[3], &last); err != nil {
		t.Fatal(err)
	}
	since := fmt.Sprintf("/v1/sandboxes/%s/events?follow=true&since=%d", id, last.Seq)
	if got := kinds(parseEvents(t, b.get(since).ok(t, 200))); got != "end" {
		t.Errorf("since its end: %q", got)
	}
	b.plane.Drain()
	all.want("server.stopping error")
	all.wantEnd()
	if got := kinds(parseEvents(t, b.get("/v1/sandboxes/"+other+"/events?follow=true").ok(t, 200))); got != "sandbox.accepted sandbox.running error" {
		t.Errorf("while the server stops: %q", got)
	}
}

func TestEventsAsServerSentEvents(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	b.send("DELETE", "/v1/sandboxes/"+id, nil).ok(t, 200)
	path := "/v1/sandboxes/" + id + "/events?follow=true"
	a := b.get(path, "Accept", "text/event-stream").ok(t, 200)
	if a.header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("type %s", a.header.Get("Content-Type"))
	}
	messages := strings.Split(strings.TrimSpace(string(a.body)), "\n\n")
	if len(messages) != 4 {
		t.Fatalf("messages: %q", messages)
	}
	var v map[string]any
	first, rest, _ := strings.Cut(messages[1], "\n")
	if err := json.Unmarshal([]byte(strings.TrimPrefix(rest, "data: ")), &v); err != nil || first != "id: "+seq(v) {
		t.Fatalf("message %q: %v", messages[1], err)
	}
	back := b.get(path+"&since=0", "Accept", "text/event-stream", "Last-Event-ID", seq(v)).ok(t, 200)
	if got := kinds(parseEvents(t, back)); got != "sandbox.deleting sandbox.ended" {
		t.Errorf("after Last-Event-ID: %s", got)
	}
}

// counting counts how often the edge looks for events.
type counting struct {
	api.Backend
	looks atomic.Int64
}

func (c *counting) Events(ctx context.Context, who control.Principal, f dayfly.EventFilter) ([]dayfly.Event, error) {
	c.looks.Add(1)
	return c.Backend.Events(ctx, who, f)
}

// TestEventsOfOthersWakeNobodyForLong: a stream that has nothing to tell says only that it lives, and does not look again and
// again because of what others do.
func TestEventsOfOthersWakeNobodyForLong(t *testing.T) {
	counted := &counting{}
	b := newBed(t, func(inner api.Backend) api.Backend { counted.Backend = inner; return counted })
	team := *b
	team.key = b.json("POST", "/v1/keys", `{"account":"team"}`).ok(t, 201).json(t)["secret"].(string)
	f := team.followEvents(t, "/v1/events?follow=true")
	f.want("key.created")
	b.sandbox("{}") // newer than anything of the team's
	before := counted.looks.Load()
	for pings := 0; pings < 10 && f.lines.Scan(); pings++ { // each after a silence
		if f.lines.Text() != `{"type":"ping"}` {
			t.Fatalf("the team is told %s", f.lines.Text())
		}
	}
	if looks := counted.looks.Load() - before; looks > 3 {
		t.Errorf("%d looks for the two events of somebody else", looks)
	}
}

// TestSlowReaderOfEvents: a client that does not read keeps neither the others nor the sandboxes.
func TestSlowReaderOfEvents(t *testing.T) {
	b := newBed(t, nil)
	slow := b.followEvents(t, "/v1/events?follow=true")
	quick := b.followEvents(t, "/v1/events?follow=true")
	const n = 30
	for range n {
		b.sandbox("{}")
	}
	running := 0
	for running < n {
		e := quick.next()
		if e == nil {
			t.Fatal("the stream ended")
		}
		if e["type"] == "sandbox.running" {
			running++
		}
	}
	_ = slow.body.Close()
}
