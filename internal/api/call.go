package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"sync"
	"unicode/utf8"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// call is one request and its answer.
type call struct {
	*server
	r     *http.Request
	w     *response
	id    string // of the request
	route *route // nil until found
	who   control.Principal
	key   control.Idempotency
	wait  *waiting    // of a long plain answer, or nil
	late  func(error) // tells an error on an answer whose head has gone, or nil: then the connection is cut
	cut   bool        // the answer is incomplete: cut the connection
	early bool        // the answer does not wait for the rest of the request's body
}

func (c *call) ctx() context.Context { return c.r.Context() }

// response remembers what has been written.
type response struct {
	http.ResponseWriter
	call   *call
	status int // 0: nothing has been written yet
	bytes  int64
}

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// requestBody counts what was read of a request's body and remembers how reading ended. A backend may read it in another
// goroutine.
type requestBody struct {
	io.ReadCloser

	mu    sync.Mutex
	read  int64
	err   error  // that ended reading, io.EOF at the end; nil before
	atEnd func() // called once when reading ends, or nil
}

// Read implements io.Reader.
func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read += int64(n)
	if err != nil && b.err == nil {
		b.err = err
		if b.atEnd != nil {
			b.atEnd()
		}
	}
	return n, err
}

// state tells how much was read and whether reading has ended.
func (b *requestBody) state() (read int64, ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.read, b.err != nil
}

// failed is the error that cut the body off, or nil.
func (b *requestBody) failed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == io.EOF {
		return nil
	}
	return b.err
}

// answerEarly lets the answer go out while the client still sends, as someone does who types: without it, the answer would wait
// for the next bytes, also when the process they are meant for has ended.
func (c *call) answerEarly() {
	c.early = http.NewResponseController(c.w).EnableFullDuplex() == nil
}

// answer writes v as the JSON answer.
func (c *call) answer(status int, v any) error {
	body, err := encode(v)
	if err != nil {
		return err
	}
	return c.answerBytes(status, body)
}

// answerBytes writes a JSON answer. When the head of a long answer has gone, only the body is left to write.
func (c *call) answerBytes(status int, body []byte) error {
	if c.wait == nil || !c.wait.end() {
		h := c.w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Length", strconv.Itoa(len(body)+1))
		c.w.WriteHeader(status)
	}
	if _, err := c.w.Write(append(body, '\n')); err != nil {
		return errAborted
	}
	_ = http.NewResponseController(c.w).Flush() // the client need not wait for the log; what fails here fails at the next write
	return nil
}

// replayed marks the answer as a repetition.
func (c *call) replayed(yes bool) {
	if c.wait != nil && c.wait.end() || !yes {
		return
	}
	c.w.Header().Set("Idempotency-Replayed", "true")
}

// encode writes JSON without escaping what only matters inside HTML.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// sandboxID is the {id} of the path. Text that cannot be an id is not found either.
func (c *call) sandboxID() (string, error) {
	id := c.r.PathValue("id")
	if !dayfly.ValidID(dayfly.PrefixSandbox, id) {
		return "", dayfly.Errorf(dayfly.CodeNotFound, "there is no such sandbox").
			WithHint("ids are %q and 20 letters and digits; GET /v1/sandboxes lists yours", dayfly.PrefixSandbox)
	}
	return id, nil
}

// machine is the machine of the path's sandbox.
func (c *call) machine() (control.Machine, error) {
	id, err := c.sandboxID()
	if err != nil {
		return nil, err
	}
	return c.backend.Machine(c.ctx(), c.who, id)
}

// readIdempotency takes the request's idempotency key; hash stands for its body and is computed only where there is a key.
func (c *call) readIdempotency(hash func() string) error {
	if !takesKey(c.r.Method) {
		return nil
	}
	given := c.r.Header.Values("Idempotency-Key")
	if len(given) == 0 {
		return nil
	}
	key := given[0]
	if n := utf8.RuneCountInString(key); len(given) > 1 || n < 1 || n > idempotencyKeyMax || !utf8.ValidString(key) {
		return dayfly.Errorf(dayfly.CodeInvalid, "the header Idempotency-Key must be one text of 1 to %d characters", idempotencyKeyMax).
			WithHint("use a random text, new for each thing you want done")
	}
	c.key = control.Idempotency{Key: key, Operation: c.r.Method + " " + c.r.URL.Path, Hash: hash()}
	return nil
}

// once answers with what do answers, run once per idempotency key. show makes the answer to a replay from what was kept; nil
// shows that itself.
func (c *call) once(do func(context.Context) (control.Answer, error), show func(kept []byte) (any, error)) error {
	a, replayed, err := c.backend.Once(c.ctx(), c.who, c.key, do)
	if err != nil {
		return err
	}
	if !replayed {
		return c.answerBytes(a.Status, a.Body)
	}
	c.drainBody() // which is not needed again
	body := a.Kept
	if show != nil {
		v, err := show(a.Kept)
		if err != nil {
			return err
		}
		if body, err = encode(v); err != nil {
			return err
		}
	}
	c.replayed(true)
	return c.answerBytes(a.Status, markReplayed(body))
}

// markReplayed adds "replayed": true to a JSON object.
func markReplayed(object []byte) []byte {
	const mark = `"replayed":true`
	rest, ok := bytes.CutPrefix(bytes.TrimSpace(object), []byte("{"))
	if !ok {
		return object
	}
	rest = bytes.TrimLeft(rest, " \t\r\n")
	if len(rest) > 0 && rest[0] == '}' {
		return []byte("{" + mark + "}")
	}
	return append([]byte("{"+mark+","), rest...)
}

// kept makes an answer that is shown in full to a replay too.
func kept(status int, v any) (control.Answer, error) {
	body, err := encode(v)
	return control.Answer{Status: status, Body: body, Kept: body}, err
}
