package dayfly

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// FileType is what a path is.
type FileType string

// The file types.
const (
	TypeFile      FileType = "file"
	TypeDirectory FileType = "directory"
	TypeSymlink   FileType = "symlink"
	TypeOther     FileType = "other"
)

// FileInfo is one entry inside a sandbox.
type FileInfo struct {
	Name       string     `json:"name"`
	Path       string     `json:"path"` // absolute
	Type       FileType   `json:"type"`
	SizeBytes  int64      `json:"size_bytes"`
	Mode       string     `json:"mode"` // octal
	ModifiedAt *time.Time `json:"modified_at"`
	Target     string     `json:"target"` // of a symlink
	Error      string     `json:"error"`  // why it could not be read fully, or empty
}

// wireFile is an entry as the server writes it: names that are not UTF-8 come beside their text as exact bytes.
type wireFile struct {
	FileInfo
	NameB64   []byte `json:"name_b64"`
	PathB64   []byte `json:"path_b64"`
	TargetB64 []byte `json:"target_b64"`
}

// exact is the entry with the exact bytes of its names.
func (w wireFile) exact() FileInfo {
	f := w.FileInfo
	f.Name = firstOf(string(w.NameB64), f.Name)
	f.Path = firstOf(string(w.PathB64), f.Path)
	f.Target = firstOf(string(w.TargetB64), f.Target)
	return f
}

