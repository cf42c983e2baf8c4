package agentwire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// The kinds of frames: one byte of kind, four bytes of length (big endian), then the payload.
const (
	frameJSON   byte = 'J' // a request, or a message of the answer
	frameParams byte = 'P' // part of a request's byte strings
	frameData   byte = 'D' // part of a body: standard input, file content, archive, captured output
	frameStdout byte = 'O' // eight bytes of offset, then output
	frameStderr byte = 'E'
	frameEnd    byte = 'Z' // empty: the body or the answer is complete
)

// Limits of frames.
const (
	dataMax     = 64 << 10 // payload of a data, params or output frame, without the offset
	jsonMax     = 1 << 20  // payload of a JSON frame
	frameHeader = 5
	offsetBytes = 8
	flushBytes  = dataMax // buffered frames are written out at this size
	readBuffer  = 4 << 10
)

// errFrame is any violation of the framing.
var errFrame = errors.New("bad frame")

// frameLimit is the longest payload of a kind, or -1 for a kind that does not exist.
func frameLimit(kind byte) int {
	switch kind {
	case frameJSON:
		return jsonMax
	case frameParams, frameData:
		return dataMax
	case frameStdout, frameStderr:
		return dataMax + offsetBytes
	case frameEnd:
		return 0
	}
	return -1
}

// frameReader reads frames from one stream. It is not safe for concurrent use.
type frameReader struct {
	r   *bufio.Reader
	buf []byte
	hdr [frameHeader]byte
}

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, readBuffer)}
}

// next reads one frame. The payload is valid until the next call. io.EOF comes only between frames.
func (f *frameReader) next() (kind byte, payload []byte, err error) {
	if _, err := io.ReadFull(f.r, f.hdr[:]); err != nil {
		return 0, nil, err
	}
	kind = f.hdr[0]
	size := binary.BigEndian.Uint32(f.hdr[1:])
	limit := frameLimit(kind)
	if limit < 0 || size > uint32(limit) {
		return 0, nil, fmt.Errorf("%w: kind %q with %d bytes", errFrame, kind, size)
	}
	if uint32(cap(f.buf)) < size {
		f.buf = make([]byte, max(int(size), 2*cap(f.buf)))
	}
	payload = f.buf[:size]
	if _, err := io.ReadFull(f.r, payload); err != nil {
		return 0, nil, noEOF(err)
	}
	return kind, payload, nil
}

// noEOF turns an end of file in the middle of something into an error of its own.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// frameWriter collects frames and writes them out in few calls. It is not safe for concurrent use.
type frameWriter struct {
	w   io.Writer
	buf []byte
}

func newFrameWriter(w io.Writer) *frameWriter { return &frameWriter{w: w} }

// frame appends one frame made of the parts.
func (f *frameWriter) frame(kind byte, parts ...[]byte) error {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	if limit := frameLimit(kind); size > limit {
		return fmt.Errorf("%w: kind %q with %d bytes to send", errFrame, kind, size)
	}
	if len(f.buf) > 0 && len(f.buf)+frameHeader+size > flushBytes {
		if err := f.flush(); err != nil {
			return err
		}
	}
	f.buf = append(f.buf, kind)
	f.buf = binary.BigEndian.AppendUint32(f.buf, uint32(size))
	for _, p := range parts {
		f.buf = append(f.buf, p...)
	}
	return nil
}

// json appends v as a JSON frame.
func (f *frameWriter) json(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	return f.frame(frameJSON, b)
}

// chunks appends b as frames of the given kind, as many as it takes.
func (f *frameWriter) chunks(kind byte, b []byte) error {
	for len(b) > 0 {
		n := min(len(b), dataMax)
		if err := f.frame(kind, b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// output appends one piece of a process's output.
func (f *frameWriter) output(kind byte, offset int64, b []byte) error {
	var at [offsetBytes]byte
	binary.BigEndian.PutUint64(at[:], uint64(offset))
	return f.frame(kind, at[:], b)
}

// flush writes out what is collected.
func (f *frameWriter) flush() error {
	if len(f.buf) == 0 {
		return nil
	}
	_, err := f.w.Write(f.buf)
	f.buf = f.buf[:0]
	return err
}

// splitOutput takes an output frame apart.
func splitOutput(payload []byte) (offset int64, data []byte, err error) {
	if len(payload) < offsetBytes {
		return 0, nil, fmt.Errorf("%w: output without offset", errFrame)
	}
	at := binary.BigEndian.Uint64(payload)
	if at > offsetMax {
		return 0, nil, fmt.Errorf("%w: output at offset %d", errFrame, at)
	}
	return int64(at), payload[offsetBytes:], nil
}

// offsetMax is beyond every real byte count; a larger one is a lie that could overflow sums.
const offsetMax = 1 << 60
