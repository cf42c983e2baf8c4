package api

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"dayfly.dev/dayfly"
)

// format is how the events of a stream are written.
type format string

// The formats.
const (
	formatNDJSON format = "application/x-ndjson"
	formatSSE    format = "text/event-stream"
)

// streamFormat tells which stream a client accepts. asked is false when it prefers a plain answer or says nothing.
func streamFormat(h http.Header) (f format, asked bool) {
	for _, line := range h.Values("Accept") {
		for one := range strings.SplitSeq(line, ",") {
			kind, params, err := mime.ParseMediaType(one)
			if err != nil || strings.Trim(params["q"], "0.") == "" && params["q"] != "" {
				continue
			}
			switch f := format(kind); f {
			case formatNDJSON, formatSSE:
				return f, true
			case "application/json":
				return formatNDJSON, false
			}
		}
	}
	return formatNDJSON, false
}

// errorEventJSON is the last event of a stream that broke.
type errorEventJSON struct {
	Type  string    `json:"type"`
	Error errorJSON `json:"error"`
}

// sink is the answer to a request for a stream: one JSON object a line.
type sink struct {
	c      *call
	format format
	box    *outbox
	leave  context.CancelCauseFunc // ends what the stream is read from, with errUntaken
	// untaken explains to a client that was cut where to go on; called once nothing is put in any more.
	untaken func() error
}

// openSink writes the head of a stream. From here on an error ends the stream as its last line. leave is called when the client
// takes nothing.
func (c *call) openSink(f format, leave context.CancelCauseFunc) *sink {
	s := &sink{c: c, format: f, leave: leave, untaken: func() error { return c.untaken() }}
	ctl := http.NewResponseController(c.w)
	s.box = c.newOutbox(func(b []byte) error {
		_, err := c.w.Write(b)
		return errors.Join(err, ctl.Flush())
	}, func(after time.Duration) { _ = ctl.SetWriteDeadline(time.Now().Add(after)) })
	s.box.onUntaken = func() { leave(errUntaken) }
	s.box.sign = func(b []byte) []byte { return s.line(b, nil, []byte(`{"type":"ping"}`)) }
	h := c.w.Header()
	h.Set("Content-Type", string(f))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // asks proxies to pass events on at once
	c.w.WriteHeader(http.StatusOK)
	c.late = s.fail
	return s
}

// newOutbox makes an outbox to the call's client, with the limits of this server.
func (c *call) newOutbox(drain func([]byte) error, expire func(after time.Duration)) *outbox {
	return &outbox{drain: drain, expire: expire, taken: takenBy(c.r), pool: &c.boxes, silence: c.silence, limit: c.slowLimit, grace: c.slowGrace}
}

// untaken is the error for a client that was cut.
func (c *call) untaken() *dayfly.Error {
	return dayfly.Errorf(dayfly.CodeSlowReader, "the client took nothing for %s and was left", c.slowLimit)
}

// flush sends the head at once, for a stream whose first event may be long in coming.
func (s *sink) flush() error { return http.NewResponseController(s.c.w).Flush() }

// line appends an event. id, unless empty, is where a client that comes back goes on; only server-sent events have a field for it.
func (s *sink) line(b, id, event []byte) []byte {
	b = s.begin(b, id)
	return s.finish(append(b, event...))
}

func (s *sink) begin(b, id []byte) []byte {
	if s.format != formatSSE {
		return b
	}
	if len(id) > 0 {
		b = append(append(append(b, "id: "...), id...), '\n')
	}
	return append(b, "data: "...)
}

func (s *sink) finish(b []byte) []byte {
	if s.format == formatSSE {
		b = append(b, '\n')
	}
	return append(b, '\n')
}

// write sends one event. An error ends the stream: its source may be left.
func (s *sink) write(v any) error { return s.writeAt(0, v) }

// writeAt sends one event. seq, unless 0, is where a client that comes back goes on.
func (s *sink) writeAt(seq int64, v any) error {
	event, err := encode(v)
	if err != nil {
		return err
	}
	var id []byte
	if seq != 0 {
		id = strconv.AppendInt(nil, seq, 10)
	}
	return s.box.put(func(b []byte) []byte { return s.line(b, id, event) })
}

// ended tells how a stream that broke off ends: its client may have been cut meanwhile, or gone. nil stays nil.
func (s *sink) ended(err error) error {
	if err == nil {
		return nil
	}
	switch failed := s.box.failed(); {
	case errors.Is(failed, errUntaken):
		return s.untaken()
	case failed != nil:
		return nil // nobody is left to be told
	}
	return err
}

// fail ends the stream with an error.
func (s *sink) fail(err error) {
	shown, status, _ := s.c.show(err)
	shown.Status = status
	event, err := encode(errorEventJSON{Type: "error", Error: shown})
	if err != nil {
		return
	}
	s.box.last(func(b []byte) []byte { return s.line(b, nil, event) })
}
