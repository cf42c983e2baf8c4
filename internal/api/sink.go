package api

import (
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
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

// sink is the answer to a request for a stream: one JSON object a line. Its writer and the signs of life take turns.
type sink struct {
	c      *call
	format format

	mu     sync.Mutex
	silent bool  // nothing was written since the last look
	err    error // of the first failed write; nothing follows it
}

// openSink writes the head of a stream. From here on an error ends the stream as its last line.
func (c *call) openSink(f format) *sink {
	s := &sink{c: c, format: f}
	h := c.w.Header()
	h.Set("Content-Type", string(f))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // asks proxies to pass events on at once
	c.w.WriteHeader(http.StatusOK)
	c.late = s.fail
	return s
}

// flush sends the head at once, for a stream whose first event may be long in coming.
func (s *sink) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = http.NewResponseController(s.c.w).Flush()
	}
}

// keepAlive sends a ping after each silence, until the function it returns is called.
func (s *sink) keepAlive() (stop func()) {
	end := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(s.c.silence)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if s.wasSilent() {
					s.write(eventJSON{Type: "ping"})
				}
			case <-end:
				return
			}
		}
	})
	return func() {
		close(end)
		done.Wait()
	}
}

func (s *sink) wasSilent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.silent
	s.silent = true
	return was
}

func (s *sink) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// write sends one event at once.
func (s *sink) write(v any) { s.writeAt(0, v) }

// writeAt sends one event at once. seq, unless 0, is where a client that comes back goes on; only server-sent events have a
// field for it.
func (s *sink) writeAt(seq int64, v any) {
	line, err := encode(v)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	if s.err = err; err != nil {
		return
	}
	if s.format == formatSSE {
		line = append(append([]byte("data: "), line...), '\n')
		if seq != 0 {
			line = append([]byte("id: "+strconv.FormatInt(seq, 10)+"\n"), line...)
		}
	}
	s.silent = false
	if _, s.err = s.c.w.Write(append(line, '\n')); s.err == nil {
		s.err = http.NewResponseController(s.c.w).Flush()
	}
}

// fail ends the stream with an error.
func (s *sink) fail(err error) {
	shown, status, _ := s.c.show(err)
	shown.Status = status
	s.write(errorEventJSON{Type: "error", Error: shown})
}
