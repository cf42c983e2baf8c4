package agentwire

import (
	"context"
	"net"
	"time"

	"dayfly.dev/dayfly"
)

// Times of a request on a lane.
const (
	laneWatch = 5 * time.Millisecond // after which it is watched whether the client leaves: most are answered before
	laneRest  = 2 * time.Millisecond // after its answer, when what is left to do is in nobody's way any more
)

// serveLane answers the requests of a lane, one after the other, until it is closed. Nothing is handed to another goroutine.
func serveLane(ctx context.Context, conn net.Conn, m Machine) error {
	in := newFrameReader(conn)
	over := func() {} // ends the request before
	defer func() { over() }()
	for {
		x := &exchange{m: m, in: in, out: newFrameWriter(conn)}
		err := x.readRequest()
		over()
		x.ctx, x.cancel = context.WithCancel(ctx)
		over = x.cancel
		if dayfly.ErrorCode(err) == dayfly.CodeInternal || x.req.Body {
			return err // the client left, or sends what does not belong on a lane
		}
		if err != nil {
			_ = x.fail(err)
			return x.out.flush() // what else belongs to the request is not known
		}
		if err := x.serveWatched(conn); err != nil || x.ctx.Err() != nil {
			return err
		}
		rest := time.AfterFunc(laneRest, x.cancel)
		over = func() { rest.Stop(); x.cancel() }
	}
}

// serveWatched answers a request whose client may leave meanwhile, which closes the lane.
func (x *exchange) serveWatched(conn net.Conn) error {
	if w, ok := x.m.(Watcher); ok {
		defer w.Begin()()
	}
	watched := make(chan struct{})
	watch := time.AfterFunc(laneWatch, func() {
		defer close(watched)
		_, err := x.in.r.Peek(1)
		if ne, ok := err.(net.Error); err != nil && !(ok && ne.Timeout()) {
			x.cancel()
		}
	})
	x.answer()
	if !watch.Stop() {
		_ = conn.SetReadDeadline(time.Unix(1, 0))
		<-watched
		_ = conn.SetReadDeadline(time.Time{})
	}
	return x.out.flush()
}
