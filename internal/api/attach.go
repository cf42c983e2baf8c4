package api

import (
	"context"
	"encoding/base64"
	"errors"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"dayfly.dev/dayfly"
)

// attachProtocol is the WebSocket subprotocol of an attachment, and its version.
const attachProtocol = "dayfly.v1"

// attaching says where to begin and how large the client's terminal is.
type attaching struct {
	from dayfly.Offsets
	size *dayfly.TerminalSize // nil: as it is
}

func parseAttach(q *query) attaching {
	var a attaching
	a.from.Stdout = q.integer("stdout_offset", 0, math.MaxInt64, 0)
	a.from.Stderr = q.integer("stderr_offset", 0, math.MaxInt64, 0)
	cols, rows := q.integer("cols", 1, dayfly.TerminalSizeMax, 0), q.integer("rows", 1, dayfly.TerminalSizeMax, 0)
	if q.in.Has("cols") != q.in.Has("rows") {
		q.bad.add("cols", "and rows must be given together")
	}
	if q.in.Has("cols") {
		a.size = &dayfly.TerminalSize{Cols: int(cols), Rows: int(rows)}
	}
	return a
}

// checkUpgrade tells what keeps a request from becoming a WebSocket, so that the answer is an error as everywhere.
func (c *call) checkUpgrade() error {
	h := c.r.Header
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(h.Get("Sec-WebSocket-Key")))
	switch {
	case !c.r.ProtoAtLeast(1, 1) || !hasToken(h, "Connection", "upgrade") || !hasToken(h, "Upgrade", "websocket"):
		return dayfly.Errorf(dayfly.CodeInvalid, "this path speaks WebSocket").
			WithHint("connect with a WebSocket client and the subprotocol %s; …/output streams over plain HTTP", attachProtocol)
	case h.Get("Sec-WebSocket-Version") != "13" || err != nil || len(key) != 16 || len(h.Values("Sec-WebSocket-Key")) != 1:
		return dayfly.Errorf(dayfly.CodeInvalid, "the WebSocket handshake is not one of version 13 (RFC 6455)")
	case len(h.Values("Sec-WebSocket-Protocol")) > 0 && !hasToken(h, "Sec-WebSocket-Protocol", attachProtocol):
		return dayfly.Errorf(dayfly.CodeInvalid, "this server speaks the WebSocket subprotocol %s only", attachProtocol)
	}
	// The key of a request is in a header that no page of another site can set; this is one lock more.
	if origin := h.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, c.r.Host) {
			return dayfly.Errorf(dayfly.CodeForbidden, "pages of other sites must not attach")
		}
	}
	return nil
}

// hasToken tells whether a header lists a word.
func hasToken(h http.Header, name, token string) bool {
	return slices.ContainsFunc(h.Values(name), func(line string) bool {
		return slices.ContainsFunc(strings.Split(line, ","), func(one string) bool { return strings.EqualFold(strings.TrimSpace(one), token) })
	})
}

// attach joins a client to a process over a WebSocket, until the process ends, the client leaves or the server stops. Whatever can
// be refused is refused before, in plain HTTP.
func attach(c *call, a attaching) error {
	m, id, err := c.process()
	if err != nil {
		return err
	}
	if err := c.checkUpgrade(); err != nil {
		return err
	}
	out, err := c.residents.enter()
	if err != nil {
		return err
	}
	defer out()
	if a.size != nil {
		if err := m.Resize(c.ctx(), id, *a.size); err != nil {
			return err
		}
	}
	p, err := m.Process(c.ctx(), id)
	if err != nil {
		return err
	}
	ctx, leave, done := c.untilStop()
	defer done()
	stream, err := m.Output(ctx, id, a.from, true /* follow */)
	if err != nil {
		return err
	}
	detach := sync.OnceFunc(func() { _ = stream.Close() })
	defer detach()
	t := &attached{c: c, ctx: ctx, leave: leave, machine: m, id: id, next: a.from, typed: newTyped()}
	t.conn, err = websocket.Accept(c.w, c.r, &websocket.AcceptOptions{
		Subprotocols:       []string{attachProtocol},
		InsecureSkipVerify: true, // of the origin, checked above
		CompressionMode:    websocket.CompressionDisabled,
		OnPingReceived: func(context.Context, []byte) bool {
			return !t.box.busy() // an answer would wait for a client that does not read, and what it sends with it
		},
	})
	if err != nil {
		return errAborted // it was answered, or the connection is broken
	}
	t.conn.SetReadLimit(attachMessageMax)
	t.serve(p.Terminal, stream, detach)
	return nil
}

// Bounds of an attachment.
const (
	attachMessageMax = 1 << 20 // bytes of one message from a client
	attachControlMax = 4 << 10 // bytes of one text message
	typedMax         = 256 << 10
	// attachCloseMax is how long a client may take to say goodbye before its connection is cut.
	attachCloseMax = 2 * time.Second
)

// The channels: the first byte of each binary frame.
const (
	channelStdin  = 0
	channelStdout = 1
	channelStderr = 2
)

// errClientLeft ends an attachment whose client is gone: nobody is left to be told.
var errClientLeft = errors.New("the client left")

// closeOf is how a connection is closed behind an error.
func closeOf(err error) websocket.StatusCode {
	switch {
	case err == nil:
		return websocket.StatusNormalClosure
	case errors.Is(err, errStopping):
		return websocket.StatusGoingAway
	}
	return websocket.StatusInternalError
}

// closing says goodbye, for a moment at most.
func closing(conn *websocket.Conn, code websocket.StatusCode) {
	cut := time.AfterFunc(attachCloseMax, func() { _ = conn.CloseNow() })
	defer cut.Stop()
	_ = conn.Close(code, "")
}

// attachStartJSON is the first event of an attachment.
type attachStartJSON struct {
	Type         string    `json:"type"`
	ID           string    `json:"id"`
	StdoutOffset int64     `json:"stdout_offset"`
	StderrOffset int64     `json:"stderr_offset"`
	TTY          *sizeJSON `json:"tty"`
}

// alive pings the client after each silence. One that does not answer for as long as one may take nothing is left, unless it is
// only that its input waits for the process.
func (t *attached) alive() {
	tick := time.NewTicker(t.c.silence)
	defer tick.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(t.life, t.c.slowLimit)
		err := t.conn.Ping(ctx)
		cancel()
		if err != nil && t.ctx.Err() == nil && !t.typed.full() && !t.box.busy() {
			t.leave(errUntaken)
			return
		}
	}
}
