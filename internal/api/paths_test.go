package api_test

import (
	"encoding/base64"
	"net/url"
	"strings"
	"testing"
)

// files is a sandbox with a few files.
func (b *bed) files(t *testing.T) (at string) {
	t.Helper()
	at = "/v1/sandboxes/" + b.sandbox("{}") + "/files"
	for path, content := range map[string]string{"a.txt": "one\ntwo needle\nthree\n", "d/b.go": "needle\n", "d/.hidden": "needle\n", "d/c": "x\x00needle"} {
		b.send("PUT", at+"/content?path="+url.QueryEscape(path), strings.NewReader(content)).ok(t, 200)
	}
	return at
}

func TestStatAndChanges(t *testing.T) {
	b := newBed(t, nil)
	at := b.files(t)
	if got := b.get(at+"/stat?path=d").ok(t, 200).json(t); got["type"] != "directory" || got["path"] != "/d" || got["replayed"] != nil {
		t.Errorf("stat %v", got)
	}
	b.get(at+"/stat?path=none").want(t, 404, "file_not_found")
	made := b.json("POST", at+"/mkdir", `{"path":"x/y","mode":"0700"}`, "Idempotency-Key", "m").ok(t, 200).json(t)
	if made["type"] != "directory" || made["mode"] != "0700" {
		t.Errorf("made %v", made)
	}
	again := b.json("POST", at+"/mkdir", `{"path":"x/y","mode":"0700"}`, "Idempotency-Key", "m").ok(t, 200)
	if v := again.json(t); v["replayed"] != true || v["path"] != made["path"] || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("again %v", v)
	}
	b.json("POST", at+"/mkdir", `{"path":"p/q","parents":false}`).want(t, 409, "file_conflict")
	b.json("POST", at+"/move", `{"from":"a.txt","to":"d/b.go"}`).want(t, 409, "file_conflict")
	if got := b.json("POST", at+"/move", `{"from":"a.txt","to":"d/b.go","overwrite":true}`, "Idempotency-Key", "v").ok(t, 200).json(t); got["path"] != "/d/b.go" {
		t.Errorf("moved %v", got)
	}
	if got := b.json("POST", at+"/move", `{"from":"a.txt","to":"d/b.go","overwrite":true}`, "Idempotency-Key", "v").ok(t, 200).json(t); got["replayed"] != true {
		t.Errorf("moved again %v", got) // and not: there is no such file
	}
	if got := b.json("POST", at+"/chmod", `{"path":"d","mode":"1750","recursive":true}`).ok(t, 200).json(t); got["mode"] != "1750" {
		t.Errorf("mode %v", got)
	}
	odd := "odd \xff+%#\n"
	b64 := base64.StdEncoding.EncodeToString([]byte(odd))
	if got := b.json("POST", at+"/mkdir", `{"path_b64":"`+b64+`"}`).ok(t, 200).json(t); got["name_b64"] != b64 {
		t.Errorf("made %v", got)
	}
	if got := b.json("POST", at+"/move", `{"from_b64":"`+b64+`","to":"even"}`).ok(t, 200).json(t); got["name"] != "even" || got["name_b64"] != nil {
		t.Errorf("moved %v", got)
	}
	if got := b.get(at+"/stat?path="+url.QueryEscape("even")).ok(t, 200).json(t); got["type"] != "directory" {
		t.Errorf("stat %v", got)
	}
}

func TestPathFieldsAreStrict(t *testing.T) {
	b := newBed(t, nil)
	at := b.files(t)
	long := strings.Repeat("p", 4097)
	for _, tt := range []struct{ route, body, fields string }{
		{"mkdir", `{}`, "path"},
		{"mkdir", `{"path":"","mode":"","parents":1}`, "path mode parents"},
		{"mkdir", `{"path":"x","path_b64":"eA=="}`, "path_b64"},
		{"mkdir", `{"path_b64":"x"}`, "path_b64"},
		{"mkdir", `{"path_b64":"AA=="}`, "path_b64"},
		{"mkdir", `{"path":"a\u0000b","mode":"0999"}`, "path mode"},
		{"mkdir", `{"path":"` + long + `","mode":755}`, "path mode"},
		{"move", `{}`, "from to"},
		{"move", `{"from":"a","to":"","overwrite":"yes","x":1}`, "to overwrite x"},
		{"chmod", `{"path":"a"}`, "mode"},
		{"chmod", `{"path":"a","mode":"10000","recursive":0}`, "mode recursive"},
		{"search", `{}`, "pattern"},
		{"search", `{"pattern":"","path":"","context":11,"limit":0,"include":"x","exclude":[""],"literal":1}`, "pattern path context limit include exclude[0] literal"},
		{"search", `{"pattern":"` + strings.Repeat("x", 4097) + `","include":["a"` + strings.Repeat(`,"a"`, 32) + `]}`, "pattern include"},
		{"find", `{"type":"dir","min_bytes":-1,"max_bytes":0,"modified_after":"yesterday","modified_before":1,"max_depth":0,"limit":1001}`,
			"type min_bytes max_bytes modified_after modified_before max_depth limit"},
		{"find", `{"names":[1],"pattern":"x"}`, "names[0] pattern"},
	} {
		t.Run(tt.route+" "+shown(tt.body), func(t *testing.T) {
			sameNames(t, "fields", strings.Fields(tt.fields), keys(b.json("POST", at+"/"+tt.route, tt.body).want(t, 400, "invalid_request").fields(t)))
		})
	}
	for _, query := range []string{"/stat", "/stat?path=", "/stat?path=%00", "/stat?path=a&path=b", "/watch?path=a&recursive=1", "/watch?path=.&x=1"} {
		b.get(at+query).want(t, 400, "invalid_request")
	}
}

