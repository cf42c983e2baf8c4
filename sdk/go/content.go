package dayfly

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Content is a file that is being read.
type Content struct {
	Size int64       // -1 if unknown
	Mode fs.FileMode // permission bits; 0 if unknown

	sandbox  *Sandbox
	ctx      context.Context
	path     string
	modified string // as the server wrote it
	body     io.ReadCloser
	offset   int64     // of the next byte
	last     time.Time // of the last progress
	report   progressReport
	done     error // what Read returns from now on, or nil
}

// Open gives the content of a file as a stream that the caller closes. A connection that breaks is taken up where it broke,
// unless the file has changed. It ends with io.EOF only when all of it has arrived.
func (s *Sandbox) Open(ctx context.Context, path string) (*Content, error) {
	c := &Content{sandbox: s, ctx: ctx, path: path, report: progressOf(ctx)}
	resp, err := s.client.open(ctx, c.call())
	if err != nil {
		return nil, err
	}
	mode, _ := strconv.ParseUint(resp.Header.Get("X-File-Mode"), 8, 32)
	c.Size, c.Mode, c.modified, c.body = resp.ContentLength, fs.FileMode(mode).Perm(), resp.Header.Get("Last-Modified"), resp.Body
	c.report.tell(0, c.Size)
	return c, nil
}

func (c *Content) call() call {
	k := call{
		method: http.MethodGet, path: c.sandbox.path("/files/content"), query: url.Values{"path": {c.path}},
		header: http.Header{"Accept": {"application/octet-stream"}},
	}
	if c.offset > 0 {
		k.header.Set("Range", fmt.Sprintf("bytes=%d-", c.offset))
	}
	return k
}

// Read implements io.Reader.
func (c *Content) Read(p []byte) (int, error) {
	c.last = time.Now() // the caller may have taken its time
	for c.done == nil {
		n, err := c.body.Read(p)
		c.offset += int64(n)
		if n > 0 {
			c.report.tell(c.offset, c.Size)
			return n, nil // an error comes again
		}
		switch {
		case errors.Is(err, io.EOF) && (c.Size < 0 || c.offset >= c.Size):
			c.done = io.EOF
		case err != nil:
			c.done = c.resume(err)
		}
	}
	return 0, c.done
}

// resume asks for the rest after err, or gives the error that ends the stream.
func (c *Content) resume(err error) error {
	release(c.body)
	client := c.sandbox.client
	for n := 1; ; n++ {
		e := client.transportError(c.ctx, err)
		if !e.Retryable || c.Size < 0 || time.Since(c.last) > resumeFor { // a file of unknown size cannot be asked for in part
			return e
		}
		if pause(c.ctx, backoff(n, e.RetryAfter)) != nil {
			err = c.ctx.Err()
			continue
		}
		resp, opened := client.open(c.ctx, c.call())
		if opened != nil {
			err = opened
			continue
		}
		if !c.continues(resp) {
			release(resp.Body)
			return &Error{Code: CodeFileConflict, Message: "the file changed while it was downloaded", Hint: "try again once nothing writes to it"}
		}
		c.body = resp.Body
		return nil
	}
}

// continues tells whether an answer goes on with the same file where the last one broke.
func (c *Content) continues(resp *http.Response) bool {
	if resp.Header.Get("Last-Modified") != c.modified {
		return false
	}
	if c.offset == 0 {
		return resp.ContentLength == c.Size
	}
	want := fmt.Sprintf("bytes %d-%d/%d", c.offset, c.Size-1, c.Size)
	return resp.StatusCode == http.StatusPartialContent && strings.TrimSpace(resp.Header.Get("Content-Range")) == want
}

// Close implements io.Closer.
func (c *Content) Close() error {
	release(c.body)
	if c.done == nil {
		c.done = fs.ErrClosed
	}
	return nil
}
