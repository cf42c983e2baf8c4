package api_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/api"
	"dayfly.dev/dayfly/internal/control"
)

// empty is a backend that knows everybody and holds nothing. It fails the test when it is asked for what is no id.
type empty struct {
	api.Backend
	t *testing.T
}

func (e empty) none(id string) error {
	if !dayfly.ValidID(dayfly.PrefixSandbox, id) {
		e.t.Errorf("asked for %q", id)
	}
	return dayfly.Errorf(dayfly.CodeNotFound, "there is nothing")
}

func (e empty) Authenticate(context.Context, string) (control.Principal, error) {
	return control.Principal{}, nil
}
func (e empty) Sandbox(_ context.Context, _ control.Principal, id string) (dayfly.Sandbox, error) {
	return dayfly.Sandbox{}, e.none(id)
}
func (e empty) DeleteSandbox(_ context.Context, _ control.Principal, id string) (dayfly.Sandbox, error) {
	return dayfly.Sandbox{}, e.none(id)
}
func (e empty) Machine(_ context.Context, _ control.Principal, id string) (control.Machine, error) {
	return nil, e.none(id)
}
func (e empty) SandboxEvents(_ context.Context, _ control.Principal, id string, _ dayfly.EventFilter) ([]dayfly.Event, error) {
	return nil, e.none(id)
}

// FuzzRoute: whatever a path below the sandboxes and its query are, they are answered with an error of the API's one shape, and
// nothing is looked up by what is no id.
func FuzzRoute(f *testing.F) {
	const id = "sb0123456789abcdefghij"
	for _, s := range []string{
		id, id + "/files?path=a%2fb", id + "/files/content?path=%ff", "%2e%2e/keys", "../../healthz", id + "//files", id + "/processes/pr%2F/output",
		id + "/ports/080/wait", id + "/ports/80/wait?timeout_ms=1e3", id + "%00/files", id + "/files/watch?path=/&recursive=2", "?", "%zz", id + "/processes/x/attach?cols=0",
	} {
		f.Add("GET", s)
	}
	f.Add("DELETE", id+"/files?path=a&recursive=yes")
	f.Fuzz(func(t *testing.T, method, rest string) {
		path, query, _ := strings.Cut(rest, "?")
		plain, err := url.PathUnescape(path)
		switch {
		case err != nil || plain == "": // net/http refuses it, or it is the list itself
			return
		case method != "GET" && method != "DELETE" && method != "HEAD":
			return // a body is FuzzBody's
		}
		r := &http.Request{
			Method: method, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Host: "x", RequestURI: "/v1/sandboxes/" + rest,
			URL:    &url.URL{Path: "/v1/sandboxes/" + plain, RawPath: "/v1/sandboxes/" + path, RawQuery: query},
			Header: http.Header{"Authorization": {"Bearer x"}}, Body: io.NopCloser(strings.NewReader("")),
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		w := httptest.NewRecorder()
		api.New(empty{t: t}, api.Options{}).ServeHTTP(w, r.WithContext(ctx))
		if ctx.Err() != nil {
			t.Fatal("no answer in time")
		}
		var body struct {
			Error struct{ Type, Message string }
		}
		err = json.Unmarshal(w.Body.Bytes(), &body)
		if w.Code < 400 || w.Code >= 500 || method != "HEAD" && (err != nil || body.Error.Type == "" || !utf8.Valid(w.Body.Bytes())) {
			t.Fatalf("%s %q: %d %q", method, rest, w.Code, w.Body)
		}
	})
}

// FuzzControl: a text frame of an attachment is refused or says one of the things that it may.
func FuzzControl(f *testing.F) {
	for _, s := range []string{
		`{"type":"resize","cols":80,"rows":24}`, `{"type":"close_stdin"}`, `{"type":"signal","signal":"INT","tree":true}`, `{"type":"resize","cols":-1}`, `{}`, `[]`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		kind, signal, size, err := api.Control(data)
		if err != nil {
			return
		}
		whole := size.Cols >= 1 && size.Rows >= 1 && size.Cols <= dayfly.TerminalSizeMax && size.Rows <= dayfly.TerminalSizeMax
		if kind != "resize" && kind != "close_stdin" && kind != "signal" || kind == "resize" && !whole || kind == "signal" && signal == "" {
			t.Fatalf("%q says %q %q %v", data, kind, signal, size)
		}
	})
}

// FuzzMark: the id of a server-sent event that is taken names an offset, the same when it is written and read again.
func FuzzMark(f *testing.F) {
	for _, s := range []string{"0-0", "7-9", "7,9", "stdout:1", "-1--1", "9223372036854775807-9223372036854775808", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		at, again, ok := api.Mark(s)
		if !ok {
			return
		}
		if twice, _, ok := api.Mark(again); !ok || twice != at || at.Stdout < 0 || at.Stderr < 0 {
			t.Fatalf("%q is read as %+v, written as %q", s, at, again)
		}
	})
}
