package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"dayfly.dev/dayfly"
	sdk "dayfly.dev/dayfly/sdk/go"
)

// Exit codes beside a command's own.
const (
	exitFailed = 1
	exitUsage  = 2
	exitDayfly = 125 // in run and exec: Dayfly failed, not the command
	exitSignal = 128 // + the signal's number
)

// failure is an error with an exit code and a hint.
type failure struct {
	code  int
	text  string // empty: nothing to tell, only the code
	hint  string
	cause error // or nil
}

// Error implements error.
func (f *failure) Error() string { return f.text }

// Unwrap gives the cause, or nil.
func (f *failure) Unwrap() error { return f.cause }

func usagef(format string, args ...any) *failure {
	return &failure{code: exitUsage, text: fmt.Sprintf(format, args...)}
}

func failf(format string, args ...any) *failure {
	return &failure{code: exitFailed, text: fmt.Sprintf(format, args...)}
}

func (f *failure) withHint(format string, args ...any) *failure {
	c := *f
	c.hint = fmt.Sprintf(format, args...)
	return &c
}

// at points to the help of a command.
func (f *failure) at(cmd *cobra.Command) *failure {
	return f.withHint("see `%s --help`", cmd.CommandPath())
}

// quiet ends with a code and says nothing.
func quiet(code int) error {
	if code == 0 {
		return nil
	}
	return &failure{code: code}
}

// ErrSaid ends a command of the program's own with exit code 1 when it told everything already.
var ErrSaid error = &failure{code: exitFailed}

// Misuse gives err, which is or becomes text for the user, the exit code of a wrong use and a hint. nil stays nil.
func Misuse(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	f := usagef("%v", err).at(cmd)
	f.cause = err
	return f
}

// ownFailure gives err the exit code of Dayfly's own failures in run and exec. Wrong use stays wrong use.
func ownFailure(err error) error {
	if err == nil {
		return nil
	}
	var f *failure
	if !errors.As(err, &f) {
		return &failure{code: exitDayfly, text: err.Error(), cause: err}
	}
	if f.code != exitFailed || f.text == "" { // one without a text is the command's own code
		return err
	}
	return &failure{code: exitDayfly, text: err.Error(), hint: f.hint, cause: f.cause}
}

// advise replaces the hint of a failure that depends on the settings.
func (a *app) advise(err error) error {
	var e *sdk.Error
	if !errors.As(err, &e) {
		return err
	}
	hint := e.Hint
	switch e.Code {
	case sdk.CodeUnreachable:
		if s, serr := a.settings(); serr == nil && onThisMachine(s.url) && isRefused(e) {
			hint = "start one with `sudo dayfly up`, or give its address with --url or " + sdk.EnvURL
		} else if hint == "" || isRefused(e) {
			hint = "check the address (--url, " + sdk.EnvURL + ") and that the server runs"
		}
	case sdk.CodeUnauthorized:
		hint = a.keyHint()
	}
	code := exitFailed
	var f *failure
	if errors.As(err, &f) {
		code = f.code
	}
	return &failure{code: code, text: err.Error(), hint: hint, cause: err}
}

func (a *app) keyHint() string {
	s, err := a.settings()
	if err != nil {
		return "check the API key"
	}
	keyFile := filepath.Join(s.data, "admin.key")
	if _, err := os.Stat(keyFile); s.keyFrom == "" && onThisMachine(s.url) && errors.Is(err, fs.ErrNotExist) {
		return "start a server with `sudo dayfly up`; for one that runs already, give its --data, or its --url and a key in " + sdk.EnvAPIKey
	}
	places := []string{"--api-key", sdk.EnvAPIKey}
	if s.config != "" {
		places = append(places, "api_key in "+s.config)
	}
	places = append(places, keyFile)
	text := "a key is looked for in " + strings.Join(places, ", then ")
	if s.keyFrom != "" {
		text += "; this one is from " + s.keyFrom
	}
	return text
}

func onThisMachine(address string) bool {
	if address == "" {
		return true
	}
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || (ip != nil && ip.IsLoopback())
}

func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// report tells what failed and gives the exit code. An error without text is told by its code alone.
func report(w io.Writer, err error, asJSON bool) int {
	code, hint := exitFailed, ""
	var f *failure
	if errors.As(err, &f) {
		code, hint = f.code, f.hint
	}
	if err.Error() == "" { // only a code; the command has said the rest
		return code
	}
	var own *dayfly.Error
	if errors.As(err, &own) && hint == "" {
		hint = own.Hint
	}
	var e *sdk.Error
	if errors.As(err, &e) && hint == "" {
		hint = e.Hint
	}
	if errors.Is(err, syscall.EPIPE) && (e == nil || e.Code == sdk.CodeLocal) {
		return exitSignal + int(syscall.SIGPIPE) // whoever read our output has left, and knows
	}
	if asJSON {
		reportJSON(w, err, hint, e, own)
		return code
	}
	fmt.Fprintf(w, "dayfly: %s\n", printable(err.Error()))
	if hint != "" {
		fmt.Fprintf(w, "hint: %s\n", printable(hint))
	}
	if e != nil && e.Code == sdk.CodeInternal && e.RequestID != "" {
		fmt.Fprintf(w, "request: %s\n", printable(e.RequestID))
	}
	return code
}

// jsonError is a failure with -o json, on stderr, shaped like one of the API.
type jsonError struct {
	Type      string         `json:"type"`
	Message   string         `json:"message"`
	Hint      string         `json:"hint"`
	Details   map[string]any `json:"details"`
	RequestID string         `json:"request_id"`
}

func reportJSON(w io.Writer, err error, hint string, e *sdk.Error, own *dayfly.Error) {
	out := jsonError{Type: "failed", Message: err.Error(), Hint: hint}
	var f *failure
	switch {
	case e != nil:
		out.Type, out.Details, out.RequestID = string(e.Code), e.Details, e.RequestID
	case own != nil:
		out.Type, out.Details = string(own.Code), own.Details
	case errors.As(err, &f) && f.code == exitUsage:
		out.Type = "usage"
	}
	b, _ := json.Marshal(map[string]jsonError{"error": out})
	fmt.Fprintf(w, "%s\n", b)
}
