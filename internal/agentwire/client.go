package agentwire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sync/semaphore"
)

// helloTimeout bounds the hello when the context has no earlier end.
const helloTimeout = 30 * time.Second

// Client is the node's end of a connection to an agent. It implements Machine and is safe for concurrent use.
type Client struct {
	session  *yamux.Session
	version  int
	features []string            // of the agent
	sending  *semaphore.Weighted // bytes of requests that are being sent
	closing  sync.WaitGroup      // streams being opened or closed, and lanes
	lanes    lanes
}

var _ Machine = (*Client)(nil)

// NewClient is NewClientSince without an age.
func NewClient(ctx context.Context, conn net.Conn) (*Client, error) {
	return NewClientSince(ctx, conn, 0)
}

// NewClientSince says hello on conn and takes it over; on an error conn is closed. It blocks until the agent has answered, ctx
// ends or 30 seconds have passed. age is how long ago the sandbox's lease began, which an agent may only know less of, or 0.
func NewClientSince(ctx context.Context, conn net.Conn, age time.Duration) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	version, features, err := greet(conn, hello{Min: versionMin, Max: versionMax, AgeMS: max(0, age.Milliseconds())})
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		return nil, fmt.Errorf("greet agent: %w: %w", ErrLost, err)
	}
	session, err := yamux.Client(newGuard(conn, true /* an agent sends */), muxConfig())
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("start session with agent: %w", err)
	}
	return &Client{session: session, version: version, features: features, sending: semaphore.NewWeighted(sendingMax)}, nil
}

// greet says hello and gives what the agent answered: the version that both ends speak and its features.
func greet(conn net.Conn, ours hello) (int, []string, error) {
	if err := writeHello(conn, ours); err != nil {
		return 0, nil, err
	}
	theirs, err := readHello(conn)
	if err != nil {
		return 0, nil, err
	}
	version, err := settle(theirs)
	return version, theirs.Features, err
}

// Close ends the session. Calls in flight end with ErrLost. It waits for the session's goroutines.
func (c *Client) Close() error {
	err := c.session.Close()
	c.closing.Wait()
	return err
}

// Done is closed once the session has ended, whoever ended it.
func (c *Client) Done() <-chan struct{} { return c.session.CloseChan() }

// Ping asks the agent for a sign of life.
func (c *Client) Ping(ctx context.Context) error {
	return c.command(ctx, request{Op: opPing})
}

// call is one request in flight. Whoever made it closes it.
type call struct {
	client *Client
	ctx    context.Context
	stream *yamux.Stream // or nil
	lane   *lane         // instead of a stream, or nil
	whole  bool          // the lane's answer, which is no error, was read to its end
	frames *frameReader
	stop   func() bool
	taken  int64 // bytes of the answer's messages so far

	mu      sync.Mutex
	bodyErr error // why the body could not be read from the caller
}

// Limits of what is being sent to an agent. One that takes nothing keeps what was begun, also when its callers have left, until it
// takes it or the session ends; further callers wait.
const (
	sendingMax  = 64 << 20 // bytes
	sendingEach = 64 << 10 // counted for each request beside its byte strings
)

// open sends a request, and in the background its body (or nil). It returns when the request is out or ctx ends.
func (c *Client) open(ctx context.Context, req request, params []string, body io.Reader) (*call, error) {
	req, err := req.suit(c.features)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", req.Op, err)
	}
	packed := packParams(params...)
	if len(packed) > ParamsMax {
		return nil, tooLarge(len(packed))
	}
	req.Params, req.ParamBytes = len(params), len(packed)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", req.Op, err)
	}
	if req.Op == opRun && body == nil {
		if k, err := c.openOnLane(ctx, req, packed); k != nil || err != nil {
			return k, err
		}
	}
	weight := int64(len(packed) + sendingEach)
	if err := c.sending.Acquire(ctx, weight); err != nil {
		return nil, fmt.Errorf("%s: %w", req.Op, err)
	}
	type opened struct {
		stream *yamux.Stream
		err    error
	}
	done, left := make(chan opened), make(chan struct{})
	c.closing.Add(1)
	go func() {
		defer c.closing.Done()
		s, err := c.send(ctx, req, packed)
		c.sending.Release(weight)
		select {
		case done <- opened{s, err}:
		case <-left:
			if s != nil {
				_ = s.Close()
			}
		}
	}()
	select {
	case o := <-done:
		if o.err != nil && ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", req.Op, ctx.Err())
		}
		if o.err != nil {
			return nil, fmt.Errorf("%s: %w: %w", req.Op, ErrLost, o.err)
		}
		return c.newCall(ctx, o.stream, body), nil
	case <-ctx.Done():
		close(left)
		return nil, fmt.Errorf("%s: %w", req.Op, ctx.Err())
	}
}

