package api_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestContent(t *testing.T) {
	b := newBed(t, nil)
	base := "/v1/sandboxes/" + b.sandbox("{}") + "/files"
	var all bytes.Buffer
	for i := range 4096 * 256 {
		all.WriteByte(byte(i))
	}
	content := base + "/content?path="
	golden(t, "put_content", b.send("PUT", content+"dir/all", strings.NewReader("ten bytes!"), "Content-Type", "image/png").ok(t, 200).body)
	b.send("PUT", content+"dir/all", bytes.NewReader(all.Bytes())).ok(t, 200)
	got := b.get(content+"dir/all").ok(t, 200)
	if !bytes.Equal(got.body, all.Bytes()) {
		t.Error("bytes changed on the way")
	}
	for name, want := range map[string]string{
		"Content-Length": "1048576", "Content-Type": "application/octet-stream", "Accept-Ranges": "bytes", "X-File-Mode": "0644",
		"Content-Disposition": "attachment; filename*=UTF-8''all", "X-Content-Type-Options": "nosniff",
	} {
		if got.header.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, got.header.Get(name), want)
		}
	}
	head := b.send("HEAD", content+"dir/all", nil, "Range", "bytes=0-1").ok(t, 200)
	if head.header.Get("Content-Length") != "1048576" || len(head.body) != 0 {
		t.Errorf("HEAD: %v", head.header)
	}
	if missing := b.send("HEAD", content+"none", nil); missing.status != 404 || missing.header.Get("X-Error-Type") != "file_not_found" {
		t.Errorf("HEAD of none: %d %v", missing.status, missing.header)
	}
	b.send("PUT", content+"empty", strings.NewReader("")).ok(t, 200)
	if got := b.get(content+"empty").ok(t, 200); len(got.body) != 0 || got.header.Get("Content-Length") != "0" {
		t.Errorf("empty: %v %q", got.header, got.body)
	}
	if got := b.get(content+"/proc/uptime").ok(t, 200); len(got.body) == 0 {
		t.Error("a file whose size says 0 came without its content")
	}
	if got := b.get(content+"/proc/uptime", "Range", "bytes=0-1").ok(t, 200); len(got.body) == 0 {
		t.Error("a range of a file whose size says 0")
	}
	b.get(content+"none").want(t, 404, "file_not_found")
	b.get(content+"dir").want(t, 409, "file_conflict")
	if got := b.send("PUT", content+"m&mode=4755", strings.NewReader("x")).ok(t, 200).json(t); !strings.HasSuffix(got["mode"].(string), "755") {
		t.Errorf("mode: %v", got)
	}
	for query, field := range map[string]string{
		"": "path", "path=": "path", "path=%00": "path", "path=x&path=y": "path", "path=" + strings.Repeat("x", 4097): "path",
		"path=x&mode=999": "mode", "path=x&mode=17777": "mode", "path=x&mode=-1": "mode", "path=x&mode=": "mode", "path=x&user=root": "user",
	} {
		got := b.send("PUT", base+"/content?"+query, strings.NewReader("x")).want(t, 400, "invalid_request")
		if got.fields(t)[field] == "" {
			t.Errorf("?%.40s names %v", query, got.fields(t))
		}
	}
	b.send("PUT", content+"x", strings.NewReader("x"), "Content-Range", "bytes 0-0/5").want(t, 400, "invalid_request")
	b.send("PUT", content+"x", strings.NewReader("x"), "Content-Encoding", "gzip").want(t, 415, "unsupported_media_type")
}

func TestRanges(t *testing.T) {
	b := newBed(t, nil)
	content := "/v1/sandboxes/" + b.sandbox("{}") + "/files/content?path=f"
	b.send("PUT", content, strings.NewReader("0123456789")).ok(t, 200)
	for _, tt := range []struct {
		ask, body, say string
		status         int
	}{
		{"bytes=0-0", "0", "bytes 0-0/10", 206}, {"bytes=3-", "3456789", "bytes 3-9/10", 206}, {"bytes=-3", "789", "bytes 7-9/10", 206},
		{"bytes=-30", "0123456789", "bytes 0-9/10", 206}, {"bytes=8-99", "89", "bytes 8-9/10", 206},
		{"bytes=10-", "", "bytes */10", 416}, {"bytes=-0", "", "bytes */10", 416},
		{"lines=1-2", "0123456789", "", 200}, {"bytes=0-1,3-4", "0123456789", "", 200},
		{"bytes=5-3", "", "", 400}, {"bytes=x-", "", "", 400}, {"bytes=-", "", "", 400}, {"bytes=99999999999999999999-", "", "", 400},
	} {
		t.Run(tt.ask, func(t *testing.T) {
			got := b.get(content, "Range", tt.ask).ok(t, tt.status)
			if got.header.Get("Content-Range") != tt.say {
				t.Errorf("Content-Range is %q, want %q", got.header.Get("Content-Range"), tt.say)
			}
			if tt.status >= 400 {
				got.want(t, tt.status, "invalid_request")
			} else if string(got.body) != tt.body {
				t.Errorf("body %q, want %q", got.body, tt.body)
			}
		})
	}
	if got := b.get(content, "Range", "bytes=0-1", "If-Range", "\"tag\"").ok(t, 200); string(got.body) != "0123456789" {
		t.Errorf("If-Range: %q", got.body)
	}
	b.send("PUT", content, strings.NewReader("")).ok(t, 200)
	b.get(content, "Range", "bytes=0-").want(t, 416, "invalid_request")
}

