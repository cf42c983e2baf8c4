package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// peekBytes are read before the head of a file's answer goes out: a file that ends within them gets its true length whatever
// its size says (in /proc and /sys it says nothing), and an early error gets its own status.
const peekBytes = 64 << 10

// readContent answers with a file's bytes, whole or a range of them, or with its head only.
func readContent(c *call, name string) error {
	m, err := c.machine()
	if err != nil {
		return err
	}
	asked, err := c.askedRange()
	if err != nil {
		return err
	}
	if asked != nil {
		return c.readPart(m, name, *asked)
	}
	return c.readWhole(m, name)
}

// askedRange is the part that the client wants, or nil for the whole. A condition on the range (If-Range) never holds, since
// files have no strong validator: then the whole is sent.
func (c *call) askedRange() (*byteRange, error) {
	header := c.r.Header.Get("Range")
	if header == "" || c.r.Header.Get("If-Range") != "" || c.r.Method != http.MethodGet {
		return nil, nil
	}
	return parseRange(header)
}

func (c *call) readWhole(m control.Machine, name string) error {
	info, body, err := m.Read(c.ctx(), name, dayfly.FileRange{Length: -1})
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // only read
	start, whole, err := peek(body)
	if err != nil {
		return err
	}
	c.contentHeaders(info)
	length := info.SizeBytes
	switch {
	case whole:
		length = int64(len(start))
	case length <= int64(len(start)): // its size says less than it holds
		length = -1
	}
	return c.send(http.StatusOK, length, io.MultiReader(bytes.NewReader(start), body))
}

// readPart answers with one range. A file whose size is unknown beforehand is sent whole, which HTTP allows.
func (c *call) readPart(m control.Machine, name string, asked byteRange) error {
	info, body, err := m.Read(c.ctx(), name, dayfly.FileRange{Length: 1})
	if err != nil {
		return err
	}
	n, readErr := io.ReadFull(body, make([]byte, 1))
	_ = body.Close() // only read
	if readErr != nil && readErr != io.EOF {
		return readErr
	}
	if info.SizeBytes == 0 && n > 0 {
		return c.readWhole(m, name)
	}
	part, ok := asked.of(info.SizeBytes)
	if !ok {
		return c.unsatisfiable(info.SizeBytes)
	}
	if _, body, err = m.Read(c.ctx(), name, part); err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // only read
	c.contentHeaders(info)
	c.w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.Offset, part.Offset+part.Length-1, info.SizeBytes))
	return c.send(http.StatusPartialContent, part.Length, body)
}

// unsatisfiable answers 416, the one status that belongs to HTTP's ranges alone.
func (c *call) unsatisfiable(size int64) error {
	c.w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", size))
	out, _, _ := c.show(dayfly.Errorf(dayfly.CodeInvalid, "the range lies outside the file's %d bytes", size).WithDetail("size_bytes", size))
	return c.answer(http.StatusRequestedRangeNotSatisfiable, errorEnvelope{out})
}

// peek reads the start of r; whole tells that this was all.
func peek(r io.Reader) (start []byte, whole bool, err error) {
	buf := make([]byte, peekBytes)
	n, err := io.ReadFull(r, buf)
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return buf[:n], true, nil
	}
	return buf[:n], false, err
}

// contentHeaders describes a file. Its content is hostile: it is never shown in the API's origin.
func (c *call) contentHeaders(info dayfly.FileInfo) {
	h := c.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", attachment(path.Base(info.Path)))
	h.Set("Cache-Control", "no-store")
	h.Set("Accept-Ranges", "bytes")
	h.Set("Last-Modified", info.ModifiedAt.UTC().Format(http.TimeFormat))
	h.Set("X-File-Mode", showMode(info.Mode))
}

// attachment names a download. Any bytes are escaped.
func attachment(name string) string {
	return "attachment; filename*=UTF-8''" + strings.ReplaceAll(url.QueryEscape(name), "+", "%20")
}

