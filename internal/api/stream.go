package api

import (
	"encoding/base64"
	"errors"
	"io"
	"unicode/utf8"

	"dayfly.dev/dayfly"
)

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

// output writes a process's output as a stream of events.
type output struct {
	*sink
	id      string // of the process
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
func (c *call) follow(id string, from dayfly.OutputStream, f format, toEnd, replayed bool) error {
	defer func() { _ = from.Close() }() // detaches; nothing is lost by a failure
	c.replayed(replayed)
	e := &output{sink: c.openSink(f), id: id, held: map[dayfly.OutputKind]*held{dayfly.OutputStdout: {}, dayfly.OutputStderr: {}}}
	c.late = e.fail
	e.write(eventJSON{Type: "start", ID: id, Replayed: replayed})
	defer e.keepAlive()()
	for e.failed() == nil {
		out, err := from.Next()
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

// fail ends the stream with an error.
func (e *output) fail(err error) {
	e.flushHeld(dayfly.OutputStdout)
	e.flushHeld(dayfly.OutputStderr)
	e.sink.fail(err)
}

// show translates one output event.
func (e *output) show(out dayfly.Output) {
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
func (e *output) data(kind dayfly.OutputKind, offset int64, data []byte) {
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
func (e *output) flushHeld(kind dayfly.OutputKind) {
	h, ok := e.held[kind]
	if !ok {
		return
	}
	e.send(kind, h.offset, h.bytes)
	h.bytes = nil
}

func (e *output) send(kind dayfly.OutputKind, offset int64, data []byte) {
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