func TestHostileNames(t *testing.T) {
	b := newBed(t, nil)
	base := "/v1/sandboxes/" + b.sandbox("{}") + "/files"
	names := []string{"a b+c%20#?&é\u202e日本.txt", "new\nline", "-rf", "a;b", "\"quote'", "latin-\xe9\xff", strings.Repeat("n", 255)}
	for _, name := range names {
		query := url.Values{"path": {"d/" + name}}.Encode()
		put := b.send("PUT", base+"/content?"+query, strings.NewReader(name)).ok(t, 200).json(t)
		got := b.get(base+"/content?"+query).ok(t, 200)
		if string(got.body) != name {
			t.Errorf("%q came back as %q", name, got.body)
		}
		if exact, ok := put["name_b64"].(string); ok {
			raw, err := base64.StdEncoding.DecodeString(exact)
			if err != nil || string(raw) != name {
				t.Errorf("%q: name_b64 %q", name, raw)
			}
		} else if put["name"] != name {
			t.Errorf("%q is shown as %q", name, put["name"])
		}
	}
	listed := map[string]bool{}
	cursor := ""
	for {
		page := b.get(base+"?path=d&list=true&limit=3"+cursor).ok(t, 200).json(t)
		for _, e := range page["entries"].([]any) {
			entry := e.(map[string]any)
			name := entry["name"].(string)
			if exact, ok := entry["name_b64"].(string); ok {
				raw, _ := base64.StdEncoding.DecodeString(exact)
				name = string(raw)
			}
			listed[name] = true
		}
		if page["next_cursor"] == nil {
			break
		}
		cursor = "&cursor=" + page["next_cursor"].(string)
	}
	for _, name := range names {
		if !listed[name] {
			t.Errorf("%q is not listed", name)
		}
		got := b.send("DELETE", base+"?"+url.Values{"path": {"d/" + name}}.Encode(), nil).ok(t, 200).json(t)
		if got["removed"] != true {
			t.Errorf("removal: %v", got)
		}
	}
}

func TestFilesAsJSON(t *testing.T) {
	b := newBed(t, nil)
	base := "/v1/sandboxes/" + b.sandbox("{}") + "/files"
	golden(t, "put_file", b.json("PUT", base, `{"path":"a/b.txt","content":"é\u0000\n"}`).ok(t, 200).body)
	golden(t, "get_file", b.get(base+"?path=a/b.txt").ok(t, 200).body)
	b.json("PUT", base, `{"path":"bin","content_b64":"/wA="}`).ok(t, 200)
	if got := b.get(base+"?path=bin").ok(t, 200).json(t); got["content_b64"] != "/wA=" || got["content"] != nil || got["size_bytes"] != 2.0 {
		t.Errorf("binary: %v", got)
	}
	b.json("PUT", base, `{"path":"none","content":""}`).ok(t, 200)
	if got := b.get(base+"?path=none").ok(t, 200).json(t); got["content"] != "" {
		t.Errorf("empty: %v", got)
	}
	golden(t, "list_files", b.get(base+"?path=a&list=true").ok(t, 200).body)
	for _, tt := range []struct{ name, body, fields string }{
		{"nothing", `{}`, "path content"},
		{"both", `{"path":"x","content":"","content_b64":""}`, "content_b64"},
		{"not base64", `{"path":"x","content_b64":"%%"}`, "content_b64"},
		{"path", `{"path":"\u0000","content":""}`, "path"},
		{"empty path", `{"path":"","content":""}`, "path"},
		{"kinds", `{"path":1,"content":2}`, "path content"},
		{"unknown", `{"path":"x","content":"","mode":"0644"}`, "mode"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sameNames(t, "fields", strings.Fields(tt.fields), keys(b.json("PUT", base, tt.body).want(t, 400, "invalid_request").fields(t)))
		})
	}
	for _, query := range []string{"", "path=x&recursive=true", "path=x&limit=5", "path=x&list=yes", "path=x&list=true&limit=0", "path=x&list=true&limit=1001", "path=x&list=true&cursor=!"} {
		b.get(base+"?"+query).want(t, 400, "invalid_request")
	}
	b.send("DELETE", base+"?path=a", nil).want(t, 409, "file_conflict")
	b.send("DELETE", base+"?path=a&recursive=true", nil).ok(t, 200)
	b.send("DELETE", base+"?path=nope", nil).want(t, 404, "file_not_found")
	b.get(base+"?path=big").want(t, 404, "file_not_found")
	b.send("PUT", base+"/content?path=big", io.LimitReader(endless('x'), 16<<20+1)).ok(t, 200)
	b.get(base+"?path=big").want(t, 413, "too_large")
}

