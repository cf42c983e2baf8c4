package dayfly

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// EventType tells what an Event carries.
type EventType string

// The events of a command.
const (
	EventStart   EventType = "start" // first; Stream.ID is known from here on
	EventStdout  EventType = "stdout"
	EventStderr  EventType = "stderr"
	EventDropped EventType = "dropped" // Bytes bytes of Of from Offset on are no longer kept
	EventExit    EventType = "exit"    // last, and only when the end was really seen
)

// Event is one piece of a command's life.
type Event struct {
	Type   EventType
	ID     string    // of a start event
	Offset int64     // of Data's first byte in its stream
	Data   []byte    // exact bytes; the receiver may keep them
	Of     EventType // of a dropped event: EventStdout or EventStderr
	Bytes  int64     // of a dropped event
	Exit   *Exit     // of an exit event
	Err    *Error    // of a lost event
}

// Limits of a stream.
const (
	lineMax   = 8 << 20   // bytes of one event on the wire
	lineUsual = 128 << 10 // nearly all are shorter, and are read where they arrive
	// resumeFor is how long a broken stream is taken up again without any progress: a server's restart fits in.
	resumeFor = 45 * time.Second
	// leaveMax is how long the server may take to end an answer after the exit event.
	leaveMax = time.Second
)

// Stream is a running command. One goroutine reads it; Close may be called from any.
type Stream struct {
	sandbox *Sandbox
	ctx     context.Context
	cancel  context.CancelCauseFunc
	exec    call // sent again with the same key when the stream broke before it began
	stdin   io.Reader

	id      string
	upToNow bool // the end of the answer is the end
	body    io.ReadCloser
	lines   *bufio.Reader
	last    time.Time // of the last progress
	done    error     // what Next returns from now on, or nil
	pieces
}

// ExecStream starts a command and returns its stream, which the caller closes. The stream lives as long as ctx.
func (s *Sandbox) ExecStream(ctx context.Context, cmd Cmd, o ExecOptions) (*Stream, error) {
	body, err := newExecBody(cmd, o)
	if err != nil {
		return nil, err
	}
	body.Stream, body.StdinOpen = true, o.Stdin != nil
	key := firstOf(o.IdempotencyKey, newKey())
	k := call{method: http.MethodPost, path: s.path("/exec"), json: body, key: key,
		header: http.Header{"Accept": {"application/x-ndjson"}}}
	st := newStream(ctx, s)
	st.exec, st.stdin = k, o.Stdin
	return st.begin(k)
}

// Offsets say from where on output is wanted, in bytes.
type Offsets struct{ Stdout, Stderr int64 }

// OutputOptions say which output of a command is wanted. The zero value follows all that is kept.
type OutputOptions struct {
	From Offsets // what is no longer kept from there on comes as an EventDropped
	// UpToNow ends with what is there already: with io.EOF, and an exit event only when the command has ended.
	UpToNow bool
}

// Output follows a command that runs already, or reads one that has ended. Closing the stream leaves the command alone unless
// its OnDisconnect says otherwise. CodeGone: it is no longer kept.
func (s *Sandbox) Output(ctx context.Context, process string, o OutputOptions) (*Stream, error) {
	st := newStream(ctx, s)
	st.id, st.upToNow = process, o.UpToNow
	st.next[EventStdout], st.next[EventStderr] = o.From.Stdout, o.From.Stderr
	return st.begin(st.outputCall())
}

func newStream(ctx context.Context, s *Sandbox) *Stream {
	st := &Stream{sandbox: s, pieces: newPieces()}
	st.ctx, st.cancel = context.WithCancelCause(ctx)
	return st
}

func (st *Stream) begin(k call) (*Stream, error) {
	if err := st.connect(k); err != nil {
		st.cancel(nil)
		return nil, err
	}
	return st, nil
}

func (st *Stream) connect(k call) error {
	resp, err := st.sandbox.client.open(st.ctx, k)
	if err != nil {
		return err
	}
	body := watch(resp.Body)
	st.body = body
	context.AfterFunc(st.ctx, func() { _ = body.Close() }) // so that Close frees it while Next is not being called
	st.lines = bufio.NewReaderSize(st.body, lineUsual)
	st.last = time.Now()
	return nil
}

func (st *Stream) outputCall() call {
	return call{
		method: http.MethodGet, path: st.sandbox.processPath(st.id) + "/output",
		query: url.Values{
			"stdout_offset": {offsetText(st.next[EventStdout])},
			"stderr_offset": {offsetText(st.next[EventStderr])},
			"follow":        {strconv.FormatBool(!st.upToNow)},
		},
		header: http.Header{"Accept": {"application/x-ndjson"}},
	}
}

// ID is the process id of the command: empty before the start event.
func (st *Stream) ID() string { return st.id }

// Next blocks for the next event. After the exit event it returns io.EOF. Any other error means that the outcome was not
// seen; it is final. A connection that breaks is taken up where it broke and shows only when that fails.
func (st *Stream) Next() (Event, error) {
	st.last = time.Now() // the caller may have taken its time, and the connection not have waited
	for st.done == nil {
		if ev, ok := st.pop(); ok {
			if ev.Type == EventExit {
				st.done = io.EOF
			}
			return ev, nil
		}
		switch err := st.fill(); err {
		case nil:
		case io.EOF:
			st.done = err
		default:
			st.done = st.resume(err)
		}
	}
	return Event{}, st.done
}

// All goes through the events and closes the stream. It ends after the exit event or the first error.
func (st *Stream) All() iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		defer st.Close()
		for {
			ev, err := st.Next()
			if err == io.EOF || !yield(ev, err) || err != nil {
				return
			}
		}
	}
}

