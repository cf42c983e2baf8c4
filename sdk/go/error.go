package dayfly

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// Code classifies a failure. Codes never change; new ones may be added.
type Code string

// The codes of the server, in the order of their HTTP statuses.
const (
	CodeInvalid            Code = "invalid_request"
	CodeUnauthorized       Code = "unauthorized"
	CodeInsufficientCredit Code = "insufficient_credit"
	CodeForbidden          Code = "forbidden"
	CodeFilePermission     Code = "file_permission"
	CodeNotFound           Code = "not_found"
	CodeFileNotFound       Code = "file_not_found"
	CodeMethodNotAllowed   Code = "method_not_allowed"
	CodeConflict           Code = "conflict"
	CodeFileConflict       Code = "file_conflict"
	CodeNotRunning         Code = "sandbox_not_running"
	CodeLeaseCeiling       Code = "lease_ceiling"
	CodeQuotaExceeded      Code = "quota_exceeded"
	CodeSizeUnavailable    Code = "size_unavailable"
	CodeGone               Code = "gone"
	CodeTooLarge           Code = "too_large"
	CodeUnsupportedMedia   Code = "unsupported_media_type"
	CodeKeyReused          Code = "idempotency_key_reused"
	CodeRateLimited        Code = "rate_limited"
	CodeInternal           Code = "internal"
	CodeNoCapacity         Code = "no_capacity"
	CodeUnavailable        Code = "unavailable"
	CodeDiskFull           Code = "disk_full"
	// CodeSlowReader comes within a stream only, which is taken up again by itself: nobody read for too long.
	CodeSlowReader Code = "slow_reader"
)

// The codes that this package gives itself, with status 0.
const (
	// CodeUnreachable: no answer came, the server is down or the connection broke. Whether the request took effect is unknown.
	CodeUnreachable Code = "unreachable"
	// CodeBadAnswer: what answered does not speak Dayfly's API.
	CodeBadAnswer Code = "bad_answer"
	// CodeLocal: a file or stream on this side failed.
	CodeLocal Code = "local_failure"
	// CodeCancelled: the caller's context ended. errors.Is with context.Canceled or DeadlineExceeded holds.
	CodeCancelled Code = "cancelled"
)

// Error is every failure that this package returns, except *ExitError. It never holds a key or a secret.
type Error struct {
	Code       Code
	Status     int            // of the HTTP answer, or 0
	Message    string         // one sentence
	Hint       string         // what to do next, or empty
	Details    map[string]any // machine-readable extras, or nil
	RequestID  string         // for the server's log, or empty
	RetryAfter time.Duration  // the server's advice, or 0
	Retryable  bool           // the same call may succeed later
	cause      error          // or nil
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Unwrap gives the cause, or nil.
func (e *Error) Unwrap() error { return e.cause }

// ErrorCode gives the code of err: empty for nil and for an error that is not of this package.
func ErrorCode(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// IsGone tells whether err says that the thing does not exist, any more or at all.
func IsGone(err error) bool {
	code := ErrorCode(err)
	return code == CodeNotFound || code == CodeGone
}

// ExitError is a command that ended with another exit code than 0 where ExecOptions.Check was set.
type ExitError struct{ Result *Result }

// Error implements error. It tells the end of stderr, not the command, which may hold secrets.
func (e *ExitError) Error() string {
	text := "the command exited with code " + strconv.Itoa(e.Result.ExitCode)
	if e.Result.TimedOut {
		text = "the command ran into its timeout"
	}
	if tail := lastBytes(e.Result.Stderr, 500); tail != "" {
		text += ": " + tail
	}
	return text
}

func (e *Error) withHint(hint string) *Error {
	c := *e
	c.Hint = hint
	return &c
}

// wireError is an error as the server writes it.
type wireError struct {
	Type      Code           `json:"type"`
	Message   string         `json:"message"`
	Hint      string         `json:"hint"`
	Details   map[string]any `json:"details"`
	RequestID string         `json:"request_id"`
	Status    int            `json:"status"` // of an error that came after the head
}

func (w wireError) error(status int, h http.Header) *Error {
	if w.Status != 0 {
		status = w.Status
	}
	e := &Error{Code: w.Type, Status: status, Message: w.Message, Hint: w.Hint, Details: w.Details, RequestID: w.RequestID}
	if e.Message == "" {
		e.Message = "the server refused: " + string(w.Type)
	}
	if h != nil {
		e.RequestID = firstOf(e.RequestID, h.Get("X-Request-Id"))
		e.RetryAfter = parseRetryAfter(h.Get("Retry-After"))
	}
	e.Retryable = retryableCode(e.Code)
	return e
}

func retryableCode(c Code) bool {
	switch c {
	case CodeRateLimited, CodeNoCapacity, CodeUnavailable, CodeUnreachable, CodeSlowReader:
		return true
	}
	return false
}

// errorBodyMax bounds what is read of an error answer, in bytes.
const errorBodyMax = 1 << 20

// answerError turns an answer that is no success into an error. It does not close the body.
func answerError(resp *http.Response) *Error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, errorBodyMax))
	if e := bodyError(body, resp.StatusCode, resp.Header); e != nil {
		return e
	}
	e := &Error{
		Code: CodeBadAnswer, Status: resp.StatusCode, RequestID: resp.Header.Get("X-Request-Id"),
		Message: fmt.Sprintf("%s answered %q, which is not an answer of Dayfly", resp.Request.URL.Host, resp.Status),
		Hint:    "check that the address is a Dayfly server and what stands between it and this machine",
	}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		e.Retryable, e.RetryAfter = true, parseRetryAfter(resp.Header.Get("Retry-After"))
	}
	return e
}

// bodyError finds {"error":{…}} in an answer's body, or gives nil.
func bodyError(body []byte, status int, h http.Header) *Error {
	var envelope struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(body, &envelope) != nil || len(envelope.Error) == 0 || envelope.Error[0] != '{' {
		return nil
	}
	var w wireError
	if json.Unmarshal(envelope.Error, &w) != nil || w.Type == "" {
		return nil
	}
	return w.error(status, h)
}

// parseRetryAfter reads seconds. Dates and nonsense give 0: no advice.
func parseRetryAfter(s string) time.Duration {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 24*3600 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// transportError wraps what broke on the way. The caller's own end of ctx is no failure of the connection.
func (c *Client) transportError(ctx context.Context, err error) *Error {
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	if ctx.Err() != nil {
		return &Error{Code: CodeCancelled, Message: "the call was given up: " + ctx.Err().Error(), cause: ctx.Err()}
	}
	return &Error{
		Code: CodeUnreachable, Message: fmt.Sprintf("no answer from the server at %s: %s", c.URL(), reason(err)),
		Hint: "check that the server runs and that its address is right", Retryable: true, cause: err,
	}
}

// reason shortens a transport's text to its innermost cause: the rest repeats the address and the method.
func reason(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the connection broke"
	}
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err.Error()
		}
		err = next
	}
}

// localError is a failure of a file or stream on this side.
func localError(step string, err error) *Error {
	return &Error{Code: CodeLocal, Message: fmt.Sprintf("%s: %v", step, err), cause: err}
}

func lastBytes(s string, n int) string {
	if len(s) > n {
		s = "…" + s[len(s)-n:]
	}
	return s
}
