package api

import (
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"dayfly.dev/dayfly"
)

// statuses maps every code to its one status.
var statuses = map[dayfly.Code]int{
	dayfly.CodeInvalid:          http.StatusBadRequest,
	dayfly.CodeUnauthorized:     http.StatusUnauthorized,
	dayfly.CodeForbidden:        http.StatusForbidden,
	dayfly.CodeFilePermission:   http.StatusForbidden,
	dayfly.CodeNotFound:         http.StatusNotFound,
	dayfly.CodeFileNotFound:     http.StatusNotFound,
	dayfly.CodeMethodNotAllowed: http.StatusMethodNotAllowed,
	dayfly.CodeSlowReader:       http.StatusRequestTimeout, // only ever told within a stream
	dayfly.CodeConflict:         http.StatusConflict,
	dayfly.CodeFileConflict:     http.StatusConflict,
	dayfly.CodeNotRunning:       http.StatusConflict,
	dayfly.CodeLeaseCeiling:     http.StatusConflict,
	dayfly.CodeQuotaExceeded:    http.StatusConflict,
	dayfly.CodeSizeUnavailable:  http.StatusConflict,
	dayfly.CodeGone:             http.StatusGone,
	dayfly.CodeTooLarge:         http.StatusRequestEntityTooLarge,
	dayfly.CodeUnsupportedMedia: http.StatusUnsupportedMediaType,
	dayfly.CodeKeyReused:        http.StatusUnprocessableEntity,
	dayfly.CodeRateLimited:      http.StatusTooManyRequests,
	dayfly.CodeInternal:         http.StatusInternalServerError,
	dayfly.CodeNoCapacity:       http.StatusServiceUnavailable,
	dayfly.CodeUnavailable:      http.StatusServiceUnavailable,
	dayfly.CodeDiskFull:         http.StatusInsufficientStorage,
}

// retryDefault is the advice on a refusal that time may cure, where the backend gives none.
const retryDefault = 2 * time.Second

// errorJSON is an error as clients see it.
type errorJSON struct {
	Type      dayfly.Code    `json:"type"`
	Message   string         `json:"message"`
	Hint      *string        `json:"hint"`
	Details   map[string]any `json:"details"`
	RequestID string         `json:"request_id"`
	Status    int            `json:"status,omitempty"` // only where the head has gone with another one
}

type errorEnvelope struct {
	Error errorJSON `json:"error"`
}

// show makes err presentable and logs what the client must not see.
func (c *call) show(err error) (errorJSON, int, *dayfly.Error) {
	e := dayfly.AsError(err)
	status, ok := statuses[e.Code]
	if !ok {
		e, status = errInternal.WithCause(err), http.StatusInternalServerError
	}
	refusal := status == http.StatusServiceUnavailable && e.Cause == nil // said on purpose; on a full box there are many
	if status >= http.StatusInternalServerError && !refusal && c.ctx().Err() == nil {
		c.log.Error("request failed", "id", c.id, "route", c.pattern(), "type", string(e.Code), "message", e.Message, "error", e.Cause)
	}
	out := errorJSON{Type: e.Code, Message: e.Message, Details: e.Details, RequestID: c.id}
	if e.Hint != "" {
		out.Hint = &e.Hint
	}
	if out.Details == nil {
		out.Details = map[string]any{}
	}
	return out, status, e
}

// fail answers with err, in whatever way is still possible.
func (c *call) fail(err error) {
	switch {
	case errors.Is(err, errAborted):
		c.cut = true
	case c.wait != nil && c.wait.end(), c.w.status != 0 && c.late != nil:
		c.failLate(err)
	case c.w.status != 0:
		c.show(err) // for the log
		c.cut = true
	case c.ctx().Err() != nil: // nobody is left to answer
		c.cut = true
	default:
		c.failNow(err)
	}
}

// failLate tells an error after a head that promised success.
func (c *call) failLate(err error) {
	if c.late != nil {
		c.late(err)
		return
	}
	e, status, _ := c.show(err)
	e.Status = status
	body, err := encode(errorEnvelope{e})
	if err != nil {
		c.cut = true
		return
	}
	_, _ = c.w.Write(append(body, '\n'))
}

// failNow answers with err's status and envelope.
func (c *call) failNow(err error) {
	out, status, e := c.show(err)
	h := c.w.Header()
	for _, name := range []string{"Content-Length", "Content-Disposition", "Accept-Ranges", "Last-Modified"} {
		h.Del(name)
	}
	switch status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if e.RetryAfter <= 0 {
			e = e.WithRetryAfter(retryDefault)
		}
	}
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	if c.r.Method == http.MethodHead { // whose answers have no body
		h.Set("X-Error-Type", string(e.Code))
	}
	body, err := encode(errorEnvelope{out})
	if err != nil { // details that are not JSON
		c.log.Error("write an error", "id", c.id, "error", err)
		out.Details = map[string]any{}
		body, _ = encode(errorEnvelope{out})
	}
	c.drainBody()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	c.w.WriteHeader(status)
	_, _ = c.w.Write(append(body, '\n'))
}

// drainBody reads what a client still sends, within limits: many clients look for an answer only after they have sent
// everything, and would see a reset connection instead of the refusal. A client that waits for "100 Continue" sends nothing.
func (c *call) drainBody() {
	body, ok := c.r.Body.(*requestBody)
	if !ok || c.r.ContentLength == 0 {
		return
	}
	read, ended := body.state()
	if ended {
		return
	}
	if c.early {
		c.w.Header().Set("Connection", "close")
		return
	}
	if read == 0 && strings.EqualFold(c.r.Header.Get("Expect"), "100-continue") {
		return
	}
	if c.r.ContentLength > drainMaxBytes {
		c.w.Header().Set("Connection", "close")
	}
	ctl := http.NewResponseController(c.w)
	if !drain(ctl, body) { // more to come, or cut: this connection is of no more use
		c.w.Header().Set("Connection", "close")
	}
	_ = ctl.SetReadDeadline(time.Time{})
}

// drain reads a body while it keeps coming and tells whether that was all of it. A client that sends nothing for a moment
// waits for more itself, or for the answer.
func drain(ctl *http.ResponseController, body io.Reader) (whole bool) {
	last := time.Now().Add(drainTimeout)
	buf := make([]byte, drainStep)
	for read := 0; read < drainMaxBytes; {
		quiet := time.Now().Add(drainQuiet)
		if quiet.After(last) {
			quiet = last
		}
		if ctl.SetReadDeadline(quiet) != nil {
			return false
		}
		n, err := body.Read(buf)
		if read += n; err != nil {
			return errors.Is(err, io.EOF)
		}
	}
	return false
}