func shown(s string) string { return s[:min(len(s), 40)] }

func TestSearchAndFind(t *testing.T) {
	b := newBed(t, nil)
	at := b.files(t)
	found := b.json("POST", at+"/search", `{"pattern":"nee.le","context":1}`).ok(t, 200)
	golden(t, "search", found.body)
	for body, want := range map[string]int{
		`{"pattern":"NEEDLE","ignore_case":true,"hidden":true}`: 3, `{"pattern":"nee.le","literal":true}`: 0, `{"pattern":"needle","include":["*.go"]}`: 1,
		`{"pattern":"needle","exclude":["d"]}`: 1, `{"pattern":"needle","path":"d"}`: 1, `{"pattern":"needle","limit":1}`: 1,
	} {
		got := b.json("POST", at+"/search", body).ok(t, 200).json(t)
		if n := len(got["matches"].([]any)); n != want || got["truncated"] != (body == `{"pattern":"needle","limit":1}`) {
			t.Errorf("%s finds %v", body, got)
		}
	}
	b.json("POST", at+"/search", `{"pattern":"("}`).want(t, 400, "invalid_request")
	b.send("PUT", at+"/content?path=latin", strings.NewReader("before \xe9\nneedle \xe8\nafter\n")).ok(t, 200)
	m := b.json("POST", at+"/search", `{"pattern":"needle","path":".","include":["latin"],"context":1}`).ok(t, 200).json(t)["matches"].([]any)[0].(map[string]any)
	if text, _ := base64.StdEncoding.DecodeString(m["text_b64"].(string)); string(text) != "needle \xe8" || m["text"] != "needle \uFFFD" {
		t.Errorf("match %v", m)
	}
	if before, _ := base64.StdEncoding.DecodeString(m["before_b64"].([]any)[0].(string)); string(before) != "before \xe9" || m["after_b64"] != nil {
		t.Errorf("match %v", m)
	}
	for body, want := range map[string]int{
		`{}`: 5, `{"names":["*.go","*.txt"]}`: 2, `{"type":"directory"}`: 1, `{"max_depth":1,"type":"file"}`: 2, `{"min_bytes":8}`: 4, `{"hidden":true,"names":[".h*"]}`: 1,
		`{"max_bytes":7,"type":"file"}`: 1, `{"modified_before":"2001-01-01T00:00:00Z"}`: 0, `{"modified_after":"2001-01-01T00:00:00.5+02:00","exclude":["d"]}`: 2, `{"limit":2}`: 2,
	} {
		got := b.json("POST", at+"/find", body).ok(t, 200).json(t)
		if n := len(got["entries"].([]any)); n != want || got["truncated"] != (body == `{"limit":2}`) {
			t.Errorf("%s finds %d: %v", body, n, got)
		}
	}
}

func TestWatch(t *testing.T) {
	b := newBed(t, nil)
	at := b.files(t)
	id := strings.Split(at, "/")[3]
	f := b.followEvents(t, at+"/watch?path=d&recursive=true")
	if e := f.want("start"); e["path"] != "/d" {
		t.Errorf("start %v", e)
	}
	b.json("POST", at+"/mkdir", `{"path":"d/new"}`).ok(t, 200)
	if e := f.want("created"); e["path"] != "/d/new" || e["file_type"] != "directory" {
		t.Errorf("created %v", e)
	}
	b.json("POST", at+"/move", `{"from":"d/b.go","to":"d/`+strings.Repeat("n", 200)+`"}`).ok(t, 200)
	if e := f.want("moved"); e["from"] != "/d/b.go" {
		t.Errorf("moved %v", e)
	}
	b.node.machine(id).unwatched()
	f.want("end")
	f.wantEnd()
	b.get(at+"/watch?path=none").want(t, 404, "file_not_found")
	for _, accept := range []string{"application/x-ndjson", "text/event-stream"} { // held against the contract
		answers := make(chan answer)
		go func() { answers <- b.get(at+"/watch?path=d", "Accept", accept) }()
		m := b.node.machine(id)
		m.awaitWatch(t)
		b.json("POST", at+"/mkdir", `{"path":"d/`+strings.ReplaceAll(accept, "/", "")+`"}`).ok(t, 200)
		m.unwatched()
		if a := <-answers; kinds(parseEvents(t, a)) != "start created end" || !strings.HasPrefix(a.header.Get("Content-Type"), accept) {
			t.Errorf("%s: %s", accept, a.body)
		}
	}
}
