package api_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"dayfly.dev/dayfly/internal/api"
)

// FuzzOutputEvent: what is written of output is JSON that gives the bytes back, in the shorter of the two forms.
func FuzzOutputEvent(f *testing.F) {
	for _, s := range []string{"", "a", "line\n", "\x00", strings.Repeat("\x01", 9), strings.Repeat("\x01", 600), "1\n2\n3\n", "tab\t\"quoted\" \\ \x7f\u2028é日😀", "\xff", "1234567\n", "12345678\n9",
		strings.Repeat("plain text of some length ", 9), strings.Repeat("\x1f \x20!\"#[\\]", 7), "caf\xc3"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		prefix := []byte("before")
		line := api.OutputLine(bytes.Clone(prefix), data)
		if !bytes.HasPrefix(line, prefix) {
			t.Fatal("what was in the buffer is gone")
		}
		line = line[len(prefix):]
		var event struct {
			Type   string
			Offset int64
			Data   *string
			B64    *[]byte `json:"data_b64"`
		}
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatalf("%q of %q: %v", line, data, err)
		}
		if event.Type != "stdout" || event.Offset != 7 || (event.Data == nil) == (event.B64 == nil) {
			t.Fatalf("%q", line)
		}
		asText, err := json.Marshal(string(data)) // escapes < > & and U+2028 too, at 6 bytes each
		if err != nil {
			t.Fatal(err)
		}
		b64 := base64.StdEncoding.EncodedLen(len(data)) + len(`""`)
		if event.Data != nil {
			if *event.Data != string(data) || !utf8.Valid(line) {
				t.Fatalf("%q came back as %q", data, *event.Data)
			}
			if got := bytes.Index(line, []byte(`"data":`)); len(line)-got-len(`"data":}`) > b64 && len(data) > 512 {
				t.Errorf("text takes %d bytes, base64 would take %d", len(line)-got, b64)
			}
			return
		}
		if !bytes.Equal(*event.B64, data) {
			t.Fatalf("%q came back as %q", data, *event.B64)
		}
		if utf8.Valid(data) && (len(asText) <= b64 || len(data) <= 512) {
			t.Errorf("base64 takes %d bytes, text would take %d", b64, len(asText))
		}
	})
}

func BenchmarkOutputEvent(b *testing.B) {
	for name, data := range map[string][]byte{
		"log":    []byte(strings.Repeat("2026-01-01T00:00:00Z INFO a line of a log with \"quotes\" and some more text\n", 850)),
		"text":   []byte(strings.Repeat("x", 64<<10)),
		"zeros":  make([]byte, 64<<10),
		"binary": bytes.Repeat([]byte("\xff\x00\x80\x10"), 16<<10),
		"cjk":    []byte(strings.Repeat("日本語の文章。\n", 3000)),
	} {
		b.Run(name, func(b *testing.B) {
			var buf []byte
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				buf = api.OutputLine(buf[:0], data)
			}
		})
	}
}
