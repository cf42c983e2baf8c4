package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"dayfly.dev/dayfly"
)

// errAborted says that an answer broke off in its middle: the connection is cut, so that the client notices.
var errAborted = errors.New("the answer broke off")

var errInternal = dayfly.Errorf(dayfly.CodeInternal, "an internal error happened")

// ServeHTTP implements http.Handler: it gives the request its id, finds its route, catches panics and writes the log line.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begun := time.Now() // for the log only
	// A copy: the server itself looks at the body of its own request to see how to end the exchange.
	c := &call{server: s, r: r.WithContext(r.Context()), id: dayfly.NewID(dayfly.PrefixRequest)}
	c.r.Body = &requestBody{ReadCloser: r.Body}
	c.w = &response{ResponseWriter: w, call: c}
	w.Header().Set("X-Request-Id", c.id)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	c.run()
	c.logLine(time.Since(begun))
	if c.cut {
		panic(http.ErrAbortHandler) // the only way to tell the client that an answer is incomplete
	}
}

// run serves the request to its end.
func (c *call) run() {
	defer func() {
		if p := recover(); p != nil {
			c.panicked(p)
		}
		if c.wait != nil {
			c.wait.end()
		}
	}()
	if p := c.r.URL.Path; p == "" || path.Clean(p) != p { // the mux would redirect
		c.fail(c.unknownRoute())
		return
	}
	c.mux.ServeHTTP(c.w, c.r)
}

// panicked turns a panic into an internal error. Its stack goes to the log only.
func (c *call) panicked(p any) {
	defer func() {
		if recover() != nil { // not even the error can be written
			c.cut = true
		}
	}()
	c.log.Error("panic", "id", c.id, "route", c.pattern(), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	c.fail(errInternal)
}

// dispatch serves the route that the mux has found; methods are those of its path.
func dispatch(w http.ResponseWriter, r *http.Request, methods []route) {
	c := w.(*response).call
	c.r = r
	if len(methods) == 0 {
		c.fail(c.unknownRoute())
		return
	}
	for i := range methods {
		if methods[i].method == r.Method {
			c.route = &methods[i]
		}
	}
	if c.route == nil {
		c.w.Header().Set("Allow", allowed(methods))
		c.fail(dayfly.Errorf(dayfly.CodeMethodNotAllowed, "this path does not take the method").
			WithHint("allowed here: %s", allowed(methods)))
		return
	}
	if err := c.serveRoute(); err != nil {
		c.fail(err)
	}
}

func (c *call) serveRoute() error {
	if !c.route.open {
		if err := c.authenticate(); err != nil {
			return err
		}
	}
	return c.route.serve(c)
}

// authenticate finds out whose request this is, before anything of its body is read.
func (c *call) authenticate() error {
	given := c.r.Header.Values("Authorization")
	if len(given) == 1 {
		scheme, secret, _ := strings.Cut(given[0], " ")
		if secret = strings.TrimSpace(secret); strings.EqualFold(scheme, "Bearer") && secret != "" {
			var err error
			c.who, err = c.backend.Authenticate(c.ctx(), secret)
			return err
		}
	}
	return dayfly.Errorf(dayfly.CodeUnauthorized, "the request carries no API key").
		WithHint("send the header `Authorization: Bearer dfk_…`")
}

func (c *call) unknownRoute() error {
	return dayfly.Errorf(dayfly.CodeNotFound, "there is no such path in the API").
		WithHint("paths begin with /v1/ and end without a slash; api/openapi.yaml lists them all")
}

// pattern names the route for the log, without ids and names.
func (c *call) pattern() string {
	if c.route == nil {
		return "none"
	}
	return c.route.path
}

// logLine writes the access log: never a query, a header or a body.
func (c *call) logLine(took time.Duration) {
	status := c.w.status
	if status == 0 {
		status = statusClientGone
	}
	c.log.LogAttrs(context.Background(), slog.LevelInfo, "request", slog.String("id", c.id), slog.String("method", method(c.r.Method)),
		slog.String("route", c.pattern()), slog.Int("status", status), slog.Int64("bytes", c.w.bytes), slog.Duration("duration", took))
}

// method keeps a made-up method of any length out of the log.
func method(m string) string {
	switch m {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE":
		return m
	}
	return "other"
}
