package dayfly_test

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	dayfly "dayfly.dev/dayfly/sdk/go"
)

var oddNames = []string{"a b+c%20#?&é\u202e日本.txt", "line\nbreak", "-dash", strings.Repeat("x", 255), "not\xffutf8", "\u00e9", "e\u0301", "semi;colon", `back\slash`}

func TestOddNames(t *testing.T) {
	s := newServer(t)
	content := map[string][]byte{}
	s.mux.HandleFunc("/v1/sandboxes/{id}/files/content", func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Query().Get("path")
		switch r.Method {
		case "PUT":
			content[path] = []byte(s.record(r).body)
			reply(w, 200, map[string]any{"path": path, "size_bytes": len(content[path])})
		case "GET":
			_, _ = w.Write(content[path])
		}
	})
	s.mux.HandleFunc("GET /v1/sandboxes/{id}/files", func(w http.ResponseWriter, r *http.Request) {
		var entries []map[string]any
		for _, n := range oddNames {
			entries = append(entries, map[string]any{"name": n, "name_b64": base64.StdEncoding.EncodeToString([]byte(n)), "target": nil, "error": nil})
		}
		reply(w, 200, map[string]any{"entries": entries, "next_cursor": nil})
	})
	for i, name := range oddNames {
		want := []byte{0, 13, 10, 255, byte(i)}
		if _, err := s.sandbox().WriteFile(t.Context(), name, want, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, ok := content[name]; !ok {
			t.Errorf("%q arrived under another name", name)
		}
		got, err := s.sandbox().ReadFile(t.Context(), name, 100)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	if uri := s.requests()[0].uri; !strings.Contains(uri, "mode=0755") {
		t.Errorf("uri = %s, want the mode", uri)
	}
	var listed []string
	for f, err := range s.sandbox().ListFiles(t.Context(), ".", false) {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, f.Name)
	}
	if !slices.Equal(listed, oddNames) {
		t.Errorf("listed %q", listed)
	}
}

func TestDownloadThatBreaks(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc("GET /v1/sandboxes/{id}/files/content", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("half"))
		w.(http.Flusher).Flush()
		cut(w)
	})
	var b bytes.Buffer
	if _, err := s.sandbox().Download(t.Context(), "x", &b); dayfly.ErrorCode(err) != dayfly.CodeUnreachable {
		t.Errorf("a download that was cut: %v", err)
	}
	s.mux.HandleFunc("GET /v1/sandboxes/long/files/content", func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, 100)) })
	if _, err := s.client.Sandbox("long").ReadFile(t.Context(), "x", 10); dayfly.ErrorCode(err) != dayfly.CodeTooLarge {
		t.Errorf("a file beyond the limit: %v", err)
	}
}

// TestUploadAgain: a file is sent again when the connection broke; a pipe that was read is not.
func TestUploadAgain(t *testing.T) {
	s := newServer(t)
	var n atomic.Int32
	s.mux.HandleFunc("PUT /v1/sandboxes/{id}/files/content", func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		if n.Add(1)%2 == 1 {
			cut(w)
			return
		}
		reply(w, 200, map[string]any{"size_bytes": 5})
	})
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, []byte("01234"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := s.sandbox().Upload(t.Context(), "x", f, 0); err != nil {
		t.Fatal(err)
	}
	seen := s.requests()
	if len(seen) != 2 || seen[1].body != "01234" {
		t.Errorf("requests %+v, want the whole file twice", seen)
	}
	if _, err := s.sandbox().Upload(t.Context(), "x", io.MultiReader(strings.NewReader("once")), 0); dayfly.ErrorCode(err) != dayfly.CodeUnreachable {
		t.Errorf("a reader that was read already: %v", err)
	}
}

