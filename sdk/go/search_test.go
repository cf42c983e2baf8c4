package dayfly_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dayfly "dayfly.dev/dayfly/sdk/go"
)

// TestFileCalls: what each call sends, and what of the answer is kept exactly.
func TestFileCalls(t *testing.T) {
	s := newServer(t)
	entry := map[string]any{"name": "b", "path": "/h/b", "type": "file", "mode": "0644", "path_b64": "L2gvYv8="}
	handle := func(route string, answer any) {
		s.mux.HandleFunc(route, func(w http.ResponseWriter, r *http.Request) { s.record(r); reply(w, 200, answer) })
	}
	handle("GET /v1/sandboxes/{id}/files/stat", entry)
	handle("POST /v1/sandboxes/{id}/files/mkdir", entry)
	handle("POST /v1/sandboxes/{id}/files/move", entry)
	handle("POST /v1/sandboxes/{id}/files/chmod", entry)
	handle("POST /v1/sandboxes/{id}/files/find", map[string]any{"entries": []any{entry}, "truncated": true})
	handle("POST /v1/sandboxes/{id}/files/search", map[string]any{"files": 3, "skipped": 1, "truncated": true, "matches": []any{map[string]any{
		"path": "/h/b", "line": 2, "column": 3, "text": "x\ufffd", "text_b64": "eP8=", "cut": true, "before": []string{"a"}, "after": []string{"\ufffd"}, "after_b64": []any{"/w=="}}}})
	b, ctx := s.sandbox(), t.Context()
	check := func(info dayfly.FileInfo, err error) {
		t.Helper()
		if err != nil || info.Path != "/h/b\xff" {
			t.Errorf("%+v, %v", info, err)
		}
	}
	check(b.Stat(ctx, "a b\xff"))
	check(b.Mkdir(ctx, "d", 0o700))
	check(b.Move(ctx, "a", "b\xff", true))
	check(b.Chmod(ctx, "d", 0o755, true))
	found, err := b.Find(ctx, dayfly.FindQuery{Names: []string{"*.go"}, Type: dayfly.TypeFile, MinBytes: 1, ModifiedAfter: time.Unix(1, 0), MaxDepth: 2})
	if err != nil || !found.Truncated || len(found.Entries) != 1 || found.Entries[0].Path != "/h/b\xff" {
		t.Errorf("%+v, %v", found, err)
	}
	r, err := b.Search(ctx, dayfly.SearchQuery{Pattern: "a.b", IgnoreCase: true, Include: []string{"*.go"}, Context: 1})
	if err != nil || len(r.Matches) != 1 || r.Files != 3 || r.Skipped != 1 || !r.Truncated {
		t.Fatalf("%+v, %v", r, err)
	}
	if m := r.Matches[0]; m.Text != "x\xff" || m.Line != 2 || m.Column != 3 || !m.Cut || m.Before[0] != "a" || m.After[0] != "\xff" {
		t.Errorf("%+v", m)
	}
	want := []string{"", `{"mode":"0700","path":"d"}`, `{"from":"a","overwrite":true,"to_b64":"Yv8="}`, `{"mode":"0755","path":"d","recursive":true}`,
		`{"names":["*.go"],"type":"file","min_bytes":1,"modified_after":"1970-01-01T00:00:01.000Z","max_depth":2}`,
		`{"pattern":"a.b","ignore_case":true,"include":["*.go"],"context":1}`}
	for i, q := range s.requests() {
		if q.body != want[i] {
			t.Errorf("%s sent %s, want %s", q.uri, q.body, want[i])
		}
	}
	if uri := s.requests()[0].uri; !strings.HasSuffix(uri, "?path=a+b%FF") {
		t.Errorf("stat asked for %s", uri)
	}
	if _, err := b.Search(ctx, dayfly.SearchQuery{Pattern: "\xff"}); dayfly.ErrorCode(err) != dayfly.CodeInvalid {
		t.Errorf("a pattern that JSON cannot carry: %v", err)
	}
}

// TestWatch: changes come in order; a break is told as lost changes; the end ends it.
func TestWatch(t *testing.T) {
	s := newServer(t)
	var n atomic.Int32
	s.mux.HandleFunc("GET /v1/sandboxes/{id}/files/watch", func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		if n.Add(1) == 1 {
			lines(w, `{"type":"start","path":"/h"}`, `{"type":"ping"}`, `{"type":"created","path":"/h/a","file_type":"file"}`, `{"type":"moved","path":"/h/b","from":"/h/a"}`)
			cut(w)
			return
		}
		lines(w, `{"type":"start","path":"/h"}`, `{"type":"deleted","path":"/h/\ufffd","path_b64":"L2gv/w=="}`, `{"type":"end"}`)
	})
	watch, err := s.sandbox().Watch(t.Context(), "h", true)
	if err != nil || watch.Path() != "/h" {
		t.Fatalf("%v", err)
	}
	var got []string
	for c, err := range watch.All() {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %q %q %s", c.Type, c.Path, c.From, c.FileType))
	}
	want := `created "/h/a" "" file, moved "/h/b" "/h/a" , overflow "/h" "" , deleted "/h/\xff" "" `
	if strings.Join(got, ", ") != want {
		t.Errorf("got %s\nwant %s", strings.Join(got, ", "), want)
	}
	if uri := s.requests()[1].uri; !strings.HasSuffix(uri, "?path=h&recursive=true") {
		t.Errorf("watched by %s", uri)
	}
	s.mux.HandleFunc("GET /v1/sandboxes/none/files/watch", func(w http.ResponseWriter, r *http.Request) { fail(w, 404, "file_not_found", "no such path") })
	if _, err := s.client.Sandbox("none").Watch(t.Context(), "x", false); dayfly.ErrorCode(err) != dayfly.CodeFileNotFound {
		t.Errorf("a path that is not there: %v", err)
	}
	s.mux.HandleFunc("GET /v1/sandboxes/ended/files/watch", func(w http.ResponseWriter, r *http.Request) {
		lines(w, `{"type":"start","path":"/h"}`, `{"type":"error","error":{"type":"gone","message":"the sandbox has ended"}}`)
	})
	watch, err = s.client.Sandbox("ended").Watch(t.Context(), "x", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Next(); dayfly.ErrorCode(err) != dayfly.CodeGone {
		t.Errorf("the sandbox's end: %v", err)
	}
}

