package dayfly

import (
	"errors"
	"fmt"
	"time"
)

// Code classifies an error for the caller. Its text is the "type" of an API error and never changes.
type Code string

// The codes, in the order of their HTTP statuses. The API maps each to exactly one status.
const (
	CodeInvalid          Code = "invalid_request"
	CodeUnauthorized     Code = "unauthorized"
	CodeForbidden        Code = "forbidden"
	CodeFilePermission   Code = "file_permission"
	CodeNotFound         Code = "not_found"
	CodeFileNotFound     Code = "file_not_found"
	CodeMethodNotAllowed Code = "method_not_allowed"
	CodeSlowReader       Code = "slow_reader"
	CodeConflict         Code = "conflict"
	CodeFileConflict     Code = "file_conflict"
	CodeNotRunning       Code = "sandbox_not_running"
	CodeLeaseCeiling     Code = "lease_ceiling"
	CodeQuotaExceeded    Code = "quota_exceeded"
	CodeSizeUnavailable  Code = "size_unavailable"
	CodeGone             Code = "gone"
	CodeTooLarge         Code = "too_large"
	CodeUnsupportedMedia Code = "unsupported_media_type"
	CodeKeyReused        Code = "idempotency_key_reused"
	CodeRateLimited      Code = "rate_limited"
	CodeInternal         Code = "internal"
	CodeNoCapacity       Code = "no_capacity"
	CodeUnavailable      Code = "unavailable"
	CodeDiskFull         Code = "disk_full"
)

// Error is the only error whose text a user may read. Everything else is logged and shown as CodeInternal.
type Error struct {
	Code       Code
	Message    string         // one sentence for the user, without internals
	Hint       string         // what to do next, or empty
	Details    map[string]any // machine-readable extras, or nil
	RetryAfter time.Duration  // 0 means no advice
	Cause      error          // for the log only, or nil
}

// Error implements error.
func (e *Error) Error() string {
	if e.Cause != nil {
		return e.Message + ": " + e.Cause.Error()
	}
	return e.Message
}

// Unwrap gives the cause, or nil.
func (e *Error) Unwrap() error { return e.Cause }

// WithHint returns a copy of e with a hint on what to do next.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// WithDetail returns a copy of e with one more machine-readable detail.
func (e *Error) WithDetail(key string, value any) *Error {
	c := *e
	c.Details = make(map[string]any, len(e.Details)+1)
	for k, v := range e.Details {
		c.Details[k] = v
	}
	c.Details[key] = value
	return &c
}

// WithRetryAfter returns a copy of e that advises to try again after d.
func (e *Error) WithRetryAfter(d time.Duration) *Error {
	c := *e
	c.RetryAfter = d
	return &c
}

// WithCause returns a copy of e that carries err for the log. The user never sees err.
func (e *Error) WithCause(err error) *Error {
	c := *e
	c.Cause = err
	return &c
}

// Errorf makes an error that a user may read.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// AsError finds the user-readable error in err's chain. Any other error becomes a bare CodeInternal with err as its cause;
// nil stays nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: CodeInternal, Message: "an internal error happened", Cause: err}
}

// ErrorCode gives the code of err: empty for nil, CodeInternal for an error that is not a *Error.
func ErrorCode(err error) Code {
	if e := AsError(err); e != nil {
		return e.Code
	}
	return ""
}
