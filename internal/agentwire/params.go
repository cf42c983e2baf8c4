package agentwire

import (
	"encoding/binary"
	"fmt"
)

// ParamsMax is the most bytes that the byte strings of one request have together: a whole request body of the public API.
const ParamsMax = 17 << 20

// paramsCount is the most byte strings of one request.
const paramsCount = 1 << 17

const lengthBytes = 4

// packParams joins byte strings, each behind its length.
func packParams(params ...string) []byte {
	size := 0
	for _, p := range params {
		size += lengthBytes + len(p)
	}
	out := make([]byte, 0, size)
	for _, p := range params {
		out = binary.BigEndian.AppendUint32(out, uint32(len(p)))
		out = append(out, p...)
	}
	return out
}

// unpackParams takes packed byte strings apart; there must be exactly want of them.
func unpackParams(b []byte, want int) ([]string, error) {
	if want < 0 || want > paramsCount {
		return nil, fmt.Errorf("%w: %d parameters", errFrame, want)
	}
	out := make([]string, 0, min(want, len(b)/lengthBytes))
	for len(b) > 0 {
		if len(b) < lengthBytes {
			return nil, fmt.Errorf("%w: parameter cut short", errFrame)
		}
		size := binary.BigEndian.Uint32(b)
		b = b[lengthBytes:]
		if uint64(size) > uint64(len(b)) || len(out) == want {
			return nil, fmt.Errorf("%w: parameter too long or too many", errFrame)
		}
		out = append(out, string(b[:size]))
		b = b[size:]
	}
	if len(out) != want {
		return nil, fmt.Errorf("%w: %d parameters instead of %d", errFrame, len(out), want)
	}
	return out, nil
}