// TestDownloadResumes cuts a download; the rest is asked for, and a file that changed is not put together from two.
func TestDownloadResumes(t *testing.T) {
	content := strings.Repeat("0123456789", 100<<10)
	for _, tt := range []struct {
		name    string
		changed string // content at the second request
		stamp   string // Last-Modified at the second request
		want    dayfly.Code
	}{
		{"the same file", content, "Mon, 02 Jan 2006 15:04:05 GMT", ""},
		{"another length", content + "x", "Mon, 02 Jan 2006 15:04:05 GMT", dayfly.CodeFileConflict},
		{"another time", content, "Mon, 02 Jan 2006 15:04:06 GMT", dayfly.CodeFileConflict},
		{"shorter than what came", "x", "Mon, 02 Jan 2006 15:04:05 GMT", dayfly.CodeInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			var n atomic.Int32
			s.mux.HandleFunc("GET /v1/sandboxes/{id}/files/content", func(w http.ResponseWriter, r *http.Request) {
				s.record(r)
				from := 0
				switch n.Add(1) {
				case 1:
					w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
					w.Header().Set("Content-Length", fmt.Sprint(len(content)))
					_, _ = io.WriteString(w, content[:300_001])
					w.(http.Flusher).Flush()
					cut(w)
					return
				case 2:
					fail(w, 503, "unavailable", "starting")
					return
				}
				_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
				if from >= len(tt.changed) {
					fail(w, 416, "invalid_request", "the range lies outside")
					return
				}
				w.Header().Set("Last-Modified", tt.stamp)
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(tt.changed)-1, len(tt.changed)))
				w.WriteHeader(http.StatusPartialContent)
				_, _ = io.WriteString(w, tt.changed[from:])
			})
			var out strings.Builder
			var last dayfly.Progress
			ctx := dayfly.WithProgress(t.Context(), func(p dayfly.Progress) {
				if p.Bytes < last.Bytes {
					t.Errorf("progress went back from %d to %d", last.Bytes, p.Bytes)
				}
				last = p
			})
			_, err := s.sandbox().Download(ctx, "x", &out)
			if dayfly.ErrorCode(err) != tt.want {
				t.Fatalf("got %v", err)
			}
			if err == nil && (out.String() != content || last.Bytes != int64(len(content)) || last.Total != last.Bytes) {
				t.Errorf("%d bytes came, progress %+v", out.Len(), last)
			}
		})
	}
}

// TestSlowReader: who was cut for reading too slowly goes on where he stood.
func TestSlowReader(t *testing.T) {
	s := newServer(t)
	var n atomic.Int32
	s.mux.HandleFunc("GET /v1/sandboxes/{id}/processes/pr1/output", func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		if n.Add(1) == 1 {
			lines(w, `{"type":"start","id":"pr1"}`, `{"type":"stdout","offset":0,"data":"abc"}`,
				`{"type":"error","error":{"type":"slow_reader","message":"nothing was read for 60 s"}}`)
			return
		}
		lines(w, `{"type":"start","id":"pr1"}`, `{"type":"stdout","offset":3,"data":"def"}`, `{"type":"exit","id":"pr1","exit_code":0}`)
	})
	stream, err := s.sandbox().Output(t.Context(), "pr1", dayfly.OutputOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var out strings.Builder
	if _, err := stream.CopyTo(&out, nil); err != nil || out.String() != "abcdef" {
		t.Errorf("%q, %v", &out, err)
	}
	if uri := s.requests()[1].uri; !strings.Contains(uri, "stdout_offset=3") {
		t.Errorf("resumed at %s", uri)
	}
}

// TestOutputUpToNow: what is there already ends without an exit while the command runs.
func TestOutputUpToNow(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc("GET /v1/sandboxes/{id}/processes/pr1/output", func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		lines(w, `{"type":"start","id":"pr1"}`, `{"type":"stdout","offset":0,"data":"abc"}`)
	})
	stream, err := s.sandbox().Output(t.Context(), "pr1", dayfly.OutputOptions{UpToNow: true})
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for ev, err := range stream.All() {
		if err != nil {
			t.Fatal(err)
		}
		text += string(ev.Data)
	}
	if uri := s.requests()[0].uri; text != "abc" || len(s.requests()) != 1 || !strings.Contains(uri, "follow=false") {
		t.Errorf("%q by %s", text, uri)
	}
}
