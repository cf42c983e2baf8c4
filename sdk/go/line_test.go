package dayfly

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

var outputLines = []string{
	`{"type":"stdout","offset":0,"data":"plain"}`,
	`{"type":"stderr","offset":17,"data":"a\nb\tc\"d\\e\/f\b\f\r\u0000\u001f\u00e9\uFFFD"}` + "\n",
	`{"type":"stdout","offset":9007199254740993,"data":"é漢字😀 and then some more of it"}`,
	`{"type":"stdout","offset":5,"data":"\ud83d\ude00"}`,
	`{"type":"stdout","offset":5,"data":"\ud83d"}`,
	`{"type":"stdout","offset":5,"data_b64":"AP/+"}`,
	`{"type":"stdout","offset":5,"data_b64":"AP/+AA=="}`,
	`{"type":"stdout","offset":5,"data_b64":"A"}`,
	`{"type":"stdout","offset":05,"data":"x"}`,
	`{"type":"stdout","offset":-5,"data":"x"}`,
	`{"type":"stdout","offset":1e3,"data":"x"}`,
	`{"type":"stdout","offset":5,"data":"x","data_b64":"AP/+"}`,
	`{"type":"stdout","offset":5,"data":"x","type":"exit"}`,
	`{"type":"stdout","offset":5,"data":"x\"}`,
	`{"type":"stdout","offset":5,"data":"x\q"}`,
	`{"type":"stdout","offset":5,"data":"\u12"}`,
	`{"type":"stdout","offset":5,"data":"\u+123"}`,
	"{\"type\":\"stdout\",\"offset\":5,\"data\":\"tab\there\"}",
	"{\"type\":\"stdout\",\"offset\":5,\"data\":\"\xff\"}",
	"{\"type\":\"stdout\",\"offset\":5,\"data_b64\":\"AP\r/+\"}",
	`{"type":"exit","exit_code":0}`,
	`{"type":"stdout"`,
	``,
}

// checkLine holds the fast reader to the JSON decoder: what it reads, that reads alike.
func checkLine(t *testing.T, line []byte) bool {
	t.Helper()
	kind, offset, data, ok := outputLine(line)
	if !ok {
		return false
	}
	var w wireEvent
	if err := json.Unmarshal(line, &w); err != nil {
		t.Fatalf("%q was read, but is not valid: %v", line, err)
	}
	want := w.DataB64
	if want == nil {
		want = []byte(w.Data)
	}
	if w.Type != kind || w.Offset != offset || !bytes.Equal(want, data) {
		t.Fatalf("%q was read as %s %d %q, want %s %d %q", line, kind, offset, data, w.Type, w.Offset, want)
	}
	return true
}

func TestOutputLine(t *testing.T) {
	for i, line := range outputLines {
		got := checkLine(t, []byte(line))
		if want := i < 3 || i == 5 || i == 6; got != want {
			t.Errorf("%q was read by the fast reader: %v, want %v", line, got, want)
		}
	}
	for n := range 70 { // every place of an escape in a word
		text := strings.Repeat("x", n) + "\n" + strings.Repeat("é", n)
		quoted, _ := json.Marshal(text)
		if !checkLine(t, []byte(`{"type":"stdout","offset":1,"data":`+string(quoted)+`}`)) {
			t.Errorf("%d characters before a line's end are not read", n)
		}
	}
}

func FuzzOutputLine(f *testing.F) {
	for _, line := range outputLines {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) { checkLine(t, line) })
}

func BenchmarkOutputLine(b *testing.B) {
	text := strings.Repeat("a line of text that is neither short nor long\n", 64<<10/46)
	quoted, _ := json.Marshal(text)
	line := []byte(`{"type":"stdout","offset":1,"data":` + string(quoted) + `}`)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, _, _, ok := outputLine(line); !ok {
			b.Fatal("not read")
		}
	}
}
