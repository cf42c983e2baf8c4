package e2e_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// wrongTimes are values that a time in a request must not have, as JSON. Numbers beyond every range are among them.
var wrongTimes = []string{"0", "-1", "-0.0001", "0.5", "1e400", "1e-9", `"60"`, "null", "9223372036854775808", "[]", "true", "NaN"}

func TestBug48AWrongTimeIsRefusedAndMakesNothing(t *testing.T) {
	s, c := own(t)
	key := adminKey(t, s)
	b := box(t, c, sdk.CreateOptions{})
	base := "/v1/sandboxes/" + b.ID
	before := *mustGet(t, c, b.ID).ExpiresAt
	for _, tt := range []struct{ path, field, rest string }{
		{"/v1/sandboxes", "timeout_minutes", ""},
		{"/v1/sandboxes", "timeout_seconds", ""},
		{base + "/extend", "additional_minutes", ""},
		{base + "/extend", "additional_seconds", ""},
		{base + "/exec", "timeout_ms", `,"command":"touch made"`},
		{base + "/processes", "timeout_ms", `,"command":"touch made"`},
	} {
		t.Run(tt.path+" "+tt.field, func(t *testing.T) {
			for _, value := range wrongTimes {
				a, err := request(t.Context(), s, key, "POST", tt.path, fmt.Sprintf(`{"%s":%s%s}`, tt.field, value, tt.rest))
				if err != nil || a.status != http.StatusBadRequest || a.errorType() != "invalid_request" {
					t.Errorf("%s: %d %s (%v)", value, a.status, a.body, err)
				}
				if value != "NaN" && !strings.Contains(a.body, tt.field) { // NaN is no JSON at all
					t.Errorf("%s: the field is not named: %s", value, a.body)
				}
			}
		})
	}
	sh(t, b, "! test -e made")
	if got := *mustGet(t, c, b.ID).ExpiresAt; got.Sub(before).Abs() > time.Second {
		t.Errorf("the lease moved from %s to %s", before, got)
	}
	if machines, err := s.Machines(); err != nil || !slices.Equal(machines, []string{b.ID}) {
		t.Errorf("the host has %v (%v)", machines, err)
	}
	sameLists(t, s, c)
}

// listed gives the ids of one page.
func listed(t *testing.T, s *host.Server, key, query string) (ids []string, next string) {
	t.Helper()
	a, err := request(t.Context(), s, key, "GET", "/v1/sandboxes?"+query, "")
	if err != nil || a.status != http.StatusOK {
		t.Fatalf("?%s: %d %s (%v)", query, a.status, a.body, err)
	}
	var page struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
		Next *string `json:"next_cursor"`
	}
	if err := json.Unmarshal([]byte(a.body), &page); err != nil {
		t.Fatal(err)
	}
	for _, one := range page.Data {
		ids = append(ids, one.ID)
	}
	if page.Next != nil {
		next = *page.Next
	}
	return ids, next
}

func TestBug49AListHoldsExactlyWhatWasAskedFor(t *testing.T) {
	s, c := own(t)
	key := adminKey(t, s)
	boxA := box(t, c, sdk.CreateOptions{Labels: map[string]string{"team": "a:b", "n": "1"}})
	boxB := box(t, c, sdk.CreateOptions{Labels: map[string]string{"team": "c"}})
	boxGone := box(t, c, sdk.CreateOptions{Labels: map[string]string{"team": "c"}})
	if err := boxGone.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, b, gone := boxA.ID, boxB.ID, boxGone.ID
	for query, want := range map[string][]string{
		"": {a, b}, "label=team:a:b": {a}, "label=team:c": {b}, "label=team:c&label=n:1": nil, "label=none:x": nil, "label=team:": nil,
		"label=n:1&label=n:2": nil, "status=running": {a, b}, "status=deleted": {gone}, "status=failed": nil, "status=provisioning": nil,
		"status=deleted&status=running": {a, b, gone}, "include_ended=true": {a, b, gone}, "status=deleted&label=team:c": {gone}, "name=nobody": nil,
	} {
		got, _ := listed(t, s, key, query)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("?%s lists %v, want %v", query, got, want)
		}
	}
	for _, query := range []string{"label=team", "label=:x", "status=Running", "status=", "limit=0", "limit=x", "stat=running", "cursor=zz", "limit=1&limit=2"} {
		if r, err := request(t.Context(), s, key, "GET", "/v1/sandboxes?"+query, ""); err != nil || r.status != http.StatusBadRequest {
			t.Errorf("?%s: %d %s (%v)", query, r.status, r.body, err)
		}
	}
	// Page by page, while one is made and one goes.
	first, next := listed(t, s, key, "limit=1")
	box(t, c, sdk.CreateOptions{})
	if err := c.Sandbox(first[0]).Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{first[0]: 1}
	for next != "" {
		var page []string
		page, next = listed(t, s, key, "limit=1&cursor="+url.QueryEscape(next))
		for _, id := range page {
			seen[id]++
		}
	}
	if seen[a] != 1 || seen[b] != 1 {
		t.Errorf("page by page: %v", seen)
	}
}