// ReadFile gives the whole content of a file of at most limit bytes; a longer one is CodeTooLarge. Use Download for any size.
func (s *Sandbox) ReadFile(ctx context.Context, path string, limit int64) ([]byte, error) {
	var b bytes.Buffer
	w := &limitedWriter{to: &b, left: limit}
	_, err := s.Download(ctx, path, w)
	if w.over {
		return nil, &Error{Code: CodeTooLarge, Message: fmt.Sprintf("the file is larger than the %d bytes asked for", limit)}
	}
	if err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// WriteFile replaces a file atomically: a reader sees the old or the new content. Parents are made. Mode 0 means 0644 for a
// new file and the old mode for an existing one.
func (s *Sandbox) WriteFile(ctx context.Context, path string, content []byte, mode fs.FileMode) (FileInfo, error) {
	return s.put(ctx, path, mode, true, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
}

// Upload is WriteFile for content of any size. A regular file is sent again from where it stood when the connection breaks;
// another reader can be sent once.
func (s *Sandbox) Upload(ctx context.Context, path string, content io.Reader, mode fs.FileMode) (FileInfo, error) {
	open, again := reopen(content)
	report, total := progressOf(ctx), sizeOf(content)
	return s.put(ctx, path, mode, again, func() (io.ReadCloser, error) {
		return io.NopCloser(report.reader(open(), total)), nil
	})
}

func (s *Sandbox) put(ctx context.Context, path string, mode fs.FileMode, again bool, body func() (io.ReadCloser, error)) (FileInfo, error) {
	query := url.Values{"path": {path}}
	if mode != 0 {
		query.Set("mode", octal(mode))
	}
	var info wireFile
	err := s.client.do(ctx, call{
		method: http.MethodPut, path: s.path("/files/content"), query: query, body: body, repeatable: again,
		header: http.Header{"Content-Type": {"application/octet-stream"}},
	}, &info)
	return info.exact(), err
}

// Download copies a file of any size to w and gives the number of bytes. A connection that breaks is taken up where it broke.
// After an error w may hold a part of it.
func (s *Sandbox) Download(ctx context.Context, path string, w io.Writer) (int64, error) {
	r, err := s.Open(ctx, path)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	return copyTo(w, r)
}

// listPage is how many entries of a directory are asked for at once.
const listPage = 1000

// ListFiles goes through the entries of a directory. It ends after the first error.
func (s *Sandbox) ListFiles(ctx context.Context, path string, recursive bool) iter.Seq2[FileInfo, error] {
	query := url.Values{"path": {path}, "list": {"true"}}
	if recursive {
		query.Set("recursive", "true")
	}
	return func(yield func(FileInfo, error) bool) {
		for w, err := range pages[wireFile](ctx, s.client, s.path("/files"), query, listPage) {
			if !yield(w.exact(), err) {
				return
			}
		}
	}
}

// IsDir tells whether a path is a directory, following links. A path that does not exist is none.
func (s *Sandbox) IsDir(ctx context.Context, path string) (bool, error) {
	query := url.Values{"path": {path}, "list": {"true"}, "limit": {"1"}}
	err := s.client.do(ctx, call{method: http.MethodGet, path: s.path("/files"), query: query}, nil)
	switch ErrorCode(err) {
	case CodeFileNotFound, CodeFileConflict:
		return false, nil
	}
	return err == nil, err
}

// Stat gives one entry. A link is described itself, not what it points to.
func (s *Sandbox) Stat(ctx context.Context, path string) (FileInfo, error) {
	return s.entryCall(ctx, call{method: http.MethodGet, path: s.path("/files/stat"), query: url.Values{"path": {path}}})
}

// Mkdir makes a directory, with its parents; that it is there already is no failure. Mode 0 is the server's default, 0755.
func (s *Sandbox) Mkdir(ctx context.Context, path string, mode fs.FileMode) (FileInfo, error) {
	body := map[string]any{}
	putPath(body, "path", path)
	if mode != 0 {
		body["mode"] = octal(mode)
	}
	return s.changeFile(ctx, "/files/mkdir", body)
}

// Move renames a file or directory, also between file systems. CodeFileConflict: something is at to, unless overwrite is set.
func (s *Sandbox) Move(ctx context.Context, from, to string, overwrite bool) (FileInfo, error) {
	body := map[string]any{"overwrite": overwrite}
	putPath(body, "from", from)
	putPath(body, "to", to)
	return s.changeFile(ctx, "/files/move", body)
}

// Chmod sets permission bits, with setuid, setgid and sticky as fs has them; recursive does so for all that is below too.
func (s *Sandbox) Chmod(ctx context.Context, path string, mode fs.FileMode, recursive bool) (FileInfo, error) {
	body := map[string]any{"mode": octal(mode), "recursive": recursive}
	putPath(body, "path", path)
	return s.changeFile(ctx, "/files/chmod", body)
}

func (s *Sandbox) changeFile(ctx context.Context, route string, body map[string]any) (FileInfo, error) {
	return s.entryCall(ctx, call{method: http.MethodPost, path: s.path(route), json: body})
}

func (s *Sandbox) entryCall(ctx context.Context, k call) (FileInfo, error) {
	var info wireFile
	err := s.client.do(ctx, k, &info)
	return info.exact(), err
}

// RemoveFile removes a file or an empty directory; recursive removes a directory with all that is in it.
func (s *Sandbox) RemoveFile(ctx context.Context, path string, recursive bool) error {
	query := url.Values{"path": {path}}
	if recursive {
		query.Set("recursive", "true")
	}
	return s.client.do(ctx, call{method: http.MethodDelete, path: s.path("/files"), query: query}, nil)
}

// octal is a mode as the API writes it.
func octal(mode fs.FileMode) string {
	n := uint32(mode.Perm())
	for bit, unix := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&bit != 0 {
			n |= unix
		}
	}
	return fmt.Sprintf("%04o", n)
}

// copyTo copies and tells a failure of w from one of r.
func copyTo(w io.Writer, r io.Reader) (int64, error) {
	return io.Copy(localWriter{w}, r)
}

// localWriter marks the failures of a writer on this side.
type localWriter struct{ to io.Writer }

// Write implements io.Writer.
func (w localWriter) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	if err != nil {
		return n, localError("write what was downloaded", err)
	}
	return n, nil
}

// limitedWriter fails once more than left bytes were written.
type limitedWriter struct {
	to   io.Writer
	left int64
	over bool
}

// Write implements io.Writer.
func (w *limitedWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > w.left {
		w.over = true
		return 0, io.ErrShortWrite
	}
	w.left -= int64(len(p))
	return w.to.Write(p)
}
