package api_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// volatile is what differs from run to run.
var volatile = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`"(sb|pr|im|ac|ke|rq|no)[a-z0-9]{20}"`), `"$1…"`},
	{regexp.MustCompile(`"dfk_[a-z0-9]{40}"`), `"dfk_…"`},
	{regexp.MustCompile(`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"`), `"TIME"`},
	{regexp.MustCompile(`("hint": )"[a-z0-9]{4}"`), `$1"…"`},
	{regexp.MustCompile(`("(remaining_ms|seq)": )\d+`), `${1}1`},
	{regexp.MustCompile(`"key:ke[a-z0-9]{20}"`), `"key:ke…"`},
}

// golden compares an answer with testdata/NAME.json.
func golden(t *testing.T, name string, body []byte) {
	t.Helper()
	var b bytes.Buffer
	if err := json.Indent(&b, body, "", "  "); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	got := b.Bytes()
	for _, v := range volatile {
		got = v.pattern.ReplaceAll(got, []byte(v.with))
	}
	file := filepath.Join("testdata", name+".json")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bytes.TrimSpace(got), bytes.TrimSpace(want)) {
		t.Errorf("%s differs:\n%s\nwant\n%s", name, got, want)
	}
}