func TestBug51OneNameIsOneSandbox(t *testing.T) {
	s, c := own(t)
	key := adminKey(t, s)
	// race creates ten of the name at once and gives the id of the one.
	race := func(name string) string {
		answers := make(chan answer, 10)
		var all sync.WaitGroup
		for range cap(answers) {
			all.Go(func() {
				a, err := request(context.WithoutCancel(t.Context()), s, key, "POST", "/v1/sandboxes", `{"name":"`+name+`"}`)
				if err != nil {
					t.Error(err)
				}
				answers <- a
			})
		}
		all.Wait()
		close(answers)
		var made []string
		for a := range answers {
			switch {
			case a.status == http.StatusCreated:
				made = append(made, a.field("id"))
			case a.status != http.StatusConflict || a.errorType() != "conflict":
				t.Errorf("%d %s", a.status, a.body)
			}
		}
		if len(made) != 1 {
			t.Fatalf("%d sandboxes of one name were made", len(made))
		}
		return made[0]
	}
	first := race("x")
	if ids, _ := listed(t, s, key, "name=x"); !slices.Equal(ids, []string{first}) {
		t.Errorf("the name is that of %v, want %s", ids, first)
	}
	a, err := request(t.Context(), s, key, "POST", "/v1/sandboxes", `{"name":"x"}`)
	if err != nil || a.status != http.StatusConflict || !strings.Contains(a.body, first) {
		t.Errorf("a conflict does not name %s: %d %s (%v)", first, a.status, a.body, err)
	}
	// While it goes, each create either finds the name taken or takes it.
	var all sync.WaitGroup
	all.Go(func() {
		if err := c.Sandbox(first).Delete(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	var mu sync.Mutex
	var made []string
	for range 10 {
		all.Go(func() {
			a, err := request(context.WithoutCancel(t.Context()), s, key, "POST", "/v1/sandboxes", `{"name":"x"}`)
			if err != nil || a.status != http.StatusCreated && a.status != http.StatusConflict {
				t.Errorf("while it goes: %d %s (%v)", a.status, a.body, err)
			}
			if a.status == http.StatusCreated {
				mu.Lock()
				defer mu.Unlock()
				made = append(made, a.field("id"))
			}
		})
	}
	all.Wait()
	if len(made) > 1 {
		t.Errorf("%v have one name", made)
	}
	if ids, _ := listed(t, s, key, "name=x"); !slices.Equal(ids, made) {
		t.Errorf("the name is that of %v, want %v", ids, made)
	}
	removeAll(t, c)
}

// silentMax is how long a hop between client and server lets a connection be silent in these tests: more than the server's own
// limit of 15 seconds, less than the command below takes.
const silentMax = 25 * time.Second

// impatient is a connection that breaks when nothing came for silentMax, as with an impatient proxy.
type impatient struct{ net.Conn }

func (c impatient) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(silentMax)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// throughProxy makes a request over a connection that breaks on silence, and gives its last line.
func throughProxy(t *testing.T, s *host.Server, method, path, body string, headers ...string) string {
	t.Helper()
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return impatient{c}, err
	}
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminKey(t, s))
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Errorf("%s: %v", path, err)
		return ""
	}
	defer resp.Body.Close()
	last := ""
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if strings.TrimSpace(lines.Text()) != "" {
			last = lines.Text()
		}
	}
	if err := lines.Err(); err != nil {
		t.Errorf("%s: %v", path, err)
	}
	return last
}

