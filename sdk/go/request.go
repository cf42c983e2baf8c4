package dayfly

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	mrand "math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Limits of a call.
const (
	attemptsMax   = 4
	backoffFirst  = 100 * time.Millisecond // tripled with each attempt
	backoffMax    = 2 * time.Second
	retryAfterMax = 30 * time.Second // longer advice is followed this far only
	answerMax     = 64 << 20         // bytes of a JSON answer
	drainMax      = 256 << 10        // bytes read to keep a connection usable; beyond, it is closed
	// silenceMax ends a connection on which not even the keep-alives of the server arrive, which come every 15 s.
	silenceMax = 60 * time.Second
)

// call is one request that may be sent several times.
type call struct {
	method string
	path   string // already escaped, below the base
	query  url.Values
	header http.Header
	json   any // the body as JSON, or nil
	// body makes the raw body, or is nil. It is called once per attempt and not again once bytes of an unrepeatable one were read.
	body       func() (io.ReadCloser, error)
	repeatable bool // body may be made again
	// deliver: a connection that breaks under the body may have delivered a part of it, so that sending it again could deliver that
	// twice. Then it fails instead.
	deliver bool
	key     string // idempotency key of a POST; empty: a new one for this call
	// patience makes attempts go on beyond their number until so much time has passed since the first that failed.
	patience time.Duration
}

// do sends a call and decodes its JSON answer into out, or drops it where out is nil.
func (c *Client) do(ctx context.Context, k call, out any) error {
	return c.repeat(ctx, k, func(resp *http.Response) error { return c.decode(ctx, resp, out) })
}

// open sends a call and gives its successful answer, whose body the caller closes.
func (c *Client) open(ctx context.Context, k call) (resp *http.Response, err error) {
	err = c.repeat(ctx, k, func(r *http.Response) error {
		resp = r
		return nil
	})
	return resp, err
}

// repeat sends a call until it succeeds, fails for good, or its attempts are used up. use takes over a successful answer.
func (c *Client) repeat(ctx context.Context, k call, use func(*http.Response) error) error {
	if k.method == http.MethodPost && k.key == "" {
		k.key = newKey()
	}
	var payload []byte
	if k.json != nil {
		var err error
		if payload, err = json.Marshal(k.json); err != nil {
			return localError("write the request", err)
		}
	}
	var failing time.Time // since when
	for n := 1; ; n++ {
		bodyRead, err := c.attempt(ctx, k, payload, use)
		if err == nil {
			return nil
		}
		e := c.transportError(ctx, err)
		if n == 1 {
			failing = time.Now()
		}
		if !e.Retryable || (n >= attemptsMax && time.Since(failing) >= k.patience) || (bodyRead && !k.repeatable) {
			return e
		}
		if bodyRead && k.deliver && e.Status == 0 {
			return &Error{Code: CodeUnreachable, cause: e, Message: "the connection broke while input was on its way; how much of it arrived is unknown: " + e.Message,
				Hint: "copy large input into the sandbox as a file, and have the command read that"}
		}
		if err := pause(ctx, backoff(n, e.RetryAfter)); err != nil {
			return c.transportError(ctx, err)
		}
	}
}

// attempt sends the call once. bodyRead tells whether anything was taken from its raw body.
func (c *Client) attempt(ctx context.Context, k call, payload []byte, use func(*http.Response) error) (bodyRead bool, err error) {
	req, counted, err := c.request(ctx, k, payload)
	if err != nil {
		return false, err
	}
	resp, err := c.http.Do(req)
	bodyRead = counted.touched()
	if err != nil {
		if failed := counted.failure(); failed != nil {
			return bodyRead, failed
		}
		return bodyRead, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer release(resp.Body)
		return bodyRead, answerError(resp)
	}
	return bodyRead, use(resp)
}

