package dayfly

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzAttach: whatever frames a server sends, each a line here, output comes in order and each byte once, and every gap is told.
func FuzzAttach(f *testing.F) {
	f.Add([]byte("{\"type\":\"start\",\"stdout_offset\":3}\n\x01abc\n{\"type\":\"dropped\",\"stream\":\"stdout\",\"offset\":6,\"bytes\":2}\n\x01def"))
	f.Add([]byte("{\"type\":\"start\",\"stdout_offset\":-9223372036854775808}\n\x01a\n\x02\n\x01"))
	f.Add([]byte("{\"type\":\"start\"}\n{\"type\":\"dropped\",\"stream\":\"stdout\",\"offset\":9223372036854775807,\"bytes\":9223372036854775807}\n\x01abc"))
	f.Add([]byte("{\"type\":\"start\",\"stdout_offset\":5}\n\x01abc\n{\"type\":\"start\",\"stdout_offset\":2}\n\x01abcdefgh"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		a := &Attachment{pieces: newPieces()}
		for _, frame := range bytes.Split(stream, []byte("\n")) {
			if len(frame) > 0 && frame[0] > 2 {
				var text attachText
				if json.Unmarshal(frame, &text) != nil || text.Type == EventExit {
					continue // its end needs a connection
				}
				_ = a.text(nil, text)
			} else {
				_ = a.data(frame)
			}
		}
		next := map[EventType]int64{}
		for ev, ok := a.pop(); ok; ev, ok = a.pop() {
			of, size := ev.Type, int64(len(ev.Data))
			if ev.Type == EventDropped {
				of, size = ev.Of, ev.Bytes
			}
			if at, seen := next[of]; seen && at != ev.Offset || size <= 0 && ev.Type == EventDropped {
				t.Fatalf("%s of %d bytes at %d, want it at %d", ev.Type, size, ev.Offset, at)
			}
			next[of] = ev.Offset + size
		}
	})
}