func TestBug43NoSilenceOnTheWayCutsACommand(t *testing.T) {
	t.Parallel()
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	base := "/v1/sandboxes/" + b.ID
	const command = `{"command":"sleep 35; echo done","timeout_ms":120000}`
	waiting, err := request(t.Context(), s, adminKey(t, s), "POST", base+"/processes", `{"command":"sleep 35; exit 3"}`)
	if err != nil || waiting.status != http.StatusCreated {
		t.Fatalf("%d %s (%v)", waiting.status, waiting.body, err)
	}
	process := base + "/processes/" + waiting.field("id")
	for _, tt := range []struct {
		name, method, path, body, want string
		headers                        []string
	}{
		{"exec", "POST", base + "/exec", command, `"stdout":"done\n"`, nil},
		{"NDJSON", "POST", base + "/exec", command, `"exit_code":0`, []string{"Accept", "application/x-ndjson"}},
		{"events", "POST", base + "/exec", command, `"exit_code":0`, []string{"Accept", "text/event-stream"}},
		{"output", "GET", process + "/output?follow=true", "", `"exit_code":3`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := throughProxy(t, s, tt.method, tt.path, tt.body, tt.headers...); !strings.Contains(got, tt.want) {
				t.Errorf("it ended in %q, want %s", got, tt.want)
			}
		})
	}
}

func TestBug27TheTimeoutIsTheEndOnEveryWay(t *testing.T) {
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	const late = "sleep 4; touch late-"
	if res, err := b.Exec(t.Context(), sdk.Command(late+"sdk"), sdk.ExecOptions{Timeout: time.Second}); err != nil || !res.TimedOut || res.ExitCode == 0 {
		t.Errorf("SDK: %+v, %v", res, err)
	}
	a, err := request(t.Context(), s, adminKey(t, s), "POST", "/v1/sandboxes/"+b.ID+"/exec", `{"command":"`+late+`api","timeout_ms":1000}`)
	if err != nil || a.status != http.StatusOK || !strings.Contains(a.body, `"timed_out":true`) {
		t.Errorf("API: %d %s (%v)", a.status, a.body, err)
	}
	if out := s.Dayfly(t.Context(), "exec", "--timeout", "1s", b.ID, "--", "sh", "-c", late+"cli"); out.Code == 0 {
		t.Errorf("CLI: exit %d: %s%s", out.Code, out.Stdout, out.Stderr)
	}
	if got := sh(t, b, "sleep 4.5; ls"); got != "" {
		t.Errorf("went on after its timeout: %s", got)
	}
}

func TestBug25AClosedOrSilentInputNeverHangsTheCLI(t *testing.T) {
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	for _, tt := range []struct {
		name   string
		args   []string
		closed bool
		code   func(int) bool
		stdout string
	}{
		{"a command that reads nothing", []string{"exec", b.ID, "--", "echo", "hi"}, false, func(n int) bool { return n == 0 }, "hi\n"},
		{"one that reads, with a timeout", []string{"exec", "--timeout", "1s", b.ID, "--", "cat"}, false, func(n int) bool { return n != 0 }, ""},
		{"one that reads a closed input", []string{"exec", b.ID, "--", "cat"}, true, func(n int) bool { return n == 0 }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			run := host.Command{Args: tt.args}
			if !tt.closed {
				run.Stdin = openPipe(t)
			}
			out := s.Run(ctx, run)
			if ctx.Err() != nil || !tt.code(out.Code) || out.Stdout != tt.stdout {
				t.Errorf("exit %d: %q %s (%v)", out.Code, out.Stdout, out.Stderr, ctx.Err())
			}
		})
	}
}

func TestBug14BytesThatAreNoTextArriveWhole(t *testing.T) {
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	a, err := request(t.Context(), s, adminKey(t, s), "POST", "/v1/sandboxes/"+b.ID+"/exec", `{"command":"printf 'a\\377\\376b'; exit 3"}`)
	var out struct {
		ExitCode  int    `json:"exit_code"`
		Stdout    string `json:"stdout"`
		StdoutB64 string `json:"stdout_b64"`
	}
	if err != nil || json.Unmarshal([]byte(a.body), &out) != nil {
		t.Fatalf("%d %s (%v)", a.status, a.body, err)
	}
	exact, err := base64.StdEncoding.DecodeString(out.StdoutB64)
	if out.ExitCode != 3 || err != nil || string(exact) != "a\xff\xfeb" || out.Stdout != "a\uFFFD\uFFFDb" && out.Stdout != "a\uFFFDb" {
		t.Errorf("%s", a.body)
	}
	res := try(t, b, "head -c 4096 /dev/urandom | tee noise")
	got, err := b.ReadFile(t.Context(), "noise", 1<<20)
	if err != nil || string(got) != res.Stdout {
		t.Errorf("%d and %d bytes differ (%v)", len(got), len(res.Stdout), err)
	}
}

