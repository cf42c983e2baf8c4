package e2e_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// TestBug74BytesAreBytesOnEveryWay is bug 81 too: content and name come through API, SDK and CLI unchanged.
func TestBug74BytesAreBytesOnEveryWay(t *testing.T) {
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	var content []byte
	for v := range 256 {
		content = append(content, bytes.Repeat([]byte{byte(v)}, 4<<10)...)
	}
	content = append(content, "NUL \x00, lone \r, half a character \xc3"...)
	local := writeFile(t, "local", string(content))
	const base = "a b+c%20#?&é\u202e日本 "
	ways := map[string]struct {
		put, get func(name string) ([]byte, error)
	}{
		"API": {
			func(name string) ([]byte, error) {
				a, err := request(t.Context(), s, adminKey(t, s), "PUT", contentPath(b, name), string(content), "Content-Type", "application/octet-stream")
				if err == nil && a.status != http.StatusOK {
					err = fmt.Errorf("%d %s", a.status, a.body)
				}
				return nil, err
			},
			func(name string) ([]byte, error) {
				a, err := request(t.Context(), s, adminKey(t, s), "GET", contentPath(b, name), "")
				return []byte(a.body), err
			},
		},
		"SDK": {
			func(name string) ([]byte, error) {
				_, err := b.WriteFile(t.Context(), name, content, 0)
				return nil, err
			},
			func(name string) ([]byte, error) { return b.ReadFile(t.Context(), name, 16<<20) },
		},
		"CLI": {
			func(name string) ([]byte, error) { return nil, cp(t, s, local, b.ID+":"+name) },
			func(name string) ([]byte, error) {
				to := filepath.Join(t.TempDir(), "back")
				if err := cp(t, s, b.ID+":"+name, to); err != nil {
					return nil, err
				}
				return os.ReadFile(to)
			},
		},
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	for way, with := range ways {
		name := base + way
		if _, err := with.put(name); err != nil {
			t.Errorf("%s: %v", way, err)
			continue
		}
		res, err := b.Exec(t.Context(), sdk.Argv("sha256sum", "-z", "--", name), sdk.ExecOptions{})
		if err != nil || !strings.HasPrefix(res.Stdout, sum) {
			t.Errorf("%s: inside it is another: %+v (%v)", way, res, err)
		}
		for back, other := range ways {
			if got, err := other.get(name); err != nil || !bytes.Equal(got, content) {
				t.Errorf("put by %s, got by %s: %d of %d bytes (%v)", way, back, len(got), len(content), err)
			}
		}
	}
}

func contentPath(b *sdk.Sandbox, name string) string {
	return "/v1/sandboxes/" + b.ID + "/files/content?path=" + url.QueryEscape(name)
}

func cp(t *testing.T, s *host.Server, from, to string) error {
	t.Helper()
	if out := s.Dayfly(t.Context(), "cp", from, to); out.Code != 0 {
		return fmt.Errorf("exit %d: %s", out.Code, out.Stderr)
	}
	return nil
}

// TestBug7TheSDKKeepsItsKeyOverItsOwnRetries loses the first answers to a create on the way.
func TestBug7TheSDKKeepsItsKeyOverItsOwnRetries(t *testing.T) {
	s, c := own(t)
	target, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	var lost atomic.Int32
	var keys sync.Map
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			if r.In.Method == http.MethodPost {
				keys.Store(r.In.Header.Get("Idempotency-Key"), true)
			}
		},
		ModifyResponse: func(resp *http.Response) error {
			if resp.Request.Method == http.MethodPost && lost.Add(1) <= 2 {
				_, _ = io.Copy(io.Discard, resp.Body)
				panic(http.ErrAbortHandler) // the connection breaks before the answer
			}
			return nil
		},
	}
	front := httptest.NewServer(proxy)
	t.Cleanup(front.Close)
	through, err := sdk.New(sdk.Options{URL: front.URL, APIKey: adminKey(t, s)})
	if err != nil {
		t.Fatal(err)
	}
	b, err := through.Create(t.Context(), sdk.CreateOptions{})
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	if n := lost.Load(); n != 3 {
		t.Errorf("%d answers were on the way, want 3", n)
	}
	count := 0
	keys.Range(func(any, any) bool { count++; return true })
	if machines, err := s.Machines(); count != 1 || err != nil || len(machines) != 1 || machines[0] != b.ID {
		t.Errorf("%d keys, the host has %v (%v), the client %s", count, machines, err, b.ID)
	}
	removeAll(t, c)
}

// TestBug15OutputWithoutEndCostsTheServerNothing has many sandboxes write as much as they can.
func TestBug15OutputWithoutEndCostsTheServerNothing(t *testing.T) {
	s, c := own(t)
	const count, grownMax = 6, 96 << 20
	var boxes []*sdk.Sandbox
	for range count {
		boxes = append(boxes, box(t, c, sdk.CreateOptions{MemoryMB: 256, DiskMB: 256}))
	}
	sh(t, boxes[0], "true")
	before := serverBytes(t, s)
	var all sync.WaitGroup
	for _, b := range boxes {
		all.Go(func() {
			res, err := b.Exec(t.Context(), sdk.Command("yes"), sdk.ExecOptions{Timeout: 5 * time.Second})
			if err != nil || !res.TimedOut || !res.Truncated || res.StdoutBytes <= int64(len(res.Stdout)) || len(res.Stdout) > 1<<20 {
				t.Errorf("kept %d bytes: %+v (%v)", len(res.Stdout), res.Exit, err)
			}
		})
		all.Go(func() { // nobody reads this one
			stream, err := b.ExecStream(t.Context(), sdk.Command("yes"), sdk.ExecOptions{Timeout: 5 * time.Second})
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = stream.Next()
			sh(t, b, "sleep 5")
			_ = stream.Close()
		})
	}
	if got := sh(t, boxes[count-1], "echo ok"); got != "ok" {
		t.Errorf("beside it: %q", got)
	}
	all.Wait()
	if res := try(t, boxes[0], "head -c 2G /dev/zero"); res.ExitCode != 0 || res.StdoutBytes != 2<<30 {
		t.Errorf("2 GiB: %+v", res.Exit)
	}
	if grown := serverBytes(t, s) - before; grown > grownMax {
		t.Errorf("the server grew by %d MiB", grown>>20)
	} else {
		t.Logf("the server grew by %d MiB", grown>>20)
	}
}
