package api

import (
	"context"
	"errors"
	"io"
	"sync"

	"dayfly.dev/dayfly"
)

// watching says what to watch.
type watching struct {
	path      string
	recursive bool
}

func parseWatch(q *query) watching {
	return watching{path: q.path("path"), recursive: q.flag("recursive")}
}

// changeJSON is a change below a watched path, or the start of the watch.
type changeJSON struct {
	Type     string          `json:"type"`
	Path     string          `json:"path"`
	PathB64  *string         `json:"path_b64,omitempty"`
	From     string          `json:"from,omitempty"`
	FromB64  *string         `json:"from_b64,omitempty"`
	FileType dayfly.FileType `json:"file_type,omitempty"`
}

func showChange(f dayfly.FileChange) changeJSON {
	out := changeJSON{Type: string(f.Kind), FileType: f.Type}
	out.Path, out.PathB64 = showBytes(f.Path)
	out.From, out.FromB64 = showBytes(f.From)
	return out
}

// watchFiles streams the changes below a path until that is gone, or the server stops.
func watchFiles(c *call, w watching) error {
	m, err := c.machine()
	if err != nil {
		return err
	}
	ctx, leave, done := c.untilStop()
	defer done()
	changes, err := m.Watch(ctx, w.path, w.recursive)
	if err != nil {
		return err
	}
	end := sync.OnceFunc(func() { _ = changes.Close() }) // only read
	defer end()
	start := changeJSON{Type: "start"}
	if info, err := m.Stat(ctx, w.path); err == nil { // else it is gone again, which the stream tells
		w.path = info.Path
	}
	start.Path, start.PathB64 = showBytes(w.path)
	f, _ := streamFormat(c.r.Header)
	out := c.openSink(f, leave)
	defer out.box.run()()
	err = out.ended(out.tellChanges(start, changes))
	end() // before the client has taken the rest: it may take its time
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errStopping) {
		return cause
	}
	return err
}

// tellChanges tells one change after the other, to the end.
func (s *sink) tellChanges(start changeJSON, changes dayfly.ChangeStream) error {
	if err := s.write(start); err != nil {
		return err
	}
	for {
		change, err := changes.Next()
		if errors.Is(err, io.EOF) {
			return s.write(eventJSON{Type: "end"})
		}
		if err == nil {
			err = s.write(showChange(change))
		}
		if err != nil {
			return err
		}
	}
}
