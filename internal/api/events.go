package api

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"time"

	"dayfly.dev/dayfly"
)

// recordJSON is one thing that happened, as clients see it. (An eventJSON is a piece of a command's output.)
type recordJSON struct {
	Seq     int64            `json:"seq"`
	At      string           `json:"at"`
	Type    dayfly.EventType `json:"type"`
	Account *string          `json:"account"`
	Sandbox *string          `json:"sandbox"`
	Actor   dayfly.Actor     `json:"actor"`
	Cause   *string          `json:"cause"`
	Message *string          `json:"message"`
}

func showEvent(e dayfly.Event) recordJSON {
	return recordJSON{
		Seq: e.Seq, At: stamp(e.At), Type: e.Type, Account: orNull(e.Account), Sandbox: orNull(e.Sandbox), Actor: e.Actor,
		Cause: orNull(e.Cause), Message: orNull(e.Message),
	}
}

// eventQuery asks for a page of events, or for all to come.
type eventQuery struct {
	after  int64
	limit  int
	follow bool
}

// parseEvents takes since and cursor for the same: the seq behind which to go on.
func parseEvents(q *query) eventQuery {
	e := eventQuery{after: q.integer("since", 0, math.MaxInt64, 0), limit: int(q.integer("limit", 1, limitMax, limitDefault))}
	if cursor, given := q.text("cursor"); given {
		seq, err := strconv.ParseInt(cursor, 10, 64)
		if err != nil || seq < 0 {
			q.bad.add("cursor", "is not one that a page before gave")
		}
		if q.in.Has("since") {
			q.bad.add("cursor", "must not be given together with since")
		}
		e.after = seq
	}
	if e.follow = q.flag("follow"); e.follow && q.in.Has("limit") {
		q.bad.add("limit", "must not be given together with follow")
	}
	return e
}

// happenings are the events that a request is about: a sandbox's, or all that the key may see.
type happenings struct {
	c       *call
	sandbox string // empty: all
}

func allEvents(c *call, q eventQuery) error { return happenings{c, ""}.serve(q) }

func sandboxEvents(c *call, q eventQuery) error {
	id, err := c.sandboxID()
	if err != nil {
		return err
	}
	return happenings{c, id}.serve(q)
}

func (h happenings) serve(q eventQuery) error {
	if q.follow {
		return h.follow(q.after)
	}
	found, err := h.read(q.after, q.limit+1) // one more than shown tells whether there is a next page
	if err != nil {
		return err
	}
	page := pageJSON[recordJSON]{Data: []recordJSON{}}
	if len(found) > q.limit {
		found = found[:q.limit]
		page.NextCursor = orNull(strconv.FormatInt(found[q.limit-1].Seq, 10))
	}
	for _, e := range found {
		page.Data = append(page.Data, showEvent(e))
	}
	return h.c.answer(http.StatusOK, page)
}

func (h happenings) read(after int64, limit int) ([]dayfly.Event, error) {
	f := dayfly.EventFilter{After: after, Limit: limit}
	if h.sandbox == "" {
		return h.c.backend.Events(h.c.ctx(), h.c.who, f)
	}
	return h.c.backend.SandboxEvents(h.c.ctx(), h.c.who, h.sandbox, f)
}

// ended tells whether the sandbox has no event to come but those that are stored.
func (h happenings) ended() (bool, error) {
	if h.sandbox == "" {
		return false, nil
	}
	sb, err := h.c.backend.Sandbox(h.c.ctx(), h.c.who, h.sandbox)
	return sb.Status.Ended(), err
}

const (
	followBatch = 100                   // events read at a time
	followRest  = 20 * time.Millisecond // between two looks: one look finds all of a burst
)

// follow streams events as they happen, one sandbox's until its end. A slow client holds nobody else up, and no event for it is
// kept in memory: what it has not taken yet is read from the store when it is its turn.
func (h happenings) follow(after int64) error {
	after, err := lastEventID(h.c.r.Header, after)
	if err != nil {
		return err
	}
	if _, err := h.ended(); err != nil { // not the account's: while there still is a status to say so with
		return err
	}
	f, _ := streamFormat(h.c.r.Header)
	ctx, leave := context.WithCancelCause(h.c.ctx())
	defer leave(nil)
	out := h.c.openSink(f, leave)
	if err := out.flush(); err != nil {
		return err
	}
	defer out.box.run()()
	return out.ended(h.tell(ctx, out, after))
}

// tell tells what there is and what comes.
func (h happenings) tell(ctx context.Context, out *sink, after int64) (err error) {
	for newest := int64(-1); ; {
		if newest, err = h.c.backend.AwaitEvents(ctx, newest); err != nil {
			return err
		}
		over, err := h.ended() // before the events are read: then its last one is among them
		if err != nil {
			return err
		}
		last := false
		if after, last, err = h.pass(out, after); err != nil || last {
			return err
		}
		if over {
			return out.write(eventJSON{Type: "end"})
		}
		if err := rest(ctx, followRest); err != nil {
			return err
		}
	}
}

// pass writes all events after a seq and gives the last one's. last: it was the sandbox's end.
func (h happenings) pass(out *sink, after int64) (seq int64, last bool, err error) {
	for {
		found, err := h.read(after, followBatch)
		if err != nil {
			return after, false, err
		}
		for _, e := range found {
			if err := out.writeAt(e.Seq, showEvent(e)); err != nil {
				return after, false, err
			}
			after = e.Seq
			if h.sandbox != "" && e.Type == dayfly.EventEnded {
				return after, true, nil
			}
		}
		if len(found) < followBatch {
			return after, false, nil
		}
	}
}

// lastEventID is where a client of server-sent events comes back to; without one it is after.
func lastEventID(h http.Header, after int64) (int64, error) {
	text := h.Get("Last-Event-ID")
	if text == "" {
		return after, nil
	}
	seq, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seq < 0 {
		return 0, dayfly.Errorf(dayfly.CodeInvalid, "the header Last-Event-ID must be the seq of an event")
	}
	return seq, nil
}

// rest waits for d, or for the end of ctx, whose error it returns.
func rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
