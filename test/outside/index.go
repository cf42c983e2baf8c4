package outside

import (
	"fmt"
	"html"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
)

// indexHandler serves the simple package index over the wheels in dir: GET /simple/NAME/ lists NAME's files.
func indexHandler(dir string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.Trim(strings.TrimPrefix(r.URL.Path, "/simple/"), "/")
		entries, err := os.ReadDir(dir)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintln(w, "<!DOCTYPE html><html><body>")
		for _, e := range entries {
			project, _, _ := strings.Cut(e.Name(), "-")
			if strings.HasSuffix(e.Name(), ".whl") && strings.ReplaceAll(strings.ToLower(project), "_", "-") == name {
				file := html.EscapeString(e.Name())
				fmt.Fprintf(w, "<a href=\"/wheels/%s\">%s</a>\n", file, file)
			}
		}
		fmt.Fprintln(w, "</body></html>")
	})
}

// Uploads is a target for presigned-style uploads: PUT of any length, chunked too, kept whole or not at all.
type Uploads struct {
	mu   sync.Mutex
	kept map[string][]byte
}

// uploadMax bounds one upload, in bytes.
const uploadMax = 64 << 20

func newUploads() *Uploads { return &Uploads{kept: map[string][]byte{}} }

// Get gives what was uploaded to a path below /upload/, or nil.
func (u *Uploads) Get(name string) []byte {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.kept[name]
}

// ServeHTTP implements http.Handler.
func (u *Uploads) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		http.Error(w, "only PUT", http.StatusMethodNotAllowed)
		return
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, uploadMax))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.kept[strings.TrimPrefix(r.URL.Path, "/upload/")] = b
	fmt.Fprintln(w, "kept")
}

// UploadURL is where to PUT name.
func (w *World) UploadURL(name string) string { return w.URL + "/upload/" + name }
