package image

import (
	"bufio"
	"bytes"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"dayfly.dev/dayfly"
)

const (
	magicBytes    = 512       // enough for every magic: the tar one stands at 257
	zstdWindowMax = 128 << 20 // bytes; what zstd --long=27 asks for
	zstdWorkers   = 2
)

// decompress finds out by its first bytes how r is compressed and returns the tar stream in it with what to call at the end.
func decompress(r io.Reader) (tarStream io.Reader, done func(), err error) {
	b := bufio.NewReaderSize(r, 256<<10)
	head, _ := b.Peek(magicBytes)
	none := func() {}
	switch {
	case len(head) == 0:
		return nil, none, dayfly.Errorf(dayfly.CodeInvalid, "the archive is empty")
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}), isSkippableFrame(head):
		z, err := zstd.NewReader(b, zstd.WithDecoderMaxWindow(zstdWindowMax), zstd.WithDecoderConcurrency(zstdWorkers))
		if err != nil {
			return nil, none, broken(err)
		}
		return z, z.Close, nil
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		g, err := gzip.NewReader(b)
		if err != nil {
			return nil, none, broken(err)
		}
		return g, func() { _ = g.Close() }, nil
	}
	for _, other := range []struct{ name, magic string }{
		{"xz", "\xfd7zXZ\x00"}, {"bzip2", "BZh"}, {"lz4", "\x04\x22\x4d\x18"}, {"zip", "PK\x03\x04"}, {"squashfs", "hsqs"},
	} {
		if bytes.HasPrefix(head, []byte(other.magic)) {
			return nil, none, dayfly.Errorf(dayfly.CodeInvalid, "the file is %s, not a tar file", other.name).
				WithHint("give a tar file, plain or compressed by gzip or zstd")
		}
	}
	return b, none, nil
}

// isSkippableFrame tells whether head begins with a zstd frame that holds no data; pzstd and others write them first.
func isSkippableFrame(head []byte) bool {
	return len(head) >= 4 && head[0]&0xf0 == 0x50 && bytes.Equal(head[1:4], []byte{0x2a, 0x4d, 0x18})
}

// broken says that the archive itself is damaged.
func broken(err error) error {
	return dayfly.Errorf(dayfly.CodeInvalid, "the archive is damaged or not a tar file").
		WithHint("give a whole tar file, plain or compressed by gzip or zstd").WithCause(err)
}

// bounded passes on a tar stream until it exceeds the limits on size and ratio.
type bounded struct {
	r       io.Reader
	in      *input
	limits  Limits
	entries func() int64 // so far: headers are no content but come from the same stream
	read    int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.read += int64(n)
	const perEntry = 8 << 10 // header, padding and extended headers of one entry, generously
	if b.read > b.limits.TotalBytes+(b.entries()+1)*perEntry+(1<<20) {
		return n, tooLarge("the archive unpacks to more than %d bytes", b.limits.TotalBytes)
	}
	if b.limits.exceedsRatio(b.read, b.in) {
		return n, b.limits.ratioError()
	}
	return n, err
}

func (l Limits) exceedsRatio(unpacked int64, in *input) bool {
	return unpacked > l.RatioFreeBytes && (unpacked-l.RatioFreeBytes)/l.Ratio > in.read.Load()
}

func (l Limits) ratioError() error {
	return tooLarge("the archive unpacks to more than %d times its size", l.Ratio)
}

func tooLarge(format string, args ...any) error {
	return dayfly.Errorf(dayfly.CodeTooLarge, format, args...)
}
