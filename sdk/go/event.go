package dayfly

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// LifeEventType says what happened to a sandbox, or to the server. New ones may be added.
type LifeEventType string

// The types.
const (
	SandboxAccepted    LifeEventType = "sandbox.accepted" // its creation was accepted; the lease runs
	SandboxRunning     LifeEventType = "sandbox.running"  // it accepts commands
	SandboxExtended    LifeEventType = "sandbox.extended"
	SandboxPaused      LifeEventType = "sandbox.paused"   // nothing in it runs; the lease runs on
	SandboxResumed     LifeEventType = "sandbox.resumed"  // it goes on
	SandboxDeleting    LifeEventType = "sandbox.deleting" // its end was decided; Cause is the end reason
	SandboxEnded       LifeEventType = "sandbox.ended"    // it is gone; At is the host's time, Cause the end reason
	SandboxAdopted     LifeEventType = "sandbox.adopted"  // it ran without a record, which was rebuilt
	ReconcileReclaimed LifeEventType = "reconcile.reclaimed"
	ReconcileStopped   LifeEventType = "reconcile.stopped"
	KeyCreated         LifeEventType = "key.created"
	KeyRemoved         LifeEventType = "key.removed"
	ServerStarted      LifeEventType = "server.started"
	ServerStopping     LifeEventType = "server.stopping"
)

// LifeEvent is one thing that happened on a server. (An Event is a piece of a command's output.)
type LifeEvent struct {
	Seq     int64         `json:"seq"` // grows with each event of the server; an account's have gaps
	At      time.Time     `json:"at"`
	Type    LifeEventType `json:"type"`
	Account string        `json:"account"` // id, or empty for the server's own
	Sandbox string        `json:"sandbox"` // id, or empty
	Actor   string        `json:"actor"`   // "key:" and the key's id, or a part of the server
	Cause   string        `json:"cause"`   // for machines: an end reason, a kind of object; or empty
	Message string        `json:"message"` // for people, or empty
}

// EventOptions select events. The zero value is all that the key may see.
type EventOptions struct {
	Sandbox string // id: only its events; empty: all
	After   int64  // only events with a larger Seq
	// Follow waits for what comes: for ever, or with Sandbox until its end.
	Follow bool
}

// Events goes through what happened, oldest first; servers keep it for 30 days. With Follow a connection that breaks is taken up
// behind the last event, so that each comes once; only when that fails for a while does the error show. The first error ends
// the sequence.
func (c *Client) Events(ctx context.Context, o EventOptions) iter.Seq2[LifeEvent, error] {
	path := "/v1/events"
	if o.Sandbox != "" {
		path = "/v1/sandboxes/" + segment(o.Sandbox) + "/events"
	}
	if o.Follow {
		return func(yield func(LifeEvent, error) bool) {
			f := &follower{client: c, ctx: ctx, path: path, after: max(0, o.After), toEnd: o.Sandbox != ""}
			f.run(yield)
		}
	}
	query := url.Values{}
	if o.After > 0 {
		query.Set("cursor", strconv.FormatInt(o.After, 10))
	}
	return pages[LifeEvent](ctx, c, path, query, pageSize)
}

// follower reads a stream of events and connects again where it broke.
type follower struct {
	client *Client
	ctx    context.Context
	path   string
	after  int64     // seq of the last event that was given out
	toEnd  bool      // it ends with the sandbox
	last   time.Time // of the last line, or when the caller came back for more; zero until a connection stood
}

// run connects until the stream is over, the caller has enough, or an error is final.
func (f *follower) run(yield func(LifeEvent, error) bool) {
	for n := 1; ; n++ {
		before := f.last
		over, err := f.connection(yield)
		if over {
			return
		}
		e := f.client.transportError(f.ctx, err)
		if !e.Retryable || f.ctx.Err() != nil || time.Since(f.last) > resumeFor { // also where none ever stood
			yield(LifeEvent{}, e)
			return
		}
		if f.last.After(before) {
			n = 1
		}
		if err := pause(f.ctx, backoff(n, e.RetryAfter)); err != nil {
			yield(LifeEvent{}, f.client.transportError(f.ctx, err))
			return
		}
	}
}

// connection gives out what one connection brings. over: nothing more is wanted.
func (f *follower) connection(yield func(LifeEvent, error) bool) (over bool, err error) {
	resp, err := f.client.open(f.ctx, call{
		method: http.MethodGet, path: f.path, header: http.Header{"Accept": {"application/x-ndjson"}},
		query: url.Values{"follow": {"true"}, "since": {strconv.FormatInt(f.after, 10)}},
	})
	if err != nil {
		return false, err
	}
	body := watch(resp.Body)
	defer body.Close()
	if f.last.IsZero() {
		f.last = time.Now()
	}
	lines := bufio.NewReader(body)
	for {
		line, err := readLine(lines)
		if err != nil {
			return false, err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if over, err := f.take(line, yield); over || err != nil {
			return over, err
		}
	}
}

// take gives out what a line says. An error is no progress, so that a server that gives nothing else is given up.
func (f *follower) take(line []byte, yield func(LifeEvent, error) bool) (over bool, err error) {
	var w struct {
		LifeEvent
		Error *wireError `json:"error"`
	}
	if err := json.Unmarshal(line, &w); err != nil {
		return false, &Error{Code: CodeBadAnswer, Message: "the server sent an event that is not JSON", cause: err}
	}
	switch {
	case w.Error != nil:
		return false, w.Error.error(0, nil)
	case w.Type == "error":
		return false, &Error{Code: CodeBadAnswer, Message: "the server sent an error event without an error"}
	case w.Type == "end":
		return true, nil
	}
	f.last = time.Now()
	if w.Seq <= f.after { // a sign of life, or known already
		return false, nil
	}
	f.after = w.Seq
	over = !yield(w.LifeEvent, nil) || f.toEnd && w.Type == SandboxEnded
	f.last = time.Now() // the caller may have taken its time, and the connection not have waited
	return over, nil
}
