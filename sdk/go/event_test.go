package dayfly_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	dayfly "dayfly.dev/dayfly/sdk/go"
)

func record(seq int, kind string) string {
	return fmt.Sprintf(`{"seq":%d,"at":"2026-01-02T03:04:05.678Z","type":%q,"account":"ac1","sandbox":null,"actor":"host","cause":null,"message":null}`, seq, kind)
}

func TestEventsPageByPage(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc("GET /v1/events", func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		if r.URL.Query().Get("cursor") == "5" {
			lines(w, `{"data":[`+record(6, "sandbox.accepted")+`],"next_cursor":"6"}`)
			return
		}
		lines(w, `{"data":[`+record(9, "a.new.one")+`],"next_cursor":null}`)
	})
	var got []string
	for e, err := range s.client.Events(t.Context(), dayfly.EventOptions{After: 5}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(e.Seq, " ", e.Type, " ", e.At.UnixMilli(), " ", e.Account, " ", e.Sandbox))
	}
	if want := []string{"6 sandbox.accepted 1767323045678 ac1 ", "9 a.new.one 1767323045678 ac1 "}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// TestEventsResume cuts the connection at several places; each event must come once.
func TestEventsResume(t *testing.T) {
	for _, tt := range []struct {
		name  string
		first func(w http.ResponseWriter)
		since string // of the second request
	}{
		{"between events", func(w http.ResponseWriter) { lines(w, record(3, "sandbox.accepted")); cut(w) }, "3"},
		{"before any", func(w http.ResponseWriter) { lines(w, `{"type":"ping"}`); cut(w) }, "2"},
		{"within an event", func(w http.ResponseWriter) {
			lines(w, record(3, "sandbox.accepted"))
			_, _ = w.Write([]byte(record(5, "sandbox.running")[:30]))
			w.(http.Flusher).Flush()
			cut(w)
		}, "3"},
		{"a stopping server says so", func(w http.ResponseWriter) {
			lines(w, record(3, "sandbox.accepted"), `{"type":"error","error":{"type":"unavailable","message":"draining","status":503}}`)
		}, "3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			var n atomic.Int32
			s.mux.HandleFunc("GET /v1/sandboxes/{id}/events", func(w http.ResponseWriter, r *http.Request) {
				q := s.record(r)
				switch n.Add(1) {
				case 1:
					tt.first(w)
				case 2:
					fail(w, 503, "unavailable", "starting")
				default: // more than was asked for
					if !strings.Contains(q.uri, "since="+tt.since) {
						t.Errorf("came back with %s", q.uri)
					}
					lines(w, record(3, "sandbox.accepted"), record(5, "sandbox.running"), `{"type":"ping"}`, record(8, "sandbox.ended"), record(9, "never.read"))
				}
			})
			var got []int64
			for e, err := range s.client.Events(t.Context(), dayfly.EventOptions{Sandbox: testID, After: 2, Follow: true}) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, e.Seq)
			}
			if !slices.Equal(got, []int64{3, 5, 8}) {
				t.Errorf("events %v", got)
			}
		})
	}
}

func TestEventsEnd(t *testing.T) {
	for _, tt := range []struct {
		name  string
		write func(w http.ResponseWriter)
		code  dayfly.Code
	}{
		{"nothing can come", func(w http.ResponseWriter) { lines(w, `{"type":"end"}`) }, ""},
		{"not JSON", func(w http.ResponseWriter) { lines(w, `<html>`) }, dayfly.CodeBadAnswer},
		{"an error without one", func(w http.ResponseWriter) { lines(w, `{"type":"error"}`) }, dayfly.CodeBadAnswer},
		{"a final error", func(w http.ResponseWriter) { lines(w, `{"type":"error","error":{"type":"internal"}}`) }, dayfly.CodeInternal},
		{"no such sandbox", func(w http.ResponseWriter) { fail(w, 404, "not_found", "none") }, dayfly.CodeNotFound},
		{"no server, from the start", func(w http.ResponseWriter) { cut(w) }, dayfly.CodeUnreachable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.mux.HandleFunc("GET /v1/sandboxes/{id}/events", func(w http.ResponseWriter, r *http.Request) { tt.write(w) })
			var code dayfly.Code
			for e, err := range s.client.Events(t.Context(), dayfly.EventOptions{Sandbox: testID, Follow: true}) {
				if code = dayfly.ErrorCode(err); err == nil {
					t.Errorf("event %v", e)
				}
			}
			if code != tt.code {
				t.Errorf("code %q, want %q", code, tt.code)
			}
		})
	}
}

func TestEventsAreLeft(t *testing.T) {
	s := newServer(t)
	left := make(chan struct{}, 2)
	s.mux.HandleFunc("GET /v1/events", func(w http.ResponseWriter, r *http.Request) {
		lines(w, record(1, "key.created"))
		<-r.Context().Done()
		left <- struct{}{}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, err := range s.client.Events(ctx, dayfly.EventOptions{Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	<-left // a loop that is left leaves no connection
	var last error
	for _, err := range s.client.Events(ctx, dayfly.EventOptions{Follow: true}) {
		cancel()
		last = err
	}
	<-left
	if !errors.Is(last, context.Canceled) {
		t.Errorf("after the end of its context: %v", last)
	}
}

// FuzzEvents shows that whatever a server streams, numbers only grow, and the sequence ends.
func FuzzEvents(f *testing.F) {
	f.Add([]byte(record(3, "sandbox.accepted") + "\n" + record(3, "sandbox.running") + "\n" + record(2, "sandbox.running") + "\n"))
	f.Add([]byte(`{"type":"ping"}` + "\n\n" + `{"type":"end"}` + "\n"))
	f.Add([]byte(`{"seq":-9223372036854775808,"at":"x"}` + "\n" + `{"error":null}` + "\n" + `{"type":"error","error":{}}` + "\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		for _, again := range []string{"unavailable", "rate_limited", "no_capacity", "unreachable"} {
			if bytes.Contains(stream, []byte(again)) {
				t.Skip("is taken up again, for longer than a fuzz run may last")
			}
		}
		// What follows the stream is an end that is not taken up again.
		client, err := dayfly.New(dayfly.Options{URL: "http://df.test", APIKey: testKey, Getenv: noEnv, HTTPClient: answering(append(stream, "\n{\n"...))})
		if err != nil {
			t.Fatal(err)
		}
		var last int64
		for e, err := range client.Events(t.Context(), dayfly.EventOptions{Follow: true}) {
			if err == nil && e.Seq <= last {
				t.Errorf("%d after %d", e.Seq, last)
			}
			last = e.Seq
		}
	})
}
