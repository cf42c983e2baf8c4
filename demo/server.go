package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const binary = "bin/dayfly"

// server is the demo's own server, run by the real commands.
type server struct {
	data, url string
	pid       int
	made      bool
}

func newServer() *server { return &server{} }

// up starts the server on a free port, or on the one it had.
func (s *server) up(ctx context.Context) error {
	if s.data == "" {
		var err error
		if s.data, err = os.MkdirTemp("/var/tmp", "dayfly-demo-"); err != nil {
			return err
		}
	}
	s.made = true
	out, err := s.dayfly(ctx, "up", "--listen", "127.0.0.1:0", "-o", "json")
	if err != nil {
		return err
	}
	var info struct {
		URL string
		PID int
	}
	if err := json.Unmarshal([]byte(out), &info); err != nil {
		return fmt.Errorf("read the answer of up: %w", err)
	}
	s.url, s.pid = info.URL, info.PID
	return nil
}

func (s *server) client() (*sdk.Client, error) {
	return sdk.New(sdk.Options{URL: s.url, DataDir: s.data})
}

// kill ends the server as a crash would, and waits for its death.
func (s *server) kill() error {
	fd, err := unix.PidfdOpen(s.pid, 0)
	if err != nil {
		return fmt.Errorf("find the server: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return fmt.Errorf("kill the server: %w", err)
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err != unix.EINTR {
			return err
		}
	}
}

// dayfly runs one command of the real binary on this server.
func (s *server) dayfly(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, binary, append(args, "--data", s.data)...)
	var errText strings.Builder
	cmd.Stderr = &errText
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("dayfly %s: %w: %s%s", args[0], err, errText.String(), out)
	}
	return string(out), nil
}

// close takes everything away, whatever state the demo ended in.
func (s *server) close() {
	if !s.made {
		return
	}
	if _, err := s.dayfly(context.Background(), "down", "--destroy", "--purge"); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return
	}
	s.made = false
	_ = os.RemoveAll(filepath.Clean(s.data))
}
