package dayfly

import (
	"context"
	"io"
	"os"
)

// Progress is how far an upload or download has come.
type Progress struct {
	Bytes int64 // moved so far; an attempt that begins anew begins at 0 again
	Total int64 // -1 if unknown
}

type progressKey struct{}

// progressReport tells somebody, or is nil.
type progressReport func(Progress)

// WithProgress gives a context whose uploads and downloads tell report how far they are. It is called by the goroutine that
// moves the bytes, for every piece of them, and holds it up.
func WithProgress(ctx context.Context, report func(Progress)) context.Context {
	return context.WithValue(ctx, progressKey{}, progressReport(report))
}

func progressOf(ctx context.Context) progressReport {
	report, _ := ctx.Value(progressKey{}).(progressReport)
	return report
}

func (r progressReport) tell(bytes, total int64) {
	if r != nil {
		r(Progress{Bytes: bytes, Total: total})
	}
}

// reader tells what is read of from.
func (r progressReport) reader(from io.Reader, total int64) io.Reader {
	if r == nil {
		return from
	}
	r.tell(0, total)
	return &reportedReader{from: from, report: r, total: total}
}

type reportedReader struct {
	from   io.Reader
	report progressReport
	bytes  int64
	total  int64
}

// Read implements io.Reader.
func (r *reportedReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.bytes += int64(n)
	if n > 0 {
		r.report.tell(r.bytes, r.total)
	}
	return n, err
}

// sizeOf is what is left of a regular file, or -1 for any other reader.
func sizeOf(r io.Reader) int64 {
	f, ok := r.(*os.File)
	if !ok {
		return -1
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return -1
	}
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return -1
	}
	return max(0, info.Size()-at)
}
