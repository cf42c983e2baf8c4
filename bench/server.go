package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// server is a Dayfly server of our own on a data directory of its own.
type server struct {
	binary, data, url, key, version string
	http                            *http.Client
}

// startServer starts a server on a free port and waits until it is ready.
func startServer(ctx context.Context, binary, image string) (*server, error) {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	if image, err = filepath.Abs(image); err != nil {
		return nil, err
	}
	data, err := os.MkdirTemp("/var/tmp", "dayfly-bench-")
	if err != nil {
		return nil, err
	}
	s := &server{binary: binary, data: data, http: &http.Client{Transport: &http.Transport{MaxIdleConns: 256, MaxIdleConnsPerHost: 256}}}
	up := exec.CommandContext(ctx, binary, "up", "--data", data, "--listen", "127.0.0.1:0", "--base-image", image, "-o", "json")
	up.Stderr = os.Stderr
	b, err := up.Output()
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("start the server: %w", err)
	}
	var info struct{ URL, Version string }
	if err := json.Unmarshal(b, &info); err != nil {
		s.stop()
		return nil, fmt.Errorf("read %q: %w", b, err)
	}
	key, err := os.ReadFile(filepath.Join(data, "admin.key"))
	if err != nil {
		s.stop()
		return nil, err
	}
	s.url, s.version, s.key = info.URL, info.Version, strings.TrimSpace(string(key))
	return s, nil
}

// stop takes the server and everything it made away.
func (s *server) stop() {
	down := exec.Command(s.binary, "down", "--destroy", "--data", s.data)
	if out, err := down.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "bench: down --destroy: %v\n%s", err, out)
		return
	}
	_ = os.RemoveAll(s.data)
}

// client is the SDK's, for what users move through it.
func (s *server) client() (*sdk.Client, error) {
	return sdk.New(sdk.Options{URL: s.url, APIKey: s.key, DataDir: s.data})
}

// call makes one request and decodes the answer into out (or drops it for nil).
func (s *server) call(ctx context.Context, method, path string, body, out any) error {
	res, err := s.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(b, out)
}

// send makes one request; any status but a success is an error.
func (s *server) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, r)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 300 {
		defer res.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, res.Status, b)
	}
	return res, nil
}

// create makes a sandbox and gives its id.
func (s *server) create(ctx context.Context) (string, error) {
	var sb struct{ ID string }
	err := s.call(ctx, "POST", "/v1/sandboxes", map[string]any{"timeout_minutes": 30}, &sb)
	if err == nil && sb.ID == "" {
		err = errors.New("a sandbox without id")
	}
	return sb.ID, err
}

// exec runs a command and checks its output.
func (s *server) exec(ctx context.Context, id string, argv []string, want string) error {
	var res struct {
		ExitCode int `json:"exit_code"`
		Stdout   string
	}
	if err := s.call(ctx, "POST", "/v1/sandboxes/"+id+"/exec", map[string]any{"argv": argv}, &res); err != nil {
		return err
	}
	if res.ExitCode != 0 || res.Stdout != want {
		return fmt.Errorf("%v: exit %d, output %q, want %q", argv, res.ExitCode, res.Stdout, want)
	}
	return nil
}

func (s *server) remove(ctx context.Context, id string) error {
	var sb struct{ Status string }
	if err := s.call(ctx, "DELETE", "/v1/sandboxes/"+id, nil, &sb); err != nil {
		return err
	}
	if sb.Status != "deleted" {
		return fmt.Errorf("%s is %s after its DELETE", id, sb.Status)
	}
	return nil
}