// TestCutUploadLeavesNothing cuts uploads of both kinds in their middle.
func TestCutUploadLeavesNothing(t *testing.T) {
	b := newBed(t, nil)
	base := "/v1/sandboxes/" + b.sandbox("{}") + "/files"
	for name, head := range map[string]string{
		"announced": "Content-Length: 100000\r\n\r\nonly this",
		"chunked":   "Transfer-Encoding: chunked\r\n\r\n9\r\nonly this\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			conn := b.raw(t, fmt.Sprintf("PUT %s/content?path=%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%s", base, name, b.key, head))
			if half, ok := conn.(interface{ CloseWrite() error }); ok {
				if err := half.CloseWrite(); err != nil {
					t.Fatal(err)
				}
			}
			_, _ = io.ReadAll(conn) // until the server is done with it; an answer may come or not
			b.get(base+"/content?path="+name).want(t, 404, "file_not_found")
			if got := b.get(base+"?path=.&list=true").ok(t, 200).json(t)["entries"].([]any); len(got) != 0 {
				t.Errorf("left: %v", got)
			}
		})
	}
}

func TestExpectContinue(t *testing.T) {
	b := newBed(t, nil)
	base := "/v1/sandboxes/" + b.sandbox("{}") + "/files"
	put := func(query string) (net.Conn, *bufio.Reader) {
		conn := b.raw(t, fmt.Sprintf("PUT %s/content?%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
			base, query, b.key))
		return conn, bufio.NewReader(conn)
	}
	status := func(r *bufio.Reader) *http.Response {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	conn, r := put("path=f")
	if got := status(r); got.StatusCode != 100 {
		t.Fatalf("got %s", got.Status)
	}
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if got := status(r); got.StatusCode != 200 {
		t.Errorf("got %s", got.Status)
	}
	_, r = put("path=") // refused before anything is asked for
	if got := status(r); got.StatusCode != 400 || !got.Close {
		t.Errorf("got %s, close %v", got.Status, got.Close)
	}
}

func tarOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zip(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestArchives(t *testing.T) {
	b := newBed(t, nil)
	base := "/v1/sandboxes/" + b.sandbox("{}") + "/files"
	plain := tarOf(t, map[string]string{"sub/one": "first", "two": strings.Repeat("second", 10_000)})
	for _, tt := range []struct {
		name, format string
		body         []byte
	}{
		{"plain", "", plain}, {"said plain", "&format=tar", plain}, {"gzip", "", zip(t, plain)}, {"said gzip", "&format=tar.gz", zip(t, plain)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := url.QueryEscape("in " + tt.name)
			got := b.send("PUT", base+"/archive?path="+dir+tt.format, bytes.NewReader(tt.body)).ok(t, 200).json(t)
			if got["type"] != "directory" {
				t.Errorf("answer %v", got)
			}
			if one := b.get(base+"/content?path="+dir+"/sub/one").ok(t, 200); string(one.body) != "first" {
				t.Errorf("unpacked %q", one.body)
			}
		})
	}
	for format, kind := range map[string]string{"": "application/x-tar", "&format=tar": "application/x-tar", "&format=tar.gz": "application/gzip"} {
		got := b.get(base+"/archive?path=in+gzip"+format).ok(t, 200)
		var in io.Reader = bytes.NewReader(got.body)
		if kind == "application/gzip" {
			z, err := gzip.NewReader(in)
			if err != nil {
				t.Fatal(err)
			}
			in = z
		}
		found := map[string]bool{}
		for r := tar.NewReader(in); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			found[h.Name] = true
		}
		if !found["sub/one"] || !found["two"] || got.header.Get("Content-Type") != kind || !strings.Contains(got.header.Get("Content-Disposition"), "in%20gzip.tar") {
			t.Errorf("%q: %v %v", format, found, got.header)
		}
	}
	for _, tt := range []struct {
		name, query string
		body        []byte
	}{
		{"no gzip", "path=x&format=tar.gz", plain}, {"cut gzip", "path=x", zip(t, plain)[:60]}, {"damaged gzip", "path=x", append(zip(t, plain)[:60], make([]byte, 60)...)},
		{"no tar", "path=x", []byte(strings.Repeat("no tar at all", 100))}, {"format", "path=x&format=zip", plain}, {"no path", "", plain},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.send("PUT", base+"/archive?"+tt.query, bytes.NewReader(tt.body)).want(t, 400, "invalid_request")
		})
	}
	b.get(base+"/archive?path=none").want(t, 404, "file_not_found")
}

// TestBrokenDownloadIsCut shows that a transfer that breaks never looks complete.
func TestBrokenDownloadIsCut(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	content := "/v1/sandboxes/" + id + "/files/content?path=f"
	b.send("PUT", content, io.LimitReader(endless('x'), 8<<20)).ok(t, 200)
	b.node.machine(id).shrink = 4 << 20
	req, err := http.NewRequest("GET", b.url+content, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+b.key)
	resp, err := b.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if n, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Errorf("%d bytes look complete", n)
	}
}