func TestBug13TextIsRebuiltFromEveryPiece(t *testing.T) {
	_, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	for command, want := range map[string]string{
		`python3 -c "print('☕'*100000)"`:             strings.Repeat("☕", 100000) + "\n",
		`printf 'caf\303'; sleep 0.2; printf '\251'`: "café",
	} {
		if res := try(t, b, command); res.Stdout != want {
			t.Errorf("%s: %d bytes, want %d", command, len(res.Stdout), len(want))
		}
		stream, err := b.ExecStream(t.Context(), sdk.Command(command), sdk.ExecOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		if exit, err := stream.CopyTo(&got, &got); err != nil || exit.ExitCode != 0 || got.String() != want {
			t.Errorf("%s streamed: %d bytes, want %d (%v)", command, got.Len(), len(want), err)
		}
		_ = stream.Close()
	}
}

func TestBug91OutputFlowsAfterAPause(t *testing.T) {
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	base := "/v1/sandboxes/" + b.ID + "/processes"
	a, err := request(t.Context(), s, adminKey(t, s), "POST", base, `{"command":"cat","stdin_open":true}`)
	if err != nil || a.status != http.StatusCreated {
		t.Fatalf("%d %s (%v)", a.status, a.body, err)
	}
	id := a.field("id")
	pause(t, s, b)
	resume(t, s, b)
	out := outputOf(t, s, base+"/"+id+"/output?follow=true")
	for _, text := range []string{"x", strings.Repeat("y", 8000), "short", strings.Repeat("z", 1<<20), "last"} {
		if a, err := request(t.Context(), s, adminKey(t, s), "POST", base+"/"+id+"/stdin", text+"\n", "Content-Type", "application/octet-stream"); err != nil || a.status >= 300 {
			t.Fatalf("stdin: %d %s (%v)", a.status, a.body, err)
		}
		var got strings.Builder
		for !strings.HasSuffix(got.String(), "\n") {
			var e struct {
				Type, Data string
				DataB64    []byte `json:"data_b64"`
			}
			if err := out.Decode(&e); err != nil || e.Type == "dropped" || e.Type == "error" {
				t.Fatalf("after %d bytes of %d: %+v, %v", got.Len(), len(text)+1, e, err)
			}
			got.WriteString(e.Data + string(e.DataB64))
		}
		if got.String() != text+"\n" {
			t.Fatalf("%d bytes came back as %d", len(text)+1, got.Len())
		}
	}
}

// outputOf reads a stream of events. It ends with the test.
func outputOf(t *testing.T, s *host.Server, path string) *json.Decoder {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminKey(t, s))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", path, resp.Status)
	}
	return json.NewDecoder(resp.Body)
}

func TestBug92NoCommandIsLeftWithoutAnOwner(t *testing.T) {
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	const count = 30
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range count {
		stream, err := b.ExecStream(ctx, sdk.Argv("sleep", "10000"), sdk.ExecOptions{OnDisconnect: sdk.DisconnectKill})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Next(); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			_, _ = stream.Next()
			_ = stream.Close()
		})
	}
	stays, err := request(t.Context(), s, adminKey(t, s), "POST", "/v1/sandboxes/"+b.ID+"/processes", `{"argv":["sleep","10001"]}`)
	if err != nil || stays.status != http.StatusCreated {
		t.Fatalf("%d %s (%v)", stays.status, stays.body, err)
	}
	leave()
	all.Wait()
	within(t, 20*time.Second, "what nobody owns has ended", func() (bool, string) {
		got := sh(t, b, "pgrep -xfc 'sleep 10000' || true")
		return got == "0", got
	})
	if got := sh(t, b, "pgrep -xfc 'sleep 10001'"); got != "1" {
		t.Errorf("a background process: %s run", got)
	}
	a, err := request(t.Context(), s, adminKey(t, s), "GET", "/v1/sandboxes/"+b.ID+"/processes/"+stays.field("id"), "")
	if err != nil || a.field("status") != "running" {
		t.Errorf("it is listed as %s (%v)", a.body, err)
	}
}
