package dayfly

import (
	"context"
	"io"
	"iter"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"
)

// Image is a root file system that sandboxes start from.
type Image struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Digest    string     `json:"digest"`
	SizeBytes int64      `json:"size_bytes"` // unpacked
	Files     int64      `json:"files"`
	User      string     `json:"user"`
	Workdir   string     `json:"workdir"`
	EnvNames  []string   `json:"env_names"` // values are never shown
	CreatedAt *time.Time `json:"created_at"`
}

// ImportOptions say how commands run in an image. Zero values leave it to the server.
type ImportOptions struct {
	User    string            // name or uid
	Workdir string            // absolute
	Env     map[string]string // set for every command
	// Progress is told how many bytes were sent so far, from another goroutine, or is nil.
	Progress func(sent int64)
}

// ImportImage sends a root file system as a tar, tar.gz or tar.zst of any size and gives it a name. An image that had the
// name keeps its sandboxes and loses the name. A regular file is sent again when the connection breaks.
func (c *Client) ImportImage(ctx context.Context, name string, archive io.Reader, o ImportOptions) (Image, error) {
	query := url.Values{"name": {name}}
	if o.User != "" {
		query.Set("user", o.User)
	}
	if o.Workdir != "" {
		query.Set("workdir", o.Workdir)
	}
	for k, v := range o.Env {
		query.Add("env", k+"="+v)
	}
	slices.Sort(query["env"])
	open, again := reopen(archive)
	var image Image
	err := c.do(ctx, call{
		method: http.MethodPost, path: "/v1/images", query: query, repeatable: again,
		header: http.Header{"Content-Type": {"application/octet-stream"}},
		body: func() (io.ReadCloser, error) {
			return io.NopCloser(&progressReader{from: open(), tell: o.Progress}), nil
		},
	}, &image)
	return image, err
}

// reopen gives a function that reads r from where it stands now. again tells that it may be called more than once.
func reopen(r io.Reader) (open func() io.Reader, again bool) {
	f, ok := r.(*os.File)
	if !ok {
		return func() io.Reader { return r }, false
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return func() io.Reader { return r }, false
	}
	start, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return func() io.Reader { return r }, false
	}
	return func() io.Reader { return io.NewSectionReader(f, start, 1<<62) }, true
}

// Images goes through the images.
func (c *Client) Images(ctx context.Context) iter.Seq2[Image, error] {
	return pages[Image](ctx, c, "/v1/images", nil, pageSize)
}

// Image asks for an image by name or id.
func (c *Client) Image(ctx context.Context, name string) (Image, error) {
	var image Image
	err := c.do(ctx, call{method: http.MethodGet, path: "/v1/images/" + segment(name)}, &image)
	return image, err
}

// DeleteImage removes an image by name or id. Sandboxes that run on it go on.
func (c *Client) DeleteImage(ctx context.Context, name string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: "/v1/images/" + segment(name)}, nil)
}

// progressReader tells how much was read.
type progressReader struct {
	from io.Reader
	tell func(int64)
	n    int64
}

// Read implements io.Reader.
func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.from.Read(b)
	p.n += int64(n)
	if p.tell != nil && n > 0 {
		p.tell(p.n)
	}
	return n, err
}
