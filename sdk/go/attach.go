package dayfly

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// The events that only an Attachment gives.
const (
	EventLost  EventType = "lost"  // the connection broke and is being taken up again; Err says why
	EventAgain EventType = "again" // it was; input that was on the way when it broke may be lost
)

// attachProtocol is the WebSocket subprotocol of an attachment, and its version.
const attachProtocol = "dayfly.v1"

// The channels of an attachment: the first byte of each binary frame.
const (
	channelStdin  = 0
	channelStdout = 1
	channelStderr = 2
)

const (
	attachChunk = 32 << 10 // bytes of input in one frame
	// attachCloseMax is how long the server may take to end a connection after the exit event.
	attachCloseMax = time.Second
	// attachStands is how long a connection must have stood to count as progress.
	attachStands = 5 * time.Second
)

// AttachOptions say how to attach. The zero value starts with the oldest output that is kept.
type AttachOptions struct {
	// From says where output begins, or is nil for the oldest that is kept.
	From *Offsets
	// Size of the caller's terminal, which the command's takes over and then draws itself anew; or nil to leave it.
	Size *TerminalSize
	// Patience is how long a broken connection is taken up again; 0: 45 s.
	Patience time.Duration
}

// Attachment is a live connection to a command: its output as events or as a reader, and its input. One goroutine reads it;
// all other methods may be called from any. A connection that breaks is taken up where it broke: output comes once and whole,
// input that was on its way may be lost, but is never delivered twice.
type Attachment struct {
	sandbox *Sandbox
	process string
	ctx     context.Context
	cancel  context.CancelFunc
	options AttachOptions

	// Of the reading goroutine.
	pieces
	offset map[EventType]int64 // of the next byte of this connection
	known  bool                // the offsets to go on from are known
	stood  time.Time           // when this connection came to be
	since  time.Time           // of the last progress: what a broken connection's patience counts from
	moved  bool                // the caller was given something else than news of the connection
	lost   *Error              // why there is no connection, or nil
	done   error               // what Next returns once the queue is empty, or nil
	rest   []byte              // of the last event that Read took
	exit   *Exit

	mu   sync.Mutex
	conn *websocket.Conn // nil while there is none
	back chan struct{}   // closed once there is one again, or never will be
	size *TerminalSize
}

// Attach connects to a command with its input and output. Closing the attachment leaves the command alone unless its
// OnDisconnect says otherwise. CodeGone: the command is no longer kept, or its sandbox has ended.
func (s *Sandbox) Attach(ctx context.Context, process string, o AttachOptions) (*Attachment, error) {
	if o.Patience == 0 {
		o.Patience = resumeFor
	}
	a := &Attachment{sandbox: s, process: process, options: o, pieces: newPieces(), size: o.Size, back: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancel(ctx)
	if o.From != nil {
		a.next[EventStdout], a.next[EventStderr] = o.From.Stdout, o.From.Stderr
		a.known = true
	}
	a.since = time.Now()
	var err error
	for n := 1; n <= attemptsMax; n++ {
		if err = a.connect(); err == nil {
			return a, nil
		}
		var e *Error
		if !errors.As(err, &e) || !e.Retryable || n == attemptsMax || pause(a.ctx, backoff(n, e.RetryAfter)) != nil {
			break
		}
	}
	a.cancel()
	return nil, err
}

// connect makes a connection and lets writers have it.
func (a *Attachment) connect() error {
	a.mu.Lock()
	size := a.size
	a.mu.Unlock()
	query := url.Values{}
	if a.known {
		query.Set("stdout_offset", offsetText(a.next[EventStdout]))
		query.Set("stderr_offset", offsetText(a.next[EventStderr]))
	}
	if size != nil {
		query.Set("cols", strconv.Itoa(size.Cols))
		query.Set("rows", strconv.Itoa(size.Rows))
	}
	conn, err := a.sandbox.client.dial(a.ctx, a.sandbox.processPath(a.process)+"/attach", query)
	if err != nil {
		return err
	}
	a.offset, a.stood = nil, time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.conn = conn
	close(a.back)
	if a.size != size { // it changed meanwhile
		_ = a.control(conn, map[string]any{"type": "resize", "cols": a.size.Cols, "rows": a.size.Rows})
	}
	return nil
}

// dial opens a WebSocket with the client's key, address and connections.
func (c *Client) dial(ctx context.Context, path string, query url.Values) (*websocket.Conn, error) {
	req, _, err := c.request(ctx, call{method: http.MethodGet, path: path, query: query}, nil)
	if err != nil {
		return nil, err
	}
	answer := &refusal{through: c.http.Transport}
	if answer.through == nil {
		answer.through = http.DefaultTransport
	}
	carrier := *c.http
	carrier.Transport = answer
	call, cancel := context.WithTimeout(ctx, headTimeout)
	defer cancel()
	conn, _, err := websocket.Dial(call, req.URL.String(), &websocket.DialOptions{
		HTTPClient: &carrier, HTTPHeader: req.Header, Subprotocols: []string{attachProtocol},
	})
	switch {
	case answer.err != nil:
		return nil, answer.err
	case err != nil:
		return nil, c.transportError(ctx, err)
	case conn.Subprotocol() != attachProtocol:
		_ = conn.CloseNow()
		return nil, &Error{Code: CodeBadAnswer, Message: c.URL() + " opened a connection that does not speak Dayfly's protocol for terminals",
			Hint: "check that the address is a Dayfly server of a version that fits this SDK"}
	}
	conn.SetReadLimit(lineMax)
	return conn, nil
}

// refusal keeps what a server said instead of opening a WebSocket.
type refusal struct {
	through http.RoundTripper
	err     *Error
}

// RoundTrip implements http.RoundTripper.
func (r *refusal) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.through.RoundTrip(req)
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		if resp.Request == nil {
			resp.Request = req
		}
		r.err = answerError(resp)
	}
	return resp, err
}

