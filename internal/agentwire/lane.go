package agentwire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// Limits of lanes.
const (
	lanesMax    = 2        // of one client; what finds none idle goes over the session
	laneRequest = 32 << 10 // bytes of a request's parameters on a lane: what the kernel takes at once from who has read the last one
)

// A lane is a connection beside the session that carries one request after the other, each to the end of its answer: whoever
// calls writes and reads it himself. A session hands each request through goroutines at both ends, which takes as long as
// the agent's whole work for a short command. What has a body, or may be in each other's way, stays with the session.
type lane struct {
	conn   net.Conn
	frames *frameReader
}

// lanes are the lanes of a client.
type lanes struct {
	mu    sync.Mutex
	dial  func(context.Context) (net.Conn, error) // nil: none are made
	idle  []*lane
	all   []*lane
	made  int  // that are there, are being made, or could not be made
	ended bool // the client's session is over
}

// Widen lets the client open more connections to its agent with dial, when they are of use and the agent knows what to do with
// them. It is called once, before the first request.
func (c *Client) Widen(dial func(context.Context) (net.Conn, error)) {
	if !slices.Contains(c.features, featureLanes) {
		return
	}
	c.lanes.mu.Lock()
	c.lanes.dial = dial
	c.lanes.mu.Unlock()
	c.closing.Add(1)
	go func() {
		defer c.closing.Done()
		<-c.Done()
		c.lanes.end()
	}()
}

// takeLane gives an idle lane, which the caller gives back or drops; nil: there is none. Then one is made for the next time.
func (c *Client) takeLane() *lane {
	s := &c.lanes
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		l := s.idle[n-1]
		s.idle = s.idle[:n-1]
		return l
	}
	if s.dial != nil && !s.ended && s.made < lanesMax {
		s.made++
		c.closing.Add(1)
		go c.addLane(s.dial)
	}
	return nil
}

// addLane makes a lane, unless the session ends before. One that the agent refuses is not tried again; one that it did not answer
// in time, because the machine was paused, is.
func (c *Client) addLane(dial func(context.Context) (net.Conn, error)) {
	defer c.closing.Done()
	ctx, cancel := context.WithTimeout(context.Background(), helloTimeout)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-c.Done():
			cancel()
		case <-stop:
		}
	}()
	l, err := newLane(ctx, dial)
	c.lanes.mu.Lock()
	switch {
	case err == nil:
		c.lanes.all = append(c.lanes.all, l)
	case ctx.Err() != nil:
		c.lanes.made--
	}
	c.lanes.mu.Unlock()
	if err != nil {
		return
	}
	c.giveBack(l)
}

func newLane(ctx context.Context, dial func(context.Context) (net.Conn, error)) (*lane, error) {
	conn, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	_, _, err = greet(conn, hello{Min: versionMin, Max: versionMax, Lane: true})
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &lane{conn: conn, frames: newFrameReader(conn)}, nil
}

// giveBack keeps a lane whose answer was read to its end, unless the agent said more than that.
func (c *Client) giveBack(l *lane) {
	if l.frames.r.Buffered() > 0 {
		c.drop(l)
		return
	}
	s := &c.lanes
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		_ = l.conn.Close()
		return
	}
	s.idle = append(s.idle, l)
}

// drop closes a lane in the middle of an answer, by which the agent knows that the client left, or after an error, after which
// the agent may not go on.
func (c *Client) drop(l *lane) {
	_ = l.conn.Close()
	s := &c.lanes
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made--
	s.all = slices.DeleteFunc(s.all, func(o *lane) bool { return o == l })
}

// end closes all lanes.
func (s *lanes) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, l := range s.all {
		_ = l.conn.Close()
	}
	s.all, s.idle = nil, nil
}

// openOnLane sends a request without a body on a lane. nil without an error: there is no lane for it, and nothing was sent.
func (c *Client) openOnLane(ctx context.Context, req request, packed []byte) (*call, error) {
	if len(packed) > laneRequest {
		return nil, nil
	}
	l := c.takeLane()
	if l == nil {
		return nil, nil
	}
	k := &call{client: c, ctx: ctx, lane: l, frames: l.frames}
	k.stop = context.AfterFunc(ctx, func() { _ = l.conn.SetDeadline(time.Unix(1, 0)) })
	w := newFrameWriter(l.conn)
	err := w.json(req)
	if err == nil {
		err = w.chunks(frameParams, packed)
	}
	if err == nil {
		err = w.flush()
	}
	if err == nil {
		return k, nil
	}
	k.close()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w", req.Op, ctx.Err())
	}
	if errors.Is(err, errFrame) {
		return nil, err
	}
	return nil, nil // the agent has closed it: the session knows more
}