// send opens a stream and writes the request. When ctx ends it stops waiting for room on the stream.
func (c *Client) send(ctx context.Context, req request, packed []byte) (*yamux.Stream, error) {
	s, err := c.session.OpenStream()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	w := newFrameWriter(s)
	err = w.json(req)
	if err == nil {
		err = w.chunks(frameParams, packed)
	}
	if err == nil {
		err = w.flush()
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

func (c *Client) newCall(ctx context.Context, s *yamux.Stream, body io.Reader) *call {
	k := &call{client: c, ctx: ctx, stream: s, frames: newFrameReader(s)}
	k.stop = context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })
	if body != nil {
		// Not waited for: it may sit in the caller's Read, which nothing here can end. It ends with that Read, or with
		// the stream.
		go k.upload(body)
	}
	return k
}

// upload sends the caller's reader as the request's body. Without the end frame the agent knows that it is incomplete.
func (k *call) upload(body io.Reader) {
	w := newFrameWriter(k.stream)
	buf := make([]byte, dataMax)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if w.frame(frameData, buf[:n]) != nil || w.flush() != nil {
				return
			}
		}
		if err == io.EOF && k.ctx.Err() != nil {
			return // the caller left; what it had sent must not count as complete
		}
		if err == io.EOF {
			_ = w.frame(frameEnd)
			_ = w.flush()
			return
		}
		if err != nil {
			k.mu.Lock()
			k.bodyErr = err
			k.mu.Unlock()
			_ = k.stream.Close()
			return
		}
	}
}

// close ends the call. For an answer that is not complete it means that the client left.
func (k *call) close() {
	inTime := k.stop()
	switch {
	case k.lane == nil:
		k.client.discard(k.stream)
	case inTime && k.whole:
		k.client.giveBack(k.lane)
	default:
		k.client.drop(k.lane)
	}
}

// discard closes a stream in the background: a stuck agent must not hold up whoever leaves it.
func (c *Client) discard(s *yamux.Stream) {
	c.closing.Add(1)
	go func() {
		defer c.closing.Done()
		_ = s.Close()
	}()
}

// next reads a frame of the answer. An error message in it comes back as *dayfly.Error, a broken answer as ErrLost.
func (k *call) next() (kind byte, payload []byte, m message, err error) {
	kind, payload, err = k.frames.next()
	if err != nil {
		return 0, nil, m, k.broken(err)
	}
	if kind != frameJSON {
		return kind, payload, m, nil
	}
	k.taken += int64(len(payload))
	if objects, values := bytes.Count(payload, []byte("{")), bytes.Count(payload, []byte(",")); objects > objectsMax || values > valuesMax {
		return 0, nil, m, k.broken(fmt.Errorf("%w: a message of %d objects and %d values", errFrame, objects, values))
	}
	if err := json.Unmarshal(payload, &m); err != nil {
		return 0, nil, m, k.broken(fmt.Errorf("%w: %w", errFrame, err))
	}
	if m.Error != nil {
		return 0, nil, m, m.Error.toError()
	}
	return kind, payload, m, nil
}

// broken explains why an answer ended early: the caller left, its body failed, or the agent is lost.
func (k *call) broken(err error) error {
	if k.ctx.Err() != nil {
		return k.ctx.Err()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.bodyErr != nil {
		return fmt.Errorf("read what is to be sent: %w", k.bodyErr)
	}
	if errors.Is(err, ErrLost) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrLost, noEOF(err))
}

// Limits of an answer, against an agent that makes much of little.
const (
	objectsMax = 16 << 10 // JSON objects of one message; each may take a hundred times the bytes that it came in
	valuesMax  = 32 << 10 // its other values, as commas tell them
	answerMax  = 32 << 20 // bytes of the messages of an answer that is collected before it is given on
)

// collect reads a message of an answer whose messages are kept until it is whole. Any other kind is given as it is.
func (k *call) collect() (kind byte, m message, err error) {
	kind, _, m, err = k.next()
	if err == nil && k.taken > answerMax {
		err = k.broken(fmt.Errorf("%w: an answer of more than %d bytes", errFrame, answerMax))
	}
	return kind, m, err
}

// message reads a JSON frame; any other kind is a broken answer.
func (k *call) message() (message, error) {
	kind, m, err := k.collect()
	if err == nil && kind != frameJSON {
		err = k.broken(fmt.Errorf("%w: kind %q instead of a message", errFrame, kind))
	}
	return m, err
}

// command sends a request whose answer is only success or an error.
func (c *Client) command(ctx context.Context, req request, params ...string) error {
	_, err := c.ask(ctx, req, nil /* no body */, params...)
	return err
}

// ask sends a request whose answer is one message.
func (c *Client) ask(ctx context.Context, req request, body io.Reader, params ...string) (message, error) {
	req.Body = body != nil
	k, err := c.open(ctx, req, params, body)
	if err != nil {
		return message{}, err
	}
	defer k.close()
	m, err := k.message()
	if err != nil {
		return m, fmt.Errorf("%s: %w", req.Op, err)
	}
	return m, nil
}