// Next blocks for the next event. After the exit event it returns io.EOF. Any other error means that the outcome was not
// seen; it is final.
func (a *Attachment) Next() (Event, error) {
	if a.moved { // the caller may have taken its time, and the connection not have waited
		a.since, a.moved = time.Now(), false
	}
	for {
		if ev, ok := a.pop(); ok {
			if ev.Type == EventExit {
				a.exit = ev.Exit
				a.end(io.EOF)
			}
			a.moved = ev.Type != EventLost && ev.Type != EventAgain
			return ev, nil
		}
		if a.done != nil {
			return Event{}, a.done
		}
		if a.lost != nil {
			a.again()
		} else if err := a.fill(); err != nil {
			a.lose(err)
		}
	}
}

// Read implements io.Reader with the command's stdout, which is all output of a terminal. It ends with io.EOF when the command
// has ended, whose Exit is known then. Mixing it with Next is not meaningful.
func (a *Attachment) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		ev, err := a.Next()
		if err != nil {
			return 0, err
		}
		if ev.Type == EventStdout {
			a.rest = ev.Data
		}
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// Exit is how the command ended, or nil as long as the exit event was not given out.
func (a *Attachment) Exit() *Exit { return a.exit }

// attachText is a text frame of the server.
type attachText struct {
	Type         EventType  `json:"type"`
	StdoutOffset int64      `json:"stdout_offset"`
	StderrOffset int64      `json:"stderr_offset"`
	Stream       EventType  `json:"stream"`
	Offset       int64      `json:"offset"`
	Bytes        int64      `json:"bytes"`
	Error        *wireError `json:"error"`
	Exit
}

// fill reads one frame and queues what it says. Any error breaks the connection.
func (a *Attachment) fill() error {
	conn := a.conn // only this goroutine changes it
	kind, data, err := conn.Read(a.ctx)
	if err != nil {
		return err
	}
	if kind == websocket.MessageBinary {
		return a.data(data)
	}
	var t attachText
	if err := json.Unmarshal(data, &t); err != nil {
		return &Error{Code: CodeBadAnswer, Message: "the server sent an event that is not JSON", cause: err}
	}
	return a.text(conn, t)
}

func (a *Attachment) data(frame []byte) error {
	if len(frame) == 0 || frame[0] != channelStdout && frame[0] != channelStderr || a.offset == nil {
		return &Error{Code: CodeBadAnswer, Message: "the server sent output that belongs to no stream"}
	}
	kind := EventStdout
	if frame[0] == channelStderr {
		kind = EventStderr
	}
	a.output(kind, a.offset[kind], frame[1:])
	a.offset[kind] += int64(len(frame) - 1)
	return nil
}

func (a *Attachment) text(conn *websocket.Conn, t attachText) error {
	switch t.Type {
	case EventStart:
		a.started(t)
	case EventDropped:
		if a.offset == nil {
			return &Error{Code: CodeBadAnswer, Message: "the server told of lost output before the start"}
		}
		a.dropped(t.Stream, t.Offset, t.Bytes)
		a.offset[t.Stream] = max(a.offset[t.Stream], t.Offset+t.Bytes)
	case EventExit:
		exit := t.Exit
		exit.ID = firstOf(exit.ID, a.process)
		a.queue = append(a.queue, Event{Type: EventExit, Exit: &exit})
		call, cancel := context.WithTimeout(a.ctx, attachCloseMax)
		_, _, _ = conn.Read(call) // the server's goodbye, which is answered; all that matters has been said
		cancel()
		_ = conn.CloseNow()
	case "error":
		if t.Error == nil {
			return &Error{Code: CodeBadAnswer, Message: "the server sent an error event without an error"}
		}
		return t.Error.error(0, nil)
	} // others are signs of life, or of a newer server
	return nil
}

