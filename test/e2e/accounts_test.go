package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	sdk "dayfly.dev/dayfly/sdk/go"
)

func TestBug17AnotherAccountsSandboxIsNotFoundOnEveryRoute(t *testing.T) {
	s, owner := shared(t)
	key, err := owner.CreateKey(t.Context(), "stranger-17", false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = owner.DeleteKey(context.Background(), key.ID) })
	b := box(t, owner, sdk.CreateOptions{Name: "owned-17", Labels: map[string]string{"secret": "label"}})
	sh(t, b, "echo mine > file; sleep 600 & true")
	process := try(t, b, "true").ID

	bodies := map[string]string{
		"exec": `{"command":"id"}`, "extend": `{"additional_minutes":1}`, "signal": `{"signal":"KILL"}`, "POST processes": `{"command":"id"}`,
		"resize": `{"cols":80,"rows":24}`, "mkdir": `{"path":"made"}`, "chmod": `{"path":"file","mode":"0600"}`,
		"move": `{"from":"file","to":"moved"}`, "search": `{"pattern":"mine"}`,
		"PATCH": `{"labels":{}}`, "PUT files": `{"path":"file","content":"x"}`,
	}
	queries := map[string]string{"content": "?path=file", "archive": "?path=file", "files": "?path=file", "stat": "?path=file", "watch": "?path=."}
	tried := 0
	for path, methods := range contractPaths(t) {
		if !strings.HasPrefix(path, "/v1/sandboxes/{id}") {
			continue
		}
		for _, method := range methods {
			last := path[strings.LastIndex(path, "/")+1:]
			url := strings.NewReplacer("{id}", b.ID, "{pid}", process, "{port}", "80").Replace(path)
			body := cmp.Or(bodies[method+" "+last], bodies[last], bodies[method])
			if method+last != "PUTfiles" {
				url += queries[last]
			}
			headers := []string{}
			if last == "stdin" || method == "PUT" && last != "files" {
				body, headers = "raw", []string{"Content-Type", "application/octet-stream"}
			}
			if last == "archive" && method == "PUT" {
				headers = []string{"Content-Type", "application/x-tar"}
			}
			a, err := request(t.Context(), s, key.Secret, method, url, body, headers...)
			if err != nil {
				t.Fatal(err)
			}
			tried++
			if a.status != http.StatusNotFound || method != "HEAD" && a.errorType() != "not_found" || strings.Contains(a.body, "label") {
				t.Errorf("bug 17: %s %s: %d %s", method, path, a.status, a.body)
			}
		}
	}
	if tried < 15 {
		t.Errorf("only %d routes were tried", tried)
	}
	if got := sh(t, b, "cat file"); got != "mine" {
		t.Errorf("the owner's file says %q", got)
	}
	stranger, err := s.ClientWith(key.Secret)
	if err != nil {
		t.Fatal(err)
	}
	for other, err := range stranger.List(t.Context(), sdk.ListOptions{IncludeEnded: true}) {
		t.Errorf("the stranger lists %v (%v)", other, err)
	}
	if err := owner.DeleteKey(t.Context(), key.ID); err != nil {
		t.Fatal(err)
	}
	_, err = stranger.Create(t.Context(), sdk.CreateOptions{})
	wantCode(t, "a revoked key", err, sdk.CodeUnauthorized)
}

// contractPaths reads the methods of each path from the API's contract.
func contractPaths(t *testing.T) map[string][]string {
	t.Helper()
	b, err := os.ReadFile("../../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]yaml.Node
	}
	if err := yaml.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for path, methods := range doc.Paths {
		for m := range methods {
			switch m = strings.ToUpper(m); m {
			case "GET", "PUT", "POST", "DELETE", "PATCH", "HEAD":
				if !strings.HasPrefix(path, "/v1") {
					path = "/v1" + path
				}
				out[path] = append(out[path], m)
			}
		}
	}
	return out
}