func (c *Client) request(ctx context.Context, k call, payload []byte) (*http.Request, *countedBody, error) {
	if c.key == "" && strings.HasPrefix(k.path, "/v1/") {
		return nil, nil, &Error{Code: CodeUnauthorized, Message: "no API key was found: " + c.keyReason,
			Hint: "set " + EnvAPIKey + " to a key of this server"}
	}
	var body io.Reader
	var counted *countedBody
	switch {
	case payload != nil:
		body = bytes.NewReader(payload)
	case k.body != nil:
		raw, err := k.body()
		if err != nil {
			return nil, nil, err
		}
		counted = &countedBody{from: raw}
		body = counted
	}
	address := c.base.String() + k.path
	if len(k.query) > 0 {
		address += "?" + k.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, k.method, address, body)
	if err != nil {
		counted.discard()
		return nil, nil, localError("build the request", err)
	}
	for name, values := range k.header {
		req.Header[name] = values
	}
	if payload != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("User-Agent", c.userAgent)
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	if k.method == http.MethodPost {
		req.Header.Set("Idempotency-Key", k.key)
	}
	return req, counted, nil
}

// decode reads a whole JSON answer. The server may have sent spaces to keep the connection alive, and an error after them.
func (c *Client) decode(ctx context.Context, resp *http.Response, out any) error {
	body := watch(resp.Body)
	defer release(body)
	b, err := io.ReadAll(io.LimitReader(body, answerMax+1))
	if err != nil {
		return c.transportError(ctx, err)
	}
	if len(b) > answerMax {
		return &Error{Code: CodeBadAnswer, Status: resp.StatusCode, Message: "the server's answer is larger than any answer of Dayfly"}
	}
	if e := bodyError(b, resp.StatusCode, resp.Header); e != nil {
		return e
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return &Error{Code: CodeBadAnswer, Status: resp.StatusCode, RequestID: resp.Header.Get("X-Request-Id"),
			Message: c.URL() + " answered something that is not an answer of Dayfly", cause: err,
			Hint: "check that the address is a Dayfly server of a version that fits this SDK"}
	}
	return nil
}

// backoff is the wait after failed attempt n: the server's advice, else growing, with a fifth of jitter on top.
func backoff(n int, advice time.Duration) time.Duration {
	d := min(advice, retryAfterMax)
	if advice == 0 {
		d = backoffFirst
		for range min(n-1, attemptsMax) {
			d = min(3*d, backoffMax)
		}
	}
	return d + time.Duration(mrand.Int64N(int64(d)/5+1))
}

// pause waits for d or for the end of ctx, whose error it returns.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// newKey makes an idempotency key of 128 random bits.
func newKey() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// release drains a little of a body, so that its connection can be used again, and closes it.
func release(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, drainMax)
	_ = body.Close()
}

// countedBody remembers whether a raw body was touched and whether reading it failed on this side.
type countedBody struct {
	from io.ReadCloser
	read atomic.Bool
	fail atomic.Pointer[Error]
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	b.read.Store(true)
	n, err := b.from.Read(p)
	if err != nil && err != io.EOF {
		var own *Error
		if !errors.As(err, &own) {
			own = localError("read what is to be sent", err)
		}
		b.fail.Store(own)
	}
	return n, err
}

// Close implements io.Closer.
func (b *countedBody) Close() error { return b.from.Close() }

func (b *countedBody) touched() bool { return b != nil && b.read.Load() }

func (b *countedBody) failure() error {
	if b == nil {
		return nil
	}
	if e := b.fail.Load(); e != nil {
		return e
	}
	return nil
}

func (b *countedBody) discard() {
	if b != nil {
		_ = b.from.Close()
	}
}

// errSilent is why a watched body was closed.
var errSilent = errors.New("the connection fell silent")

// watchedBody closes itself when somebody reads and nothing arrives for silenceMax. A reader that takes its time is no silence.
type watchedBody struct {
	io.ReadCloser
	timer  *time.Timer
	silent atomic.Bool
}

// watch guards a body on which the server keeps sending signs of life.
func watch(body io.ReadCloser) *watchedBody {
	w := &watchedBody{ReadCloser: body}
	w.timer = time.AfterFunc(silenceMax, func() {
		w.silent.Store(true)
		_ = body.Close()
	})
	w.timer.Stop()
	return w
}

// Read implements io.Reader.
func (w *watchedBody) Read(p []byte) (int, error) {
	w.timer.Reset(silenceMax)
	n, err := w.ReadCloser.Read(p)
	w.timer.Stop()
	if err != nil && w.silent.Load() {
		return n, errSilent
	}
	return n, err
}

// Close implements io.Closer.
func (w *watchedBody) Close() error {
	w.timer.Stop()
	return w.ReadCloser.Close()
}

// segment escapes one element of a path.
func segment(s string) string { return url.PathEscape(s) }
