package cli_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

func (s *testServer) routeFiles(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/sandboxes/{id}/files", s.files)
	mux.HandleFunc("DELETE /v1/sandboxes/{id}/files", s.removeFile)
	mux.HandleFunc("GET /v1/sandboxes/{id}/files/stat", func(w http.ResponseWriter, r *http.Request) { s.entry(w, s.path(r)) })
	mux.HandleFunc("POST /v1/sandboxes/{id}/files/mkdir", s.changeFile(func(path string, b fileBody) error { return os.MkdirAll(path, 0o755) }))
	mux.HandleFunc("POST /v1/sandboxes/{id}/files/move", s.changeFile(func(path string, b fileBody) error {
		if _, err := os.Lstat(path); err == nil && !b.Overwrite {
			return fmt.Errorf("%s is there already", b.To)
		}
		return os.Rename(b.From, path)
	}))
	mux.HandleFunc("POST /v1/sandboxes/{id}/files/chmod", s.changeFile(func(path string, b fileBody) error {
		mode, _ := strconv.ParseUint(b.Mode, 8, 32)
		return os.Chmod(path, fs.FileMode(mode))
	}))
	mux.HandleFunc("POST /v1/sandboxes/{id}/files/find", s.findFiles)
	mux.HandleFunc("POST /v1/sandboxes/{id}/files/search", s.search)
	mux.HandleFunc("GET /v1/sandboxes/{id}/files/watch", func(w http.ResponseWriter, r *http.Request) {
		out := &eventWriter{w: w}
		for _, e := range []map[string]any{{"type": "start", "path": "/w"}, {"type": "created", "path": "/w/x", "file_type": "file"},
			{"type": "moved", "path": "/w/y", "from": "/w/x"}, {"type": "end"}} {
			out.write(e)
		}
	})
	mux.HandleFunc("GET /v1/sandboxes/{id}/ports/{port}/wait", func(w http.ResponseWriter, r *http.Request) {
		reply(w, 200, map[string]any{"port": 1, "listening": r.PathValue("port") == "8000", "waited_ms": 1})
	})
}

type fileBody struct {
	Path, From, To, Mode string
	Overwrite            bool
	Names                []string
	Pattern              string
	Literal              bool
}

func (s *testServer) showFile(path string) (map[string]any, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	kind := map[bool]string{true: "directory", false: "file"}[info.IsDir()]
	return map[string]any{"name": info.Name(), "path": s.inside(path), "type": kind, "size_bytes": info.Size(), "mode": fmt.Sprintf("%04o", info.Mode().Perm()),
		"modified_at": epoch, "target": nil, "error": nil}, nil
}

// inside is a path as its machine would see it.
func (s *testServer) inside(path string) string {
	return "/home/user" + strings.TrimPrefix(path, s.dir)[len("/sb00000000000000000001"):]
}

func (s *testServer) entry(w http.ResponseWriter, path string) {
	e, err := s.showFile(path)
	if err != nil {
		fail(w, 404, "file_not_found", "there is no such file")
		return
	}
	reply(w, 200, e)
}

func (s *testServer) changeFile(change func(path string, b fileBody) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var b fileBody
		_ = json.NewDecoder(r.Body).Decode(&b)
		home := s.home(r.PathValue("id"))
		path := filepath.Join(home, b.Path+b.To)
		if b.From != "" {
			b.From = filepath.Join(home, b.From)
		}
		if err := change(path, b); err != nil {
			fail(w, 409, "file_conflict", err.Error())
			return
		}
		s.entry(w, path)
	}
}

func (s *testServer) files(w http.ResponseWriter, r *http.Request) {
	if _, ok := s.find(w, r); !ok {
		return
	}
	found, err := os.ReadDir(s.path(r))
	switch {
	case os.IsNotExist(err):
		fail(w, 404, "file_not_found", "there is no such file")
		return
	case err != nil:
		fail(w, 409, "file_conflict", "it is no directory")
		return
	}
	entries := []any{}
	for _, f := range found {
		if e, err := s.showFile(filepath.Join(s.path(r), f.Name())); err == nil {
			entries = append(entries, e)
		}
	}
	reply(w, 200, map[string]any{"entries": entries, "next_cursor": nil})
}

func (s *testServer) removeFile(w http.ResponseWriter, r *http.Request) {
	remove := os.Remove
	if r.URL.Query().Get("recursive") == "true" {
		remove = os.RemoveAll
	}
	if err := remove(s.path(r)); err != nil {
		fail(w, 409, "file_conflict", "the directory is not empty")
		return
	}
	reply(w, 200, map[string]any{})
}

// below calls visit for every file below the path that a body names.
func (s *testServer) below(r *http.Request, visit func(path string, b fileBody)) {
	var b fileBody
	_ = json.NewDecoder(r.Body).Decode(&b)
	_ = filepath.WalkDir(filepath.Join(s.home(r.PathValue("id")), b.Path), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			visit(path, b)
		}
		return err
	})
}

func (s *testServer) findFiles(w http.ResponseWriter, r *http.Request) {
	entries := []any{}
	s.below(r, func(path string, b fileBody) {
		if len(b.Names) == 0 || b.Names[0] == filepath.Base(path) {
			e, _ := s.showFile(path)
			entries = append(entries, e)
		}
	})
	reply(w, 200, map[string]any{"entries": entries, "truncated": false})
}

func (s *testServer) search(w http.ResponseWriter, r *http.Request) {
	matches := []any{}
	s.below(r, func(path string, b fileBody) {
		content, _ := os.ReadFile(path)
		pattern := b.Pattern
		if b.Literal {
			pattern = regexp.QuoteMeta(pattern)
		}
		for i, line := range strings.Split(string(content), "\n") {
			if at := regexp.MustCompile(pattern).FindStringIndex(line); at != nil {
				matches = append(matches, map[string]any{"path": s.inside(path), "line": i + 1, "column": at[0] + 1, "text": line, "cut": false, "before": []any{}, "after": []any{}})
			}
		}
	})
	reply(w, 200, map[string]any{"matches": matches, "files": 1, "skipped": 0, "truncated": false})
}
