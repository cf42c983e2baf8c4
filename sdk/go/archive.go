package dayfly

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
)

// Transfer tells what an upload or download of a folder moved.
type Transfer struct {
	Files   int64 // regular files and links
	Bytes   int64 // of their content
	Skipped []string
	// SkippedMore is how many more were skipped than Skipped names.
	SkippedMore int64
}

// skippedMax is how many skipped entries a Transfer names.
const skippedMax = 100

func (t *Transfer) skip(name string) {
	if len(t.Skipped) == skippedMax {
		t.SkippedMore++
		return
	}
	t.Skipped = append(t.Skipped, name)
}

// UploadDir copies the folder local to remote, which is made if missing; what is there already and not in the folder stays.
// Links are copied as links, empty folders too, permissions are kept. Nothing outside of local is read. Sockets, FIFOs and
// devices are skipped and named. A failure may leave a part of the folder in the sandbox.
func (s *Sandbox) UploadDir(ctx context.Context, local, remote string) (Transfer, error) {
	var moved Transfer
	err := s.client.do(ctx, call{
		method: http.MethodPut, path: s.path("/files/archive"),
		query:      url.Values{"path": {remote}, "format": {"tar"}},
		header:     http.Header{"Content-Type": {"application/x-tar"}},
		repeatable: true, // the folder is read anew
		body: func() (io.ReadCloser, error) {
			p, err := packFolder(local)
			if err != nil {
				return nil, err
			}
			p.report = progressOf(ctx)
			return p.stream(func(t Transfer) { moved = t }), nil
		},
	}, nil)
	return moved, err
}

// UploadTar unpacks a tar stream into remote, which is made if missing. It can be sent once.
func (s *Sandbox) UploadTar(ctx context.Context, archive io.Reader, remote string) error {
	return s.client.do(ctx, call{
		method: http.MethodPut, path: s.path("/files/archive"),
		query:  url.Values{"path": {remote}, "format": {"tar"}},
		header: http.Header{"Content-Type": {"application/x-tar"}},
		body:   func() (io.ReadCloser, error) { return io.NopCloser(progressOf(ctx).reader(archive, -1)), nil },
	}, nil)
}

// DownloadTar copies the folder remote to w as a tar stream and gives the number of bytes. After an error w may hold a part of
// it.
func (s *Sandbox) DownloadTar(ctx context.Context, remote string, w io.Writer) (int64, error) {
	resp, err := s.client.open(ctx, archiveCall(s, remote))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := copyTo(w, progressOf(ctx).reader(resp.Body, -1))
	if err != nil {
		return n, s.client.transportError(ctx, err)
	}
	return n, nil
}

func archiveCall(s *Sandbox, remote string) call {
	return call{
		method: http.MethodGet, path: s.path("/files/archive"),
		query:  url.Values{"path": {remote}, "format": {"tar"}},
		header: http.Header{"Accept": {"application/x-tar"}},
	}
}

// DownloadDir copies the folder remote into the folder local, which is made if missing. Files that exist are replaced,
// others stay. The sandbox cannot make it write outside of local, nor through a link; setuid, setgid and sticky bits are
// not taken over. Devices and FIFOs are skipped and named. A failure leaves what had arrived.
func (s *Sandbox) DownloadDir(ctx context.Context, remote, local string) (Transfer, error) {
	resp, err := s.client.open(ctx, archiveCall(s, remote))
	if err != nil {
		return Transfer{}, err
	}
	defer resp.Body.Close()
	arriving := &arrival{from: progressOf(ctx).reader(resp.Body, -1)}
	moved, err := unpackFolder(tar.NewReader(bufio.NewReaderSize(arriving, 64<<10)), local)
	if err == nil {
		// The archive's end is not the answer's: only the latter tells that nothing was cut.
		_, err = io.Copy(io.Discard, io.LimitReader(arriving, drainMax))
	}
	if arriving.err != nil {
		return moved, s.client.transportError(ctx, arriving.err)
	}
	var own *Error
	if err != nil && !errors.As(err, &own) {
		return moved, &Error{Code: CodeBadAnswer, Message: "the server sent an archive that cannot be read: " + err.Error(), cause: err}
	}
	return moved, err
}

// arrival remembers how a body broke, which tar would report as a fault of the archive.
type arrival struct {
	from io.Reader
	err  error
}

// Read implements io.Reader.
func (a *arrival) Read(p []byte) (int, error) {
	n, err := a.from.Read(p)
	if err != nil && err != io.EOF {
		a.err = err
	}
	return n, err
}