// TestFolderRoundTrip uploads a folder and downloads what the server got.
func TestFolderRoundTrip(t *testing.T) {
	src, outside := t.TempDir(), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(filepath.Join(outside, "secret"), []byte("TOPSECRET"), 0o600))
	must(os.MkdirAll(filepath.Join(src, "empty"), 0o755))
	must(os.MkdirAll(filepath.Join(src, "ro"), 0o755))
	must(os.WriteFile(filepath.Join(src, "ro", "f"), []byte("in"), 0o444))
	must(os.Chmod(filepath.Join(src, "ro"), 0o555))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(src, "ro"), 0o755) })
	must(os.WriteFile(filepath.Join(src, "run.sh"), []byte("#!"), 0o750))
	must(os.Symlink("run.sh", filepath.Join(src, "link")))
	must(os.Symlink(filepath.Join(outside, "secret"), filepath.Join(src, "out")))
	must(os.Symlink(outside, filepath.Join(src, "outdir")))
	must(os.Symlink("nowhere", filepath.Join(src, "dangling")))
	must(syscall.Mkfifo(filepath.Join(src, "fifo"), 0o600))
	for _, n := range oddNames {
		must(os.WriteFile(filepath.Join(src, n), []byte(n), 0o644))
	}
	old := time.Unix(1e9, 0)
	must(os.Chtimes(filepath.Join(src, "run.sh"), old, old))

	s := newServer(t)
	var archive string
	var tries atomic.Int32
	s.mux.HandleFunc("/v1/sandboxes/{id}/files/archive", func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			_, _ = io.WriteString(w, archive)
			return
		}
		archive = s.record(r).body
		if tries.Add(1) == 1 {
			cut(w) // the folder is read anew
			return
		}
		reply(w, 200, map[string]any{"path": "/w"})
	})
	moved, err := s.sandbox().UploadDir(t.Context(), src, "w")
	must(err)
	if !slices.Equal(moved.Skipped, []string{"fifo"}) || moved.Files != int64(6+len(oddNames)) {
		t.Errorf("moved %+v", moved)
	}
	if strings.Contains(archive, "TOPSECRET") || strings.Contains(archive, "outdir/secret") {
		t.Error("the archive holds what is outside of the folder")
	}
	dst := filepath.Join(t.TempDir(), "new", "dst")
	_, err = s.sandbox().DownloadDir(t.Context(), "w", dst)
	must(err)
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dst, "ro"), 0o755) })
	for name, mode := range map[string]fs.FileMode{"empty": fs.ModeDir | 0o755, "ro": fs.ModeDir | 0o555, "ro/f": 0o444, "run.sh": 0o750} {
		info, err := os.Lstat(filepath.Join(dst, name))
		if err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v, want %v", name, info, err, mode)
		}
	}
	for name, want := range map[string]string{"link": "run.sh", "out": filepath.Join(outside, "secret"), "dangling": "nowhere"} {
		if got, err := os.Readlink(filepath.Join(dst, name)); err != nil || got != want {
			t.Errorf("link %s → %q, %v", name, got, err)
		}
	}
	for _, n := range oddNames {
		if got, err := os.ReadFile(filepath.Join(dst, n)); err != nil || string(got) != n {
			t.Errorf("%q: %v", n, err)
		}
	}
	if info, err := os.Stat(filepath.Join(dst, "run.sh")); err != nil || !info.ModTime().Equal(old) {
		t.Errorf("time of run.sh: %v, %v", info, err)
	}
	_, err = s.sandbox().DownloadDir(t.Context(), "w", dst) // over itself
	must(err)
}