func TestBug122SecretsAppearNowhere(t *testing.T) {
	t.Parallel()
	s, c := own(t, "--log-level", "debug")
	create, exec, idempotent := "canary-create-1f0c", "canary-exec-77ab", "canary-key-30d1"
	b, err := c.Create(t.Context(), sdk.CreateOptions{Env: map[string]string{"TOKEN": create}, IdempotencyKey: "with-env"})
	if err != nil {
		t.Fatal(err)
	}
	key := adminKey(t, s)
	answers := ""
	note := func(a answer, err error) {
		if err != nil {
			t.Fatal(err)
		}
		answers += a.body + fmt.Sprint(a.header)
	}
	res, err := b.Exec(t.Context(), sdk.Command("test $TOKEN = "+create[:6]+`*; setsid sleep 100 >/dev/null 2>&1 & echo "$TOKEN $OTHER" | wc -c`),
		sdk.ExecOptions{Env: map[string]string{"OTHER": exec}, IdempotencyKey: "an-exec"})
	if err != nil || strings.TrimSpace(res.Stdout) != fmt.Sprint(len(create)+len(exec)+2) {
		t.Fatalf("the values do not arrive: %+v, %v", res, err)
	}
	bad := `{"env":{"TOKEN":"` + create + `"},"no_such_field":1}`
	note(request(t.Context(), s, key, "POST", "/v1/sandboxes", bad))
	note(request(t.Context(), s, key, "POST", "/v1/sandboxes", `{"env":{"A=B":"`+create+`"}}`))
	note(request(t.Context(), s, key, "POST", "/v1/sandboxes/"+b.ID+"/exec", `{"command":"exit 3","env":{"OTHER":"`+exec+`"},"cwd":"/nope"}`, "Idempotency-Key", "bad-exec"))
	note(request(t.Context(), s, key, "GET", "/v1/sandboxes/"+b.ID, ""))
	note(request(t.Context(), s, key, "GET", "/v1/sandboxes?include_ended=true", ""))
	note(request(t.Context(), s, key, "GET", "/v1/sandboxes/"+b.ID+"/processes", ""))
	note(request(t.Context(), s, key, "GET", "/v1/sandboxes/"+b.ID+"/processes/"+res.ID, ""))
	note(request(t.Context(), s, "dfk_"+idempotent, "GET", "/v1/sandboxes", ""))
	note(request(t.Context(), s, key, "GET", "/v1/sandboxes?api_key="+key, "")) // in a wrong place
	note(request(t.Context(), s, key, "GET", "/v1/keys", ""))
	if strings.Contains(answers, `"TOKEN"`) == false {
		t.Error("the name is not shown")
	}
	for _, line := range hostCommandLines(t) {
		if strings.Contains(line, exec) || strings.Contains(line, create) || strings.Contains(line, key) {
			t.Errorf("a command line on the host shows a secret: %s", line)
		}
	}
	if err := b.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	note(request(t.Context(), s, key, "GET", "/v1/sandboxes/"+b.ID, ""))
	second, err := c.CreateKey(t.Context(), "tenant-122", false)
	if err != nil {
		t.Fatal(err)
	}
	live := box(t, c, sdk.CreateOptions{Env: map[string]string{"TOKEN": create}}) // its state file must be looked at while it lives
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	alive(t, s, live.ID)
	if len(holding(t, s.Data, "with-env")) == 0 {
		t.Error("the idempotency key is in no file: this test does not look where records are")
	}
	secrets := map[string]string{"env of create": create, "env of exec": exec, "key": key, "second key": second.Secret, "unknown key": idempotent}
	for what, secret := range secrets {
		if strings.Contains(answers, secret) {
			t.Errorf("bug 122: an answer shows the %s", what)
		}
		for _, f := range holding(t, s.Data, secret) {
			if f != filepath.Join(s.Data, "admin.key") {
				t.Errorf("bug 122: %s holds the %s", f, what)
			}
		}
		for _, f := range holding(t, filepath.Join("/run/dayfly", s.Installation), secret) {
			t.Errorf("bug 122: %s holds the %s", f, what)
		}
	}
	again(t, s)
}

// holding gives the files below dir, but for images and disks, that hold text.
func holding(t *testing.T, dir, text string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path == filepath.Join(dir, d.Name()) && (d.Name() == "images" || d.Name() == "pool") {
			return filepath.SkipDir
		}
		if !d.Type().IsRegular() || strings.HasSuffix(path, ".img") || strings.HasPrefix(d.Name(), "pool") {
			return nil
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(text)) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// hostCommandLines are those of every process outside sandboxes.
func hostCommandLines(t *testing.T) []string {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var out []string
	for _, f := range files {
		group, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "cgroup"))
		b, err := os.ReadFile(f)
		if err == nil && !strings.Contains(string(group), "/dayfly-") {
			out = append(out, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return out
}

func TestBug7AnIdempotencyKeyIsOneMachine(t *testing.T) {
	s, c := shared(t)
	key := adminKey(t, s)
	ids := make(chan string, 6)
	for range cap(ids) {
		go func() {
			a, err := request(context.WithoutCancel(t.Context()), s, key, "POST", "/v1/sandboxes", `{"timeout_seconds":60}`, "Idempotency-Key", "five-at-once")
			if err != nil {
				t.Error(err)
			}
			ids <- fmt.Sprint(a.status, " ", a.field("id"))
		}()
	}
	seen := map[string]bool{}
	for range cap(ids) {
		seen[<-ids] = true
	}
	if len(seen) != 1 || !strings.HasPrefix(keyOf(seen), "201 sb") {
		t.Errorf("bug 7: the answers are %v", seen)
	}
	a, err := request(t.Context(), s, key, "POST", "/v1/sandboxes", `{"timeout_seconds":61}`, "Idempotency-Key", "five-at-once")
	if err != nil || a.status != http.StatusUnprocessableEntity || a.errorType() != "idempotency_key_reused" {
		t.Errorf("bug 7: another body: %d %s (%v)", a.status, a.body, err)
	}
	if _, err := c.Delete(t.Context(), strings.TrimPrefix(keyOf(seen), "201 ")); err != nil {
		t.Error(err)
	}
	sameLists(t, s, c)
}

func keyOf(m map[string]bool) string {
	for k := range m {
		return k
	}
	return ""
}
