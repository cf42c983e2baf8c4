package dayfly

import (
	"bytes"
	"errors"
	"io"
)

// stdinChunk is how much input travels in one request, in bytes. Each has an idempotency key, so that one whose answer was
// lost is delivered once.
const stdinChunk = 256 << 10

// feed passes the caller's reader to the command until it ends, the command stops reading, or the stream is closed.
func (st *Stream) feed() {
	buf := make([]byte, stdinChunk)
	for st.ctx.Err() == nil {
		n, err := st.stdin.Read(buf)
		end := errors.Is(err, io.EOF)
		if n > 0 || end {
			if sent := st.send(bytes.Clone(buf[:n]), end); sent != nil {
				if !stopsReading(sent) {
					st.cancel(sent)
				}
				return
			}
		}
		if end {
			return
		}
		if err != nil {
			st.cancel(localError("read the input of the command", err))
			return
		}
	}
}

func (st *Stream) send(p []byte, end bool) error {
	return st.sandbox.writeStdin(st.ctx, st.id, p, end)
}

// stopsReading tells that the command has ended or closed its input, which is no failure: its exit says the rest.
func stopsReading(err error) bool {
	switch ErrorCode(err) {
	case CodeGone, CodeNotFound, CodeConflict, CodeNotRunning, CodeCancelled:
		return true
	}
	return false
}
