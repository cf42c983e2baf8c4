package dayfly

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// ChangeType is what happened to a watched path. New ones may be added.
type ChangeType string

// The types.
const (
	ChangeCreated  ChangeType = "created"  // also moved here from where nobody watches
	ChangeModified ChangeType = "modified" // its content
	ChangeMetadata ChangeType = "metadata" // mode, owner or times
	ChangeMoved    ChangeType = "moved"    // From says where it was
	ChangeDeleted  ChangeType = "deleted"  // also moved to where nobody watches
	// ChangeOverflow: changes were lost, because there were too many or the connection broke. List again.
	ChangeOverflow ChangeType = "overflow"
)

// FileChange is one change below a watched path.
type FileChange struct {
	Type     ChangeType
	Path     string   // absolute; of an overflow the watched path
	From     string   // of a move, or empty
	FileType FileType // as far as it is known, or empty
}

// Watch is a running watch, which the caller closes. One goroutine reads it; Close may be called from any.
type Watch struct {
	sandbox *Sandbox
	ctx     context.Context
	cancel  context.CancelFunc
	query   url.Values
	path    string // absolute, as the server said
	body    io.ReadCloser
	lines   *bufio.Reader
	last    time.Time // of the last progress
	moved   bool      // the caller was given a change
	again   bool      // the queue begins with what tells of a new connection
	queue   []FileChange
	done    error // what Next returns from now on, or nil
}

// Watch watches a file or directory, with recursive also what is below it, and returns once no change is missed any more. The
// watch lives as long as ctx.
func (s *Sandbox) Watch(ctx context.Context, path string, recursive bool) (*Watch, error) {
	w := &Watch{sandbox: s, query: url.Values{"path": {path}}}
	if recursive {
		w.query.Set("recursive", "true")
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	w.last = time.Now()
	err := w.connect()
	for err == nil && w.path == "" && w.done == nil {
		err = w.fill() // the start event, or why there is none
	}
	if err == nil && w.path == "" {
		err = w.done
	}
	if err != nil {
		w.cancel()
		return nil, s.client.transportError(ctx, err)
	}
	return w, nil
}

func (w *Watch) connect() error {
	resp, err := w.sandbox.client.open(w.ctx, call{
		method: http.MethodGet, path: w.sandbox.path("/files/watch"), query: w.query, header: http.Header{"Accept": {"application/x-ndjson"}},
	})
	if err != nil {
		return err
	}
	body := watch(resp.Body)
	w.body, w.lines = body, bufio.NewReader(body)
	context.AfterFunc(w.ctx, func() { _ = body.Close() }) // so that Close frees it while Next is not being called
	return nil
}

// Path is what is watched: absolute.
func (w *Watch) Path() string { return w.path }

// Next blocks for the next change. io.EOF: what is watched is gone. Any other error is final. A connection that breaks is taken
// up again, and a ChangeOverflow then says that changes may have been missed.
func (w *Watch) Next() (FileChange, error) {
	if w.moved { // the caller may have taken its time, and the connection not have waited
		w.last, w.moved = time.Now(), false
	}
	for {
		if len(w.queue) > 0 {
			c := w.queue[0]
			w.queue = w.queue[1:]
			w.moved = !w.again // a connection alone is no progress
			w.again = false
			return c, nil
		}
		if w.done != nil {
			return FileChange{}, w.done
		}
		if err := w.fill(); err != nil {
			w.done = w.resume(err)
		}
	}
}

// All goes through the changes and closes the watch. It ends when what is watched is gone, or after the first error.
func (w *Watch) All() iter.Seq2[FileChange, error] {
	return func(yield func(FileChange, error) bool) {
		defer w.Close()
		for {
			c, err := w.Next()
			if err == io.EOF || !yield(c, err) || err != nil {
				return
			}
		}
	}
}

// Close ends the watch. It may be called several times and while Next blocks.
func (w *Watch) Close() error {
	w.cancel()
	return nil
}

// fill reads one line and queues what it says. Any error breaks the connection.
func (w *Watch) fill() error {
	line, err := readLine(w.lines)
	if err != nil || len(bytes.TrimSpace(line)) == 0 {
		return err
	}
	var e struct {
		Type     string     `json:"type"`
		Path     string     `json:"path"`
		PathB64  []byte     `json:"path_b64"`
		From     string     `json:"from"`
		FromB64  []byte     `json:"from_b64"`
		FileType FileType   `json:"file_type"`
		Error    *wireError `json:"error"`
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return &Error{Code: CodeBadAnswer, Message: "the server sent an event that is not JSON", cause: err}
	}
	path := firstOf(string(e.PathB64), e.Path)
	switch e.Type {
	case "start":
		w.path = firstOf(path, ".")
	case "ping":
		w.last = time.Now()
	case "end":
		w.done = io.EOF
		w.cancel()
	case "error":
		if e.Error == nil {
			return &Error{Code: CodeBadAnswer, Message: "the server sent an error event without an error"}
		}
		return e.Error.error(0, nil)
	default:
		w.last = time.Now()
		w.queue = append(w.queue, FileChange{Type: ChangeType(e.Type), Path: path, From: firstOf(string(e.FromB64), e.From), FileType: e.FileType})
	}
	return nil
}

// resume connects again after err, or gives the error that ends the watch.
func (w *Watch) resume(err error) error {
	_ = w.body.Close()
	c := w.sandbox.client
	for n := 1; ; n++ {
		e := c.transportError(w.ctx, err)
		if !e.Retryable || time.Since(w.last) > resumeFor {
			w.cancel()
			e.Retryable = false
			return e
		}
		if pause(w.ctx, backoff(n, e.RetryAfter)) != nil {
			err = w.ctx.Err()
			continue
		}
		if err = w.connect(); err == nil {
			w.queue, w.again = append(w.queue, FileChange{Type: ChangeOverflow, Path: w.path}), true
			return nil
		}
	}
}
