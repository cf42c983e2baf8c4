package api

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"path"

	"github.com/klauspost/compress/gzip"

	"dayfly.dev/dayfly"
)

// Formats of archives.
const (
	archiveTar = "tar"
	archiveGz  = "tar.gz"
)

// trailerMaxBytes bounds what may follow the end of an archive: padding.
const trailerMaxBytes = 16 << 20

// archiving says what to pack or where to unpack.
type archiving struct {
	path   string
	format string // empty: a plain tar when reading, found out when writing
}

func parseArchive(q *query) archiving {
	a := archiving{path: q.path("path")}
	a.format, _ = q.choice("format", archiveTar, archiveGz)
	return a
}

func readArchive(c *call, a archiving) error {
	m, err := c.machine()
	if err != nil {
		return err
	}
	body, err := m.ReadArchive(c.ctx(), a.path)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // only read
	start, _, err := peek(body)
	if err != nil {
		return err
	}
	tar := io.MultiReader(bytes.NewReader(start), body)
	h := c.w.Header()
	h.Set("Cache-Control", "no-store")
	name := path.Base(path.Clean("/" + a.path))
	if name == "/" {
		name = "root"
	}
	if a.format != archiveGz {
		h.Set("Content-Type", "application/x-tar")
		h.Set("Content-Disposition", attachment(name+".tar"))
		return c.send(http.StatusOK, -1 /* unknown */, tar)
	}
	h.Set("Content-Type", "application/gzip")
	h.Set("Content-Disposition", attachment(name+".tar.gz"))
	return c.sendCompressed(tar)
}

// sendCompressed compresses on the way out. A source that breaks cuts the connection before the end of the gzip stream.
func (c *call) sendCompressed(tar io.Reader) error {
	c.w.WriteHeader(http.StatusOK)
	z, err := gzip.NewWriterLevel(c.w, gzip.BestSpeed)
	if err != nil {
		return errAborted
	}
	_, err = io.Copy(z, tar)
	if err == nil {
		err = z.Close()
	}
	if err == nil {
		return nil
	}
	if c.ctx().Err() == nil {
		c.log.Warn("a transfer broke off", "id", c.id, "error", err)
	}
	return errAborted
}

func writeArchive(c *call, a archiving) error {
	m, err := c.machine()
	if err != nil {
		return err
	}
	c.afterBody(http.StatusOK)
	tar, err := plainTar(c.r.Body, a.format)
	if err != nil {
		return c.bodyError(err)
	}
	if err := m.WriteArchive(c.ctx(), a.path, tar); err != nil {
		return c.bodyError(tar.explain(err))
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(tar, trailerMaxBytes)); err != nil {
		return c.bodyError(tar.explain(err))
	}
	info, err := m.Stat(c.ctx(), a.path)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, showEntry(info))
}

// tarReader reads a plain tar and remembers whether its source was damaged.
type tarReader struct {
	io.Reader
	damage error // of the compression, or nil
	packed bool
}

// Read implements io.Reader.
func (t *tarReader) Read(p []byte) (int, error) {
	n, err := t.Reader.Read(p)
	if err != nil && err != io.EOF && t.packed {
		t.damage = err
	}
	return n, err
}

// explain gives the client's fault precedence over what followed from it.
func (t *tarReader) explain(err error) error {
	if t.damage != nil {
		return dayfly.Errorf(dayfly.CodeInvalid, "the archive's compression is damaged").WithCause(t.damage)
	}
	return err
}

// plainTar uncompresses an upload. Without a format it looks at the first bytes.
func plainTar(r io.Reader, format string) (*tarReader, error) {
	in := bufio.NewReader(r)
	magic, err := in.Peek(2)
	if err != nil && err != io.EOF {
		return nil, err
	}
	isGzip := bytes.Equal(magic, []byte{0x1f, 0x8b})
	if format == archiveTar || format == "" && !isGzip {
		return &tarReader{Reader: in}, nil
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, dayfly.Errorf(dayfly.CodeInvalid, "the body is not gzip").WithHint("leave format out to have it found out").WithCause(err)
	}
	return &tarReader{Reader: z, packed: true}, nil
}
