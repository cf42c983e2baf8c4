package agentwire

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"dayfly.dev/dayfly"
)

// Resize implements Machine.
func (c *Client) Resize(ctx context.Context, id string, size dayfly.TerminalSize) error {
	return c.command(ctx, request{Op: opResize, ID: id, Terminal: fromSize(&size)})
}

// AwaitPort implements Machine.
func (c *Client) AwaitPort(ctx context.Context, port int) error {
	return c.command(ctx, request{Op: opAwaitPort, Port: port})
}

// Mkdir implements Machine.
func (c *Client) Mkdir(ctx context.Context, path string, mode *fs.FileMode, parents bool) (dayfly.FileInfo, error) {
	req := request{Op: opMkdir, Recursive: parents}
	if mode != nil {
		bits := uint32(*mode)
		req.Mode = &bits
	}
	return c.file(ctx, req, nil /* no body */, path)
}

// Move implements Machine.
func (c *Client) Move(ctx context.Context, from, to string, overwrite bool) (dayfly.FileInfo, error) {
	return c.file(ctx, request{Op: opMove, Overwrite: overwrite}, nil /* no body */, from, to)
}

// Chmod implements Machine.
func (c *Client) Chmod(ctx context.Context, path string, mode fs.FileMode, recursive bool) (dayfly.FileInfo, error) {
	bits := uint32(mode)
	return c.file(ctx, request{Op: opChmod, Mode: &bits, Recursive: recursive}, nil /* no body */, path)
}

// Search implements Machine.
func (c *Client) Search(ctx context.Context, q dayfly.SearchQuery) (dayfly.SearchResult, error) {
	req, params := searchRequest(q)
	var res dayfly.SearchResult
	found, err := c.look(ctx, req, params, func(m message) (int, bool) {
		for _, f := range m.Matches[:min(len(m.Matches), q.Limit-len(res.Matches)+1)] {
			res.Matches = append(res.Matches, f.toMatch())
		}
		return len(m.Matches), len(res.Matches) <= q.Limit
	})
	if err != nil {
		return dayfly.SearchResult{}, err
	}
	res.Files, res.Skipped, res.Truncated = max(0, found.Files), max(0, found.Skipped), found.Truncated
	return res, nil
}

// Find implements Machine.
func (c *Client) Find(ctx context.Context, q dayfly.FindQuery) ([]dayfly.FileInfo, bool, error) {
	req, params := findRequest(q)
	var entries []dayfly.FileInfo
	found, err := c.look(ctx, req, params, func(m message) (int, bool) {
		for _, f := range m.Files[:min(len(m.Files), q.Limit-len(entries)+1)] {
			entries = append(entries, f.toFile())
		}
		return len(m.Files), len(entries) <= q.Limit
	})
	if err != nil {
		return nil, false, err
	}
	return entries, found.Truncated, nil
}

// look sends a search or find and gives each message with something found to take, which tells how much that was and
// whether it was within what was asked for.
func (c *Client) look(ctx context.Context, req request, params []string, take func(message) (int, bool)) (*foundFields, error) {
	k, err := c.open(ctx, req, params, nil /* no body */)
	if err != nil {
		return nil, err
	}
	defer k.close()
	for {
		m, err := k.message()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", req.Op, err)
		}
		if m.Found != nil {
			return m.Found, nil
		}
		if n, ok := take(m); n == 0 || !ok {
			return nil, k.broken(fmt.Errorf("%s: %w: more than was asked for, or nothing", req.Op, errFrame))
		}
	}
}

// Watch implements Machine.
func (c *Client) Watch(ctx context.Context, path string, recursive bool) (dayfly.ChangeStream, error) {
	k, err := c.open(ctx, request{Op: opWatch, Recursive: recursive}, []string{path}, nil /* no body */)
	if err != nil {
		return nil, err
	}
	if _, err := k.message(); err != nil {
		k.close()
		return nil, fmt.Errorf("watch: %w", err)
	}
	return &changeStream{call: k}, nil
}

// changeStream is the client's end of a watch.
type changeStream struct {
	call *call
	end  error // io.EOF or why it broke; sticky
	once sync.Once
}

// Next implements dayfly.ChangeStream.
func (s *changeStream) Next() (dayfly.FileChange, error) {
	if s.end != nil {
		return dayfly.FileChange{}, s.end
	}
	kind, _, m, err := s.call.next()
	switch {
	case err != nil:
		s.end = fmt.Errorf("watch: %w", err)
	case kind == frameEnd:
		s.end = io.EOF
	case m.Change != nil:
		return m.Change.toChange(), nil
	default:
		s.end = s.call.broken(fmt.Errorf("%w: kind %q in a watch", errFrame, kind))
	}
	return dayfly.FileChange{}, s.end
}

// Close implements dayfly.ChangeStream.
func (s *changeStream) Close() error {
	s.once.Do(s.call.close)
	return nil
}