// TestHostileArchive: whatever a sandbox sends, nothing is written outside of the folder.
func TestHostileArchive(t *testing.T) {
	for _, tt := range []struct {
		name    string
		entries []tar.Header
	}{
		{"dot dot", []tar.Header{{Name: "../evil", Typeflag: tar.TypeReg}}},
		{"dot dot within", []tar.Header{{Name: "a/../../evil", Typeflag: tar.TypeReg}}},
		{"absolute", []tar.Header{{Name: "/tmp/evil", Typeflag: tar.TypeReg}}},
		{"through a link", []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "l/evil", Typeflag: tar.TypeReg}}},
		{"through a link that replaced a folder", []tar.Header{{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755},
			{Name: "d", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "d/evil", Typeflag: tar.TypeReg}}},
		{"through a link that stays within", []tar.Header{{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755},
			{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "d"}, {Name: "l/evil", Typeflag: tar.TypeReg}}},
		{"hard link outside", []tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "../victim"}}},
		{"hard link through a link", []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "l/victim"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			base := t.TempDir()
			if err := os.WriteFile(filepath.Join(base, "victim"), []byte("v"), 0o644); err != nil {
				t.Fatal(err)
			}
			s := newServer(t)
			s.mux.HandleFunc("GET /v1/sandboxes/{id}/files/archive", func(w http.ResponseWriter, r *http.Request) {
				tw := tar.NewWriter(w)
				for _, h := range tt.entries {
					_ = tw.WriteHeader(&h)
				}
				_ = tw.Close()
			})
			if _, err := s.sandbox().DownloadDir(t.Context(), "w", filepath.Join(base, "dst")); err == nil {
				t.Error("it was taken")
			}
			if left, _ := filepath.Glob(filepath.Join(base, "evil")); left != nil {
				t.Errorf("written outside: %v", left)
			}
			if info, err := os.Stat(filepath.Join(base, "victim")); err != nil || info.Sys().(*syscall.Stat_t).Nlink != 1 {
				t.Errorf("the victim has another link: %v, %v", info, err)
			}
		})
	}
}

// TestSparseArchive: a file whose size costs the archive nothing is refused, so that no small answer fills the disk.
func TestSparseArchive(t *testing.T) {
	entry := func(h tar.Header, content string) []byte {
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		h.Size, h.Mode = int64(len(content)), 0o644
		_ = tw.WriteHeader(&h)
		_, _ = io.WriteString(tw, content)
		_ = tw.Flush()
		return b.Bytes()
	}
	records := ""
	for _, r := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=f", "GNU.sparse.realsize=1000000"} {
		records += fmt.Sprintf("%d %s\n", len(r)+4, r)
	}
	pax := entry(tar.Header{Name: "pax", Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}, records)
	pax[156] = tar.TypeXHeader
	copy(pax[148:156], "        ")
	sum := 0
	for _, c := range pax[:512] {
		sum += int(c)
	}
	copy(pax[148:], fmt.Sprintf("%06o\x00 ", sum))
	archive := append(pax, entry(tar.Header{Name: "f", Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}, "0\n"+strings.Repeat("\x00", 510))...)
	s := newServer(t)
	s.mux.HandleFunc("GET /v1/sandboxes/{id}/files/archive", func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(archive) })
	_, err := s.sandbox().DownloadDir(t.Context(), "w", t.TempDir())
	if dayfly.ErrorCode(err) != dayfly.CodeBadAnswer || !strings.Contains(err.Error(), "sparse") {
		t.Errorf("got %v", err)
	}
}

func TestArchiveThatBreaks(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc("GET /v1/sandboxes/{id}/files/archive", func(w http.ResponseWriter, r *http.Request) {
		tw := tar.NewWriter(w)
		_ = tw.WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: 1, Mode: 0o644 | 0o4000})
		_, _ = tw.Write([]byte("x"))
		_ = tw.Flush() // complete blocks, but no end
		w.(http.Flusher).Flush()
		cut(w)
	})
	dst := t.TempDir()
	if _, err := s.sandbox().DownloadDir(t.Context(), "w", dst); dayfly.ErrorCode(err) != dayfly.CodeUnreachable {
		t.Errorf("an archive that was cut between entries: %v", err)
	}
	if info, err := os.Stat(filepath.Join(dst, "f")); err != nil || info.Mode()&fs.ModeSetuid != 0 {
		t.Errorf("setuid came along: %v, %v", info, err)
	}
}

func TestUploadDirRefused(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc("PUT /v1/sandboxes/{id}/files/archive", func(w http.ResponseWriter, r *http.Request) {
		fail(w, 404, "not_found", "no such sandbox") // before the body was read
	})
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "big"), make([]byte, 8<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := s.sandbox().UploadDir(t.Context(), src, "w")
	if dayfly.ErrorCode(err) != dayfly.CodeNotFound {
		t.Errorf("got %v", err)
	}
	_, err = s.sandbox().UploadDir(t.Context(), filepath.Join(src, "none"), "w")
	if dayfly.ErrorCode(err) != dayfly.CodeLocal || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing folder: %v", err)
	}
}