// CopyTo copies the output to its writers until the command ends. A nil writer drops its stream.
func (st *Stream) CopyTo(stdout, stderr io.Writer) (*Exit, error) {
	to := map[EventType]io.Writer{EventStdout: stdout, EventStderr: stderr}
	for {
		ev, err := st.Next()
		if err != nil {
			return nil, err
		}
		switch ev.Type {
		case EventExit:
			return ev.Exit, nil
		case EventStdout, EventStderr:
			if to[ev.Type] == nil {
				continue
			}
			if _, err := to[ev.Type].Write(ev.Data); err != nil {
				return nil, localError("write the command's "+string(ev.Type), err)
			}
		case EventDropped:
			return nil, &Error{Code: CodeGone, Message: strconv.FormatInt(ev.Bytes, 10) + " bytes of " + string(ev.Of) +
				" were lost while the connection was broken", Hint: "write long output to a file in the sandbox and download it"}
		}
	}
}

// Close detaches from the command, which then ends as ExecOptions.OnDisconnect says unless it has ended. It may be called
// several times and while Next blocks.
func (st *Stream) Close() error {
	st.cancel(nil)
	return nil
}

// wireEvent is one line of a stream.
type wireEvent struct {
	Type    EventType  `json:"type"`
	Stream  EventType  `json:"stream"`
	Offset  int64      `json:"offset"`
	Data    string     `json:"data"`
	DataB64 []byte     `json:"data_b64"`
	Bytes   int64      `json:"bytes"`
	Error   *wireError `json:"error"`
	Exit
}

// fill reads one line and queues what it says. Any error breaks the connection.
func (st *Stream) fill() error {
	line, err := readLine(st.lines)
	if st.upToNow && errors.Is(err, errEnd) {
		return io.EOF
	}
	if err != nil {
		return err
	}
	if kind, offset, data, ok := outputLine(line); ok {
		st.last = time.Now()
		st.output(kind, offset, data)
		return nil
	}
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	var w wireEvent
	if err := json.Unmarshal(line, &w); err != nil {
		return &Error{Code: CodeBadAnswer, Message: "the server sent an event that is not JSON", cause: err}
	}
	return st.take(w)
}

// take queues what an event says. A start or an error is no progress, so that a server that gives nothing else is given up.
func (st *Stream) take(w wireEvent) error {
	if w.Type != EventStart && w.Type != "error" {
		st.last = time.Now()
	}
	switch w.Type {
	case EventStart:
		st.started(w.ID)
	case EventStdout, EventStderr:
		data := w.DataB64
		if data == nil {
			data = []byte(w.Data)
		}
		st.output(w.Type, w.Offset, data)
	case EventDropped:
		st.dropped(w.Stream, w.Offset, w.Bytes)
	case EventExit:
		exit := w.Exit
		exit.ID = firstOf(exit.ID, st.id)
		st.queue = append(st.queue, Event{Type: EventExit, Exit: &exit})
		st.leave()
	case "error":
		if w.Error == nil {
			return &Error{Code: CodeBadAnswer, Message: "the server sent an error event without an error"}
		}
		return w.Error.error(0, nil)
	} // others are signs of life, or of a newer server
	return nil
}

// leave lets the server end the answer, so that the connection can be used again, and stops feeding input.
func (st *Stream) leave() {
	body := st.body
	late := time.AfterFunc(leaveMax, func() { _ = body.Close() })
	defer late.Stop()
	release(body)
	st.cancel(nil)
}

func (st *Stream) started(id string) {
	if st.id != "" {
		return
	}
	st.id = id
	st.queue = append(st.queue, Event{Type: EventStart, ID: id})
	if st.stdin != nil {
		go st.feed() // ends with the stream, or with a Read of the caller's that nobody can end
	}
}

// resume connects again after err, or gives the error that ends the stream.
func (st *Stream) resume(err error) error {
	_ = st.body.Close()
	c := st.sandbox.client
	for n := 1; ; n++ {
		if cause := context.Cause(st.ctx); cause != nil {
			return c.transportError(st.ctx, streamEnd(cause))
		}
		e := c.transportError(st.ctx, err)
		if !e.Retryable {
			return e
		}
		if time.Since(st.last) > resumeFor {
			return &Error{Code: CodeUnreachable, Retryable: false, cause: e, RequestID: e.RequestID,
				Message: "the connection to the command was lost and its outcome is unknown: " + e.Message,
				Hint:    "see with the sandbox's process list whether it still runs" + processHint(st.id)}
		}
		if pause(st.ctx, backoff(n, e.RetryAfter)) != nil {
			continue // the loop's head tells why
		}
		k := st.exec
		if st.id != "" {
			k = st.outputCall()
		}
		last := st.last
		if err = st.connect(k); err == nil {
			st.last = last // an open connection alone is no progress
			return nil
		}
	}
}

// streamEnd turns the reason of a cancelled stream into an error. A plain cancellation stays one.
func streamEnd(cause error) error {
	var own *Error
	if errors.As(cause, &own) {
		return own
	}
	return cause
}

func processHint(id string) string {
	if id == "" {
		return ""
	}
	return " (its id is " + id + ")"
}

// errEnd is the end of an answer after a whole line. It is unexpected where only an exit event ends a stream.
var errEnd = fmt.Errorf("the answer ended: %w", io.ErrUnexpectedEOF)

// readLine reads one line with its end, valid until the next. A last line that was cut is io.ErrUnexpectedEOF, the end of the answer
// is errEnd.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if err == nil && line == nil {
			return part, nil
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case len(line) > lineMax:
			return nil, &Error{Code: CodeBadAnswer, Message: "the server sent an event that is larger than any event of Dayfly"}
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil, errEnd
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}