// send answers with raw bytes; length -1 means unknown. A body that ends early cuts the connection.
func (c *call) send(status int, length int64, body io.Reader) error {
	if length >= 0 {
		c.w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
		body = io.LimitReader(body, length)
	}
	c.w.WriteHeader(status)
	if c.r.Method == http.MethodHead {
		return nil
	}
	n, err := io.Copy(c.w, body)
	if err == nil && (length < 0 || n == length) {
		return nil
	}
	if c.ctx().Err() == nil {
		c.log.Warn("a transfer broke off", "id", c.id, "sent", n, "of", length, "error", err)
	}
	return errAborted
}

// writing says where to write a file.
type writing struct {
	path string
	mode *fs.FileMode // nil: keep an existing file's, else 0644
}

func parseWrite(q *query) writing {
	w := writing{path: q.path("path")}
	if text, given := q.text("mode"); given {
		mode, problem := parseMode(text)
		if problem != "" {
			q.bad.add("mode", "%s", problem)
			return w
		}
		w.mode = &mode
	}
	return w
}

// parseMode reads the octal digits of a mode, or tells what is wrong with them.
func parseMode(text string) (mode fs.FileMode, problem string) {
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > unixModeMax || len(text) > len("00644") {
		return 0, "must be octal digits like 0644, at most 7777"
	}
	return fromUnixMode(n), ""
}

func writeContent(c *call, w writing) error {
	m, err := c.machine()
	if err != nil {
		return err
	}
	c.afterBody(http.StatusOK)
	info, err := m.Write(c.ctx(), w.path, w.mode, c.r.Body)
	if err != nil {
		return c.bodyError(err)
	}
	return c.answer(http.StatusOK, showEntry(info))
}

// Bits of a Unix mode beside the permissions.
const (
	unixModeMax = 0o7777
	unixSetuid  = 0o4000
	unixSetgid  = 0o2000
	unixSticky  = 0o1000
)

func fromUnixMode(n uint64) fs.FileMode {
	mode := fs.FileMode(n) & fs.ModePerm
	if n&unixSetuid != 0 {
		mode |= fs.ModeSetuid
	}
	if n&unixSetgid != 0 {
		mode |= fs.ModeSetgid
	}
	if n&unixSticky != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}

// showMode writes a mode as four octal digits.
func showMode(mode fs.FileMode) string {
	n := uint64(mode.Perm())
	if mode&fs.ModeSetuid != 0 {
		n |= unixSetuid
	}
	if mode&fs.ModeSetgid != 0 {
		n |= unixSetgid
	}
	if mode&fs.ModeSticky != 0 {
		n |= unixSticky
	}
	return fmt.Sprintf("%04o", n)
}

// entryJSON is a file as clients see it. Texts that are not UTF-8 come with their exact bytes beside them.
type entryJSON struct {
	Name       string          `json:"name"`
	NameB64    *string         `json:"name_b64,omitempty"`
	Path       string          `json:"path"`
	PathB64    *string         `json:"path_b64,omitempty"`
	Type       dayfly.FileType `json:"type"`
	SizeBytes  int64           `json:"size_bytes"`
	Mode       string          `json:"mode"`
	ModifiedAt string          `json:"modified_at"`
	Target     *string         `json:"target"`
	TargetB64  *string         `json:"target_b64,omitempty"`
	Error      *string         `json:"error"`
}

func showEntry(f dayfly.FileInfo) entryJSON {
	out := entryJSON{Type: f.Type, SizeBytes: f.SizeBytes, Mode: showMode(f.Mode), ModifiedAt: stamp(clampTime(f.ModifiedAt)), Error: orNull(f.Error)}
	out.Name, out.NameB64 = showBytes(f.Name)
	out.Path, out.PathB64 = showBytes(f.Path)
	if f.Type == dayfly.FileSymlink {
		target, exact := showBytes(f.Target)
		out.Target, out.TargetB64 = &target, exact
	}
	return out
}

// clampTime keeps stamps that a sandbox has set within the years that RFC 3339 can write.
func clampTime(t time.Time) time.Time {
	if y := t.UTC().Year(); y < 1 || y > 9999 {
		return time.Unix(0, 0)
	}
	return t
}