func TestImport(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc("POST /v1/images", func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		reply(w, 201, map[string]any{"id": "im1", "name": "tools", "env_names": []string{"A"}})
	})
	var told int64
	image, err := s.client.ImportImage(t.Context(), "tools", strings.NewReader("tar"), dayfly.ImportOptions{
		User: "dev", Env: map[string]string{"A": "b=c d"}, Progress: func(n int64) { atomic.StoreInt64(&told, n) }})
	if err != nil || image.ID != "im1" {
		t.Fatal(image, err)
	}
	if got := s.requests()[0]; got.uri != "/v1/images?env=A%3Db%3Dc+d&name=tools&user=dev" || got.body != "tar" {
		t.Errorf("got %+v", got)
	}
	if atomic.LoadInt64(&told) != 3 {
		t.Errorf("told %d bytes", told)
	}
}

func TestKeys(t *testing.T) {
	s := newServer(t)
	s.mux.HandleFunc("POST /v1/keys", func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		reply(w, 201, map[string]any{"id": "ke1", "account": "web", "secret": "dfk_new"})
	})
	k, err := s.client.CreateKey(t.Context(), "web", true)
	if err != nil || k.Secret != "dfk_new" || s.requests()[0].body != `{"account":"web","admin":true}` {
		t.Errorf("got %+v, %v, body %s", k, err, s.requests()[0].body)
	}
}

// FuzzArchive unpacks arbitrary bytes: it may fail, but nothing appears outside of the folder.
func FuzzArchive(f *testing.F) {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	_ = tw.WriteHeader(&tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."})
	_ = tw.WriteHeader(&tar.Header{Name: "l/x", Typeflag: tar.TypeReg})
	_ = tw.Close()
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, archive []byte) {
		base := t.TempDir()
		client, err := dayfly.New(dayfly.Options{URL: "http://df.test", APIKey: testKey, Getenv: noEnv, HTTPClient: answering(archive)})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = client.Sandbox(testID).DownloadDir(t.Context(), "w", filepath.Join(base, "dst"))
		_ = os.Chmod(filepath.Join(base, "dst"), 0o755)
		entries, err := os.ReadDir(base)
		if err != nil || len(entries) > 1 {
			t.Errorf("outside of the folder: %v, %v", entries, err)
		}
	})
}

// FuzzStream reads arbitrary bytes as a command's stream: it ends, and never with an exit that was not sent.
func FuzzStream(f *testing.F) {
	f.Add([]byte(`{"type":"start","id":"pr1"}` + "\n" + `{"type":"stdout","offset":-1,"data":"x"}` + "\n" + `{"type":"exit"}` + "\n"))
	f.Add([]byte(`{"type":"dropped","stream":"stdout","offset":9223372036854775807,"bytes":9223372036854775807}` + "\n" + `{"type":"exit"}` + "\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		for _, again := range []string{"unavailable", "rate_limited", "no_capacity", "unreachable", "slow_reader"} {
			if bytes.Contains(stream, []byte(again)) {
				t.Skip("is taken up again, for longer than a fuzz run may last")
			}
		}
		// What follows the stream is an end that is not taken up again.
		client, err := dayfly.New(dayfly.Options{URL: "http://df.test", APIKey: testKey, Getenv: noEnv, HTTPClient: answering(append(stream, "\n{\n"...))})
		if err != nil {
			t.Fatal(err)
		}
		exit, err := client.Sandbox(testID).ExecTo(t.Context(), dayfly.Argv("x"), dayfly.ExecOptions{}, io.Discard, io.Discard)
		if (exit == nil) == (err == nil) {
			t.Errorf("exit %v with error %v", exit, err)
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answering is a client that gets the same body to every request.
func answering(body []byte) *http.Client {
	return &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Status: "200 OK", Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: -1, Request: r}, nil
	})}
}