// started learns where this connection's output begins. What lies before it and was wanted is lost.
func (a *Attachment) started(t attachText) {
	a.offset = map[EventType]int64{EventStdout: t.StdoutOffset, EventStderr: t.StderrOffset}
	if a.known {
		return
	}
	a.known = true
	a.next[EventStdout], a.next[EventStderr] = t.StdoutOffset, t.StderrOffset
}

// lose notes that the connection broke, or that this is the end.
func (a *Attachment) lose(err error) {
	a.mu.Lock()
	conn := a.conn
	a.conn, a.back = nil, make(chan struct{})
	a.mu.Unlock()
	_ = conn.CloseNow()
	if time.Since(a.stood) > attachStands {
		a.since = time.Now()
	}
	e := a.why(err)
	if !e.Retryable {
		a.end(e)
		return
	}
	a.lost = e
	a.queue = append(a.queue, Event{Type: EventLost, Err: e})
}

// why turns what a connection ended with into an error of this package. A server that ends the connection without a word restarts.
func (a *Attachment) why(err error) *Error {
	c := a.sandbox.client
	if a.ctx.Err() == nil && websocket.CloseStatus(err) >= 0 {
		return &Error{Code: CodeUnreachable, Retryable: true, cause: err, Message: "the server at " + c.URL() + " ended the connection"}
	}
	return c.transportError(a.ctx, err)
}

// again connects anew. It ends with a connection, or with the error that ends the attachment.
func (a *Attachment) again() {
	for n := 1; ; n++ {
		e := a.lost
		if a.ctx.Err() != nil {
			a.end(a.sandbox.client.transportError(a.ctx, a.ctx.Err()))
			return
		}
		if !e.Retryable {
			a.end(e)
			return
		}
		if time.Since(a.since) > a.options.Patience {
			a.end(&Error{Code: CodeUnreachable, cause: e, RequestID: e.RequestID,
				Message: "the connection to the command was lost: " + e.Message,
				Hint:    "see with the sandbox's process list whether it still runs" + processHint(a.process)})
			return
		}
		if pause(a.ctx, backoff(n, e.RetryAfter)) != nil {
			continue // the loop's head tells why
		}
		err := a.connect()
		if err == nil {
			a.lost = nil
			a.queue = append(a.queue, Event{Type: EventAgain})
			return
		}
		a.lost = a.why(err)
	}
}

// end makes err the last that Next says, and frees who waits for a connection.
func (a *Attachment) end(err error) {
	a.done = err
	a.cancel()
}

// Write implements io.Writer with the command's input. It blocks while the command does not read, and while the connection is
// being taken up again. It delivers at most once: what was on its way when the connection broke may be lost, and
// is never there twice; PipeStdin is for input that must arrive whole. After an error some of p may have been delivered.
func (a *Attachment) Write(p []byte) (int, error) {
	for sent := 0; ; {
		conn, err := a.current()
		if err != nil || sent == len(p) {
			return sent, err
		}
		n := min(len(p)-sent, attachChunk)
		frame := append(make([]byte, 0, n+1), channelStdin)
		if err := conn.Write(a.ctx, websocket.MessageBinary, append(frame, p[sent:sent+n]...)); err != nil {
			return sent, a.why(err)
		}
		sent += n
	}
}

// Resize gives the command's terminal another size. While the connection is broken it is remembered for the next one.
func (a *Attachment) Resize(size TerminalSize) error {
	a.mu.Lock()
	a.size = &size
	conn := a.conn
	a.mu.Unlock()
	if conn == nil {
		return nil
	}
	return a.control(conn, map[string]any{"type": "resize", "cols": size.Cols, "rows": size.Rows})
}

// CloseStdin ends the command's input.
func (a *Attachment) CloseStdin() error {
	conn, err := a.current()
	if err != nil {
		return err
	}
	return a.control(conn, map[string]any{"type": "close_stdin"})
}

// Close detaches. It may be called several times and while others block, which ends them with CodeCancelled.
func (a *Attachment) Close() error {
	a.cancel()
	a.mu.Lock()
	conn := a.conn
	a.mu.Unlock()
	if conn != nil {
		_ = conn.CloseNow()
	}
	return nil
}

// current waits for a connection.
func (a *Attachment) current() (*websocket.Conn, error) {
	for {
		a.mu.Lock()
		conn, back := a.conn, a.back
		a.mu.Unlock()
		if conn != nil {
			return conn, nil
		}
		select {
		case <-back:
		case <-a.ctx.Done():
			return nil, a.sandbox.client.transportError(a.ctx, a.ctx.Err())
		}
	}
}

func (a *Attachment) control(conn *websocket.Conn, message map[string]any) error {
	b, err := json.Marshal(message)
	if err != nil {
		return localError("write a message", err)
	}
	if err := conn.Write(a.ctx, websocket.MessageText, b); err != nil {
		return a.why(err)
	}
	return nil
}
