package api

import (
	"encoding/base64"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

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

// eventJSON is a start, ping or dropped event.
type eventJSON struct {
	Type     string `json:"type"`
	ID       string `json:"id,omitempty"`
	Stream   string `json:"stream,omitempty"`
	Offset   *int64 `json:"offset,omitempty"`
	Bytes    int64  `json:"bytes,omitempty"`
	Replayed bool   `json:"replayed,omitempty"`
}

// dataJSON carries output: text where it is UTF-8, else exact bytes.
type dataJSON struct {
	Type   dayfly.OutputKind `json:"type"`
	Offset int64             `json:"offset"`
	Data   *string           `json:"data,omitempty"`
	B64    *string           `json:"data_b64,omitempty"`
}

// exitEventJSON is the last event of a command whose end was seen.
type exitEventJSON struct {
	Type string `json:"type"`
	exitJSON
	Truncated bool `json:"truncated"` // bytes were dropped from this stream
}

// errorEventJSON is the last event of a stream that broke.
type errorEventJSON struct {
	Type  string    `json:"type"`
	Error errorJSON `json:"error"`
}

// events writes one stream of events. Its writer and the signs of life take turns.
type events struct {
	c      *call
	format format
	id     string // of the process

	mu     sync.Mutex
	silent bool  // nothing was written since the last look
	err    error // of the first failed write; nothing follows it

	held    map[dayfly.OutputKind]*held
	dropped bool
	exited  bool
}

// held is the start of a character whose rest has not come yet.
type held struct {
	offset int64 // of its first byte
	bytes  []byte
}

// follow answers with the events of a process's output and closes the stream. toEnd: the stream must end in the command's exit.
func (c *call) follow(id string, output dayfly.OutputStream, f format, toEnd, replayed bool) error {
	e := &events{c: c, format: f, id: id, held: map[dayfly.OutputKind]*held{dayfly.OutputStdout: {}, dayfly.OutputStderr: {}}}
	defer func() { _ = output.Close() }() // detaches; nothing is lost by a failure
	c.replayed(replayed)
	h := c.w.Header()
	h.Set("Content-Type", string(f))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // asks proxies to pass events on at once
	c.w.WriteHeader(http.StatusOK)
	c.late = e.fail
	e.write(eventJSON{Type: "start", ID: id, Replayed: replayed})
	defer e.keepAlive()()
	for e.failed() == nil {
		out, err := output.Next()
		if errors.Is(err, io.EOF) {
			e.flushHeld(dayfly.OutputStdout)
			e.flushHeld(dayfly.OutputStderr)
			if toEnd && !e.exited {
				return dayfly.Errorf(dayfly.CodeInternal, "the stream ended before the command's end was seen")
			}
			return nil
		}
		if err != nil {
			return err // told by c.late
		}
		e.show(out)
	}
	return nil
}

// keepAlive sends a ping after each silence, until the function it returns is called.
func (e *events) keepAlive() (stop func()) {
	end := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(e.c.silence)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if e.wasSilent() {
					e.write(eventJSON{Type: "ping"})
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

func (e *events) wasSilent() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.silent
	e.silent = true
	return was
}

func (e *events) failed() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// write sends one event at once.
func (e *events) write(v any) {
	line, err := encode(v)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return
	}
	if e.err = err; err != nil {
		return
	}
	if e.format == formatSSE {
		line = append(append([]byte("data: "), line...), '\n')
	}
	e.silent = false
	if _, e.err = e.c.w.Write(append(line, '\n')); e.err == nil {
		e.err = http.NewResponseController(e.c.w).Flush()
	}
}

// fail ends the stream with an error.
func (e *events) fail(err error) {
	e.flushHeld(dayfly.OutputStdout)
	e.flushHeld(dayfly.OutputStderr)
	shown, status, _ := e.c.show(err)
	shown.Status = status
	e.write(errorEventJSON{Type: "error", Error: shown})
}

// show translates one output event.
func (e *events) show(out dayfly.Output) {
	switch out.Kind {
	case dayfly.OutputStdout, dayfly.OutputStderr:
		e.data(out.Kind, out.Offset, out.Data)
	case dayfly.OutputDropped:
		e.flushHeld(out.Stream)
		e.dropped = true
		offset := out.Offset
		e.write(eventJSON{Type: "dropped", Stream: string(out.Stream), Offset: &offset, Bytes: out.Bytes})
	case dayfly.OutputExit:
		e.flushHeld(dayfly.OutputStdout)
		e.flushHeld(dayfly.OutputStderr)
		if out.Exit != nil {
			e.exited = true
			e.write(exitEventJSON{Type: "exit", exitJSON: showExit(e.id, *out.Exit), Truncated: e.dropped})
		}
	}
}

// data sends output, cut only between characters: the start of one waits for its rest.
func (e *events) data(kind dayfly.OutputKind, offset int64, data []byte) {
	h := e.held[kind]
	if len(h.bytes) > 0 && h.offset+int64(len(h.bytes)) != offset {
		e.flushHeld(kind)
	}
	if len(h.bytes) > 0 {
		offset = h.offset
		data = append(h.bytes, data...)
	}
	n := partialEnd(data)
	e.send(kind, offset, data[:len(data)-n])
	h.offset, h.bytes = offset+int64(len(data)-n), append([]byte(nil), data[len(data)-n:]...)
}

// flushHeld sends what was held back: its rest will not come.
func (e *events) flushHeld(kind dayfly.OutputKind) {
	h, ok := e.held[kind]
	if !ok {
		return
	}
	e.send(kind, h.offset, h.bytes)
	h.bytes = nil
}

func (e *events) send(kind dayfly.OutputKind, offset int64, data []byte) {
	if len(data) == 0 {
		return
	}
	event := dataJSON{Type: kind, Offset: offset}
	if utf8.Valid(data) {
		text := string(data)
		event.Data = &text
	} else {
		exact := base64.StdEncoding.EncodeToString(data)
		event.B64 = &exact
	}
	e.write(event)
}
