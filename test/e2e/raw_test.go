package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dayfly.dev/dayfly/test/host"
)

// answer is an HTTP answer as it came.
type answer struct {
	status int
	header http.Header
	body   string
}

// field is a top-level text field of a JSON answer, or empty.
func (a answer) field(name string) string {
	var m map[string]any
	_ = json.Unmarshal([]byte(a.body), &m)
	s, _ := m[name].(string)
	return s
}

// errorType is the type of an error answer, or empty.
func (a answer) errorType() string {
	var m struct{ Error struct{ Type string } }
	_ = json.Unmarshal([]byte(a.body), &m)
	return m.Error.Type
}

// request makes one request, without the SDK and its retries. Headers are name, value, ….
func request(ctx context.Context, s *host.Server, key, method, path, body string, headers ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.URL+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b)}, err
}

// adminKey is a server's first key.
func adminKey(t *testing.T, s *host.Server) string {
	t.Helper()
	key, err := s.Key()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// fixedPort is a flag that makes a server keep its address over restarts.
func fixedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprintf("--listen=%s", l.Addr())
}

// writeFile writes a file that goes with the test.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
