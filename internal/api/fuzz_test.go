package api_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

	"dayfly.dev/dayfly/internal/api"
)

// FuzzBody holds the strict parser against encoding/json: what it takes is one valid object, and texts come through unchanged.
func FuzzBody(f *testing.F) {
	for _, s := range []string{`{}`, `null`, `[]`, `{} x`, `{"timeout_minutes":1e400}`, `{"timeout_minutes":60.0}`, `{"labels":{"a":"\ud83d\ude00"}}`,
		`{"labels":{"a":"\ud800"}}`, `{"labels":{"a":"1","a":"2"}}`, "{\"labels\":{\"a\":\"\xff\"}}", `{"env":{"=":""}}`, `{"network":{"internet":null}}`, ``} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := api.CheckBodies(data); err != nil {
			if !utf8.ValidString(err.Error()) {
				t.Errorf("the error is not UTF-8: %q", err)
			}
			return
		}
		if !json.Valid(data) || !utf8.Valid(data) || bytes.TrimSpace(data)[0] != '{' {
			t.Fatalf("took %q", data)
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatalf("took %q: %v", data, err)
		}
		labels := map[string]string{}
		if raw, given := want["labels"]; given && json.Unmarshal(raw, &labels) != nil {
			t.Fatalf("took labels %q", raw)
		}
		if got, err := api.CreatedLabels(data); err != nil || !maps.Equal(got, labels) {
			t.Errorf("labels are %q, %v; want %q", got, err, labels)
		}
	})
}

// FuzzQuery shows that no query breaks the parsers, and that any path without NUL arrives byte by byte.
func FuzzQuery(f *testing.F) {
	for _, s := range []string{"", "a=%zz", "path=a+b", "label=k:v&limit=1", "path=%ff", "limit=99999999999999999999", "a;b", "cursor=***"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		_ = api.CheckQueries(s)
		got, err := api.WrittenPath(api.Escaped(s))
		if bad := s == "" || len(s) > 4096 || strings.ContainsRune(s, 0); bad != (err != nil) {
			t.Fatalf("path %q: %v", s, err)
		} else if !bad && got != s {
			t.Errorf("path %q arrived as %q", s, got)
		}
	})
}

// FuzzRange shows that a part always lies within its file.
func FuzzRange(f *testing.F) {
	for _, s := range []string{"bytes=0-", "bytes=-5", "bytes=3-2", "bytes=0-0,5-", "x", "bytes=9223372036854775807-", "bytes=-9223372036854775807"} {
		f.Add(s, int64(10))
	}
	f.Fuzz(func(t *testing.T, header string, size int64) {
		if size < 0 {
			return
		}
		offset, length, partial, ok, err := api.RangeOf(header, size)
		if err == nil && partial && ok && (offset < 0 || length < 1 || offset > size || length > size-offset) {
			t.Errorf("%q of %d gives %d+%d", header, size, offset, length)
		}
	})
}

// FuzzMove shows that paths in a body arrive byte by byte, as text or in base64, and that no other is taken.
func FuzzMove(f *testing.F) {
	f.Add("a b", "\xff%#")
	f.Add("", "x")
	f.Add("a\x00", "x")
	f.Fuzz(func(t *testing.T, from, to string) {
		body := map[string]any{"from_b64": []byte(from), "to": to}
		if !utf8.ValidString(to) {
			body = map[string]any{"from_b64": []byte(from), "to_b64": []byte(to)}
		}
		data, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		bad := func(s string) bool { return s == "" || len(s) > 4096 || strings.ContainsRune(s, 0) }
		gotFrom, gotTo, err := api.MovedPaths(data)
		if (bad(from) || bad(to)) != (err != nil) {
			t.Fatalf("%q %q: %v", from, to, err)
		}
		if err == nil && (gotFrom != from || gotTo != to) {
			t.Errorf("%q %q arrived as %q %q", from, to, gotFrom, gotTo)
		}
	})
}
