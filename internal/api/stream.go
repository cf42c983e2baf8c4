package api

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"

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
	next    dayfly.Offsets // behind what was sent
	joined  []byte         // held bytes and what follows them; used again
	mark    []byte         // the id of an event; used again
	dropped bool
	exited  bool
}

// held is the start of a character whose rest has not come yet.
type held struct {
	offset int64 // of its first byte
	bytes  []byte
}

// followed is a process's output to be told to a client.
type followed struct {
	id       string // of the process
	stream   dayfly.OutputStream
	ctx      context.Context         // of stream
	leave    context.CancelCauseFunc // ends ctx, and with it stream's Next
	from     dayfly.Offsets
	toEnd    bool // the stream must end in the command's exit
	replayed bool
}

// follow answers with the events of a process's output and closes the stream.
func (c *call) follow(f followed, format format) error {
	detach := sync.OnceFunc(func() { _ = f.stream.Close() }) // nothing is lost by a failure
	defer detach()
	c.replayed(f.replayed)
	e := &output{sink: c.openSink(format, f.leave), id: f.id, next: f.from,
		held: map[dayfly.OutputKind]*held{dayfly.OutputStdout: {}, dayfly.OutputStderr: {}}}
	e.untaken = e.resumable
	stop := e.box.run()
	defer stop()
	err := e.tell(f)
	if err != nil {
		if err = e.ended(err); errors.Is(context.Cause(f.ctx), errStopping) {
			err = resumeAt(errStopping, e.id, e.next)
		}
		_ = errors.Join(e.flushHeld(dayfly.OutputStdout), e.flushHeld(dayfly.OutputStderr)) // not to a client that is gone or cut
	}
	detach() // now: the client may still take its time with what is on its way
	return err
}

// tell tells one event after the other, to the end. Its error, unless it is the client's, is told by c.late.
func (e *output) tell(f followed) error {
	if err := e.write(eventJSON{Type: "start", ID: f.id, Replayed: f.replayed}); err != nil {
		return err
	}
	for {
		out, err := f.stream.Next()
		if errors.Is(err, io.EOF) {
			if err := errors.Join(e.flushHeld(dayfly.OutputStdout), e.flushHeld(dayfly.OutputStderr)); err != nil {
				return err
			}
			if f.toEnd && !e.exited {
				return dayfly.Errorf(dayfly.CodeInternal, "the stream ended before the command's end was seen")
			}
			return nil
		}
		if err == nil {
			err = e.show(out)
		}
		if err != nil {
			return err
		}
	}
}

// resumable is the error of a client that was cut, with where to go on.
func (e *output) resumable() error {
	return resumeAt(e.c.untaken(), e.id, e.next)
}

func resumeAt(err *dayfly.Error, id string, next dayfly.Offsets) *dayfly.Error {
	return err.WithDetail("process", id).WithDetail("stdout_offset", next.Stdout).WithDetail("stderr_offset", next.Stderr).
		WithHint("the process was left, and goes on as its on_disconnect says; GET …/processes/%s/output?follow=true with the offsets in details goes on here", id)
}

// show translates one output event.
func (e *output) show(out dayfly.Output) error {
	switch out.Kind {
	case dayfly.OutputStdout, dayfly.OutputStderr:
		return e.data(out.Kind, out.Offset, out.Data)
	case dayfly.OutputDropped:
		if err := e.flushHeld(out.Stream); err != nil {
			return err
		}
		e.dropped = true
		offset := out.Offset
		err := e.write(eventJSON{Type: "dropped", Stream: string(out.Stream), Offset: &offset, Bytes: out.Bytes})
		if err == nil {
			e.next = behind(e.next, out.Stream, out.Offset+out.Bytes)
		}
		return err
	case dayfly.OutputExit:
		err := errors.Join(e.flushHeld(dayfly.OutputStdout), e.flushHeld(dayfly.OutputStderr))
		if err != nil || out.Exit == nil {
			return err
		}
		e.exited = true
		return e.write(exitEventJSON{Type: "exit", exitJSON: showExit(e.id, *out.Exit), Truncated: e.dropped})
	}
	return nil
}

// behind is at with one stream moved on to an offset.
func behind(at dayfly.Offsets, kind dayfly.OutputKind, offset int64) dayfly.Offsets {
	if kind == dayfly.OutputStderr {
		at.Stderr = offset
	} else {
		at.Stdout = offset
	}
	return at
}

// data sends output, cut only between characters: the start of one waits for its rest.
func (e *output) data(kind dayfly.OutputKind, offset int64, data []byte) error {
	h := e.held[kind]
	if len(h.bytes) > 0 && h.offset+int64(len(h.bytes)) != offset {
		if err := e.flushHeld(kind); err != nil {
			return err
		}
	}
	if len(h.bytes) > 0 {
		offset = h.offset
		e.joined = append(append(e.joined[:0], h.bytes...), data...)
		data = e.joined
	}
	whole := len(data) - partialEnd(data)
	h.offset, h.bytes = offset+int64(whole), append(h.bytes[:0], data[whole:]...)
	return e.send(kind, offset, data[:whole])
}

// flushHeld sends what was held back: its rest will not come.
func (e *output) flushHeld(kind dayfly.OutputKind) error {
	h, ok := e.held[kind]
	if !ok {
		return nil
	}
	rest := h.bytes
	h.bytes = nil
	return e.send(kind, h.offset, rest)
}

func (e *output) send(kind dayfly.OutputKind, offset int64, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	next := behind(e.next, kind, offset+int64(len(data)))
	e.mark = appendMark(e.mark[:0], next)
	err := e.box.put(func(b []byte) []byte { return e.finish(appendOutput(e.begin(b, e.mark), kind, offset, data)) })
	if err == nil {
		e.next = next // and only then: whoever is cut goes on behind what was on its way
	}
	return err
}

// appendOutput appends an event of output.
func appendOutput(b []byte, kind dayfly.OutputKind, offset int64, data []byte) []byte {
	b = append(append(append(b, `{"type":"`...), kind...), '"')
	b = append(appendField(b, "offset", offset), ',')
	return append(appendData(b, data), '}')
}

// appendMark writes offsets as the id of a server-sent event.
func appendMark(b []byte, at dayfly.Offsets) []byte {
	b = append(strconv.AppendInt(b, at.Stdout, 10), ':')
	return strconv.AppendInt(b, at.Stderr, 10)
}

// parseMark reads such an id.
func parseMark(s string) (at dayfly.Offsets, ok bool) {
	first, second, found := strings.Cut(s, ":")
	var errs [2]error
	at.Stdout, errs[0] = strconv.ParseInt(first, 10, 64)
	at.Stderr, errs[1] = strconv.ParseInt(second, 10, 64)
	given := found && errors.Join(errs[:]...) == nil && at.Stdout >= 0 && at.Stderr >= 0
	return at, given && string(appendMark(nil, at)) == s
}
