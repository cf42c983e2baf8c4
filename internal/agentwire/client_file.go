package agentwire

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"dayfly.dev/dayfly"
)

// Stat implements Machine.
func (c *Client) Stat(ctx context.Context, path string) (dayfly.FileInfo, error) {
	return c.file(ctx, request{Op: opStat}, nil /* no body */, path)
}

// Write implements Machine.
func (c *Client) Write(ctx context.Context, path string, mode *fs.FileMode, r io.Reader) (dayfly.FileInfo, error) {
	req := request{Op: opWrite}
	if mode != nil {
		bits := uint32(*mode)
		req.Mode = &bits
	}
	return c.file(ctx, req, r, path)
}

// file sends a request whose answer is one entry.
func (c *Client) file(ctx context.Context, req request, body io.Reader, paths ...string) (dayfly.FileInfo, error) {
	m, err := c.ask(ctx, req, body, paths...)
	if err != nil {
		return dayfly.FileInfo{}, err
	}
	if len(m.Files) != 1 {
		return dayfly.FileInfo{}, fmt.Errorf("%s: %w: %w: no entry", req.Op, ErrLost, errFrame)
	}
	return m.Files[0].toFile(), nil
}

// List implements Machine.
func (c *Client) List(ctx context.Context, q dayfly.ListQuery) ([]dayfly.FileInfo, string, error) {
	k, err := c.open(ctx, request{Op: opList, Recursive: q.Recursive, Limit: q.Limit}, []string{q.Path, q.Cursor}, nil)
	if err != nil {
		return nil, "", err
	}
	defer k.close()
	var entries []dayfly.FileInfo
	for {
		m, err := k.message()
		if err != nil {
			return nil, "", fmt.Errorf("list: %w", err)
		}
		if m.Page != nil {
			return entries, text(m.Page.Next, jsonMax), nil
		}
		if len(m.Files) == 0 || len(entries)+len(m.Files) > q.Limit {
			return nil, "", k.broken(fmt.Errorf("list: %w: %d entries", errFrame, len(entries)+len(m.Files)))
		}
		for _, f := range m.Files {
			entries = append(entries, f.toFile())
		}
	}
}

// Read implements Machine.
func (c *Client) Read(ctx context.Context, path string, part dayfly.FileRange) (dayfly.FileInfo, io.ReadCloser, error) {
	k, err := c.open(ctx, request{Op: opRead, Offset: part.Offset, Length: part.Length}, []string{path}, nil)
	if err != nil {
		return dayfly.FileInfo{}, nil, err
	}
	m, err := k.message()
	if err == nil && len(m.Files) != 1 {
		err = k.broken(fmt.Errorf("%w: no entry", errFrame))
	}
	if err != nil {
		k.close()
		return dayfly.FileInfo{}, nil, fmt.Errorf("read: %w", err)
	}
	return m.Files[0].toFile(), &body{call: k}, nil
}

// Remove implements Machine.
func (c *Client) Remove(ctx context.Context, path string, recursive bool) error {
	return c.command(ctx, request{Op: opRemove, Recursive: recursive}, path)
}

// ReadArchive implements Machine.
func (c *Client) ReadArchive(ctx context.Context, path string) (io.ReadCloser, error) {
	k, err := c.open(ctx, request{Op: opReadArchive}, []string{path}, nil)
	if err != nil {
		return nil, err
	}
	if _, err := k.message(); err != nil {
		k.close()
		return nil, fmt.Errorf("read archive: %w", err)
	}
	return &body{call: k}, nil
}

// WriteArchive implements Machine.
func (c *Client) WriteArchive(ctx context.Context, path string, r io.Reader) error {
	_, err := c.ask(ctx, request{Op: opWriteArchive}, r, path)
	return err
}

// body reads the data frames of an answer up to its end frame.
type body struct {
	call *call
	rest []byte // of the present frame
	end  error
	once sync.Once
}

// Read implements io.Reader. io.EOF comes only when the agent said that the content is complete.
func (b *body) Read(p []byte) (int, error) {
	for len(b.rest) == 0 {
		if err := b.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// WriteTo implements io.WriterTo, which saves a copy.
func (b *body) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for {
		for len(b.rest) == 0 {
			if err := b.fill(); err == io.EOF {
				return total, nil
			} else if err != nil {
				return total, err
			}
		}
		n, err := w.Write(b.rest)
		total += int64(n)
		b.rest = b.rest[n:]
		if err != nil {
			return total, err
		}
	}
}

func (b *body) fill() error {
	if b.end != nil {
		return b.end
	}
	kind, payload, _, err := b.call.next()
	switch {
	case err != nil:
		b.end = fmt.Errorf("read content: %w", err)
	case kind == frameData && len(payload) > 0: // an honest agent sends no empty ones, of which one could go on for ever
		b.rest = payload
	case kind == frameEnd:
		b.end = io.EOF
	default:
		b.end = b.call.broken(fmt.Errorf("%w: kind %q in content", errFrame, kind))
	}
	return b.end
}

// Close implements io.Closer. It may be called at any time.
func (b *body) Close() error {
	b.once.Do(b.call.close)
	return nil
}
