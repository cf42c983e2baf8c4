package agentwire

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"dayfly.dev/dayfly"
)

// requestsMax bounds the requests of one connection that are served at once. Further ones wait to be accepted.
const requestsMax = 4096

// ServeConn speaks the agent's end of the protocol on conn and does with m what the node asks. It returns when the
// connection or ctx has ended, after every request on it; conn is closed then. A panic in a request ends that request only.
func ServeConn(ctx context.Context, conn net.Conn, m Machine) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close()
	theirs, err := welcome(conn)
	if err != nil {
		return err
	}
	if a, ok := m.(Aged); ok && theirs.AgeMS > 0 && theirs.AgeMS <= dayfly.LeaseCeiling.Milliseconds() {
		a.Aged(time.Duration(theirs.AgeMS) * time.Millisecond)
	}
	if theirs.Lane {
		return serveLane(ctx, conn, m)
	}
	session, err := yamux.Server(newGuard(conn, false /* the node is trusted */), muxConfig())
	if err != nil {
		return fmt.Errorf("start session: %w", err)
	}
	defer session.Close()
	var requests sync.WaitGroup
	defer requests.Wait()
	defer cancel()
	slots := make(chan struct{}, requestsMax)
	for {
		slots <- struct{}{}
		s, err := session.AcceptStream()
		if err != nil {
			return nil // the node left
		}
		requests.Go(func() {
			defer func() { <-slots }()
			serveStream(ctx, s, m)
		})
	}
}

// welcome answers the node's hello and gives it.
func welcome(conn net.Conn) (hello, error) {
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	theirs, err := readHello(conn)
	if err != nil {
		return theirs, err
	}
	if err := writeHello(conn, hello{Min: versionMin, Max: versionMax, Features: features()}); err != nil {
		return theirs, err
	}
	if _, err := settle(theirs); err != nil {
		return theirs, err
	}
	return theirs, conn.SetDeadline(time.Time{})
}

// exchange is one request being served.
type exchange struct {
	ctx    context.Context
	cancel context.CancelFunc
	m      Machine
	req    request
	in     *frameReader
	out    *frameWriter
	body   *upload // or nil when the request has none
}

// serveStream reads one request, answers it, and waits until the client has closed the stream: the client closes first, so
// that a slow reader loses nothing.
func serveStream(ctx context.Context, s *yamux.Stream, m Machine) {
	defer s.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if w, ok := m.(Watcher); ok {
		defer w.Begin()()
	}
	x := &exchange{ctx: ctx, cancel: cancel, m: m, in: newFrameReader(s), out: newFrameWriter(s)}
	if err := x.readRequest(); err != nil {
		if dayfly.ErrorCode(err) == dayfly.CodeInternal {
			return // not a request; nobody waits for an answer
		}
		_ = x.fail(err)
	} else {
		x.serve(s)
	}
	if x.out.flush() == nil {
		_, _ = io.Copy(io.Discard, s)
	}
}

// serve answers the request. While it does, something always reads the stream, so that the client's leaving is seen.
func (x *exchange) serve(s *yamux.Stream) {
	var watch sync.WaitGroup
	if x.req.Body {
		x.body = &upload{x: x}
	} else {
		watch.Go(x.watch)
	}
	x.answer()
	_ = s.SetReadDeadline(time.Unix(1, 0)) // ends the watch, or a read of the body that is still pending
	watch.Wait()
	_ = s.SetReadDeadline(time.Time{})
}

// watch cancels the request when the client leaves. The request has no body, so anything else that arrives is a violation.
func (x *exchange) watch() {
	_, _, err := x.in.next()
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		return
	}
	x.cancel()
}

// answer calls the machine and writes what it gives. A panic becomes an error of this request.
func (x *exchange) answer() {
	defer func() {
		if p := recover(); p != nil {
			x.out.buf = x.out.buf[:0]
			_ = x.fail(fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	if err := x.dispatch(); err != nil && x.ctx.Err() == nil { // else nobody waits, or this end is closing
		_ = x.fail(err)
	}
}

// fail appends an error message.
func (x *exchange) fail(err error) error {
	f := fromError(err)
	if f.Code == string(dayfly.CodeInternal) {
		f.Message = text(err.Error(), errorTextMax)
	}
	return x.out.json(message{Error: f})
}

// readRequest reads the request and its byte strings.
func (x *exchange) readRequest() error {
	kind, payload, err := x.in.next()
	if err != nil {
		return err
	}
	if kind != frameJSON {
		return fmt.Errorf("%w: kind %q instead of a request", errFrame, kind)
	}
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.DisallowUnknownFields() // a newer node asks for something that this agent would leave out
	if err := dec.Decode(&x.req); err != nil {
		return older().WithCause(err)
	}
	size := x.req.ParamBytes
	if size < 0 || size > ParamsMax {
		return tooLarge(size)
	}
	raw := make([]byte, 0, min(size, dataMax))
	for len(raw) < size {
		kind, payload, err := x.in.next()
		if err != nil {
			return err
		}
		if kind != frameParams || len(payload) == 0 || len(payload) > size-len(raw) {
			return fmt.Errorf("%w: kind %q in parameters", errFrame, kind)
		}
		raw = append(raw, payload...)
	}
	x.req.ParamsRaw = raw
	return nil
}

// upload is the request's body as an io.Reader: io.EOF only after the end frame.
type upload struct {
	x    *exchange
	rest []byte
	end  error
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	for len(u.rest) == 0 {
		if u.end != nil {
			return 0, u.end
		}
		kind, payload, err := u.x.in.next()
		switch {
		case err != nil:
			u.end = fmt.Errorf("read request body: %w", noEOF(err))
			if ne, ok := err.(net.Error); !ok || !ne.Timeout() {
				u.x.cancel() // the client left
			}
		case kind == frameData:
			u.rest = payload
		case kind == frameEnd:
			u.end = io.EOF
		default:
			u.end = fmt.Errorf("read request body: %w: kind %q", errFrame, kind)
		}
	}
	n := copy(p, u.rest)
	u.rest = u.rest[n:]
	return n, nil
}

// input is the body for a command's stdin: nil when there is none.
func (x *exchange) input() io.Reader {
	if x.body == nil {
		return nil
	}
	return x.body
}

// content is the body for a file: empty when there is none.
func (x *exchange) content() io.Reader {
	if x.body == nil {
		return bytes.NewReader(nil)
	}
	return x.body
}
