package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// dataPrefix is how the data directories of tests begin.
const dataPrefix = "/var/tmp/dayfly-test-"

// Waits of servers.
const (
	startMax = 3 * time.Minute // a first start that imports the image on a busy machine
	closeMax = 2 * time.Minute
	deathMax = 10 * time.Second
)

// Server is a server of its own data directory on a free port. Its fields may be read by everybody and belong to it.
type Server struct {
	Data         string
	Installation string
	URL          string
	PID          int
	flags        []string
	binary       string
	baseImage    string
	env          []string
}

// Options say how to start a server. The zero value is a first start with the base image of Bin.
type Options struct {
	// Image is another server that runs or ran: its unpacked images are linked instead of imported again. Or nil.
	Image *Server
	// Flags are further flags of `dayfly up`.
	Flags []string
	// Binary is another copy of the program, or empty.
	Binary string
	// BaseImage is another file to import on a first start, or empty.
	BaseImage string
	// Env is further environment of the server.
	Env []string
}

// Start starts a server. Close takes it away.
func Start(ctx context.Context, o Options) (*Server, error) {
	s := &Server{flags: o.Flags, binary: o.Binary, baseImage: o.BaseImage, env: o.Env}
	if s.binary == "" {
		s.binary = filepath.Join(Bin(), binaryName)
	}
	if s.baseImage == "" {
		s.baseImage = filepath.Join(Bin(), imageName)
	}
	var err error
	if s.Data, err = os.MkdirTemp(filepath.Dir(dataPrefix), filepath.Base(dataPrefix)); err != nil {
		return nil, err
	}
	if o.Image != nil {
		err = linkImages(ctx, filepath.Join(o.Image.Data, "images"), s.Data)
	}
	if err == nil {
		err = s.Up(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// StartFor is Start for one test, which ends with the server gone and nothing of it left.
func StartFor(t testing.TB, o Options) *Server {
	t.Helper()
	Need(t)
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatalf("start a server: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the server's log:\n%s", s.LogTail())
		}
		if err := s.Close(); err != nil {
			t.Errorf("take the server away: %v", err)
		}
	})
	return s
}

// linkImages gives a data directory the unpacked images of another one, as hard links.
func linkImages(ctx context.Context, from, data string) error {
	out, err := exec.CommandContext(ctx, "cp", "-al", from, filepath.Join(data, "images")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("link the images: %w: %s", err, out)
	}
	return nil
}

// Up starts the server, or says where it runs. It can be used again after the server's end.
func (s *Server) Up(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	args := append([]string{"up", "--listen", "127.0.0.1:0", "-o", "json", "--base-image", s.baseImage}, s.flags...)
	out := s.Run(ctx, Command{Args: args, Env: s.env})
	if out.Code != 0 {
		return fmt.Errorf("dayfly up: exit %d: %s\nits log: %s", out.Code, out.Stderr, s.LogTail())
	}
	if err := json.Unmarshal([]byte(out.Stdout), s); err != nil {
		return fmt.Errorf("the answer of up: %w: %s", err, out.Stdout)
	}
	b, err := os.ReadFile(filepath.Join(s.Data, "installation"))
	s.Installation = strings.TrimSpace(string(b))
	return err
}

// Client is a client with the first key.
func (s *Server) Client() (*sdk.Client, error) {
	key, err := s.Key()
	if err != nil {
		return nil, err
	}
	return s.ClientWith(key)
}

// ClientWith is a client with a key.
func (s *Server) ClientWith(key string) (*sdk.Client, error) {
	return sdk.New(sdk.Options{URL: s.URL, APIKey: key, DataDir: s.Data, Getenv: func(string) string { return "" }})
}

// Key is the first key.
func (s *Server) Key() (string, error) {
	b, err := os.ReadFile(filepath.Join(s.Data, "admin.key"))
	return strings.TrimSpace(string(b)), err
}

// Command is one run of the program against a server.
type Command struct {
	Args  []string
	Stdin io.Reader // or nil for the null device
	Env   []string  // on top
	Dir   string    // or empty for this directory
}

// Output is what a command said.
type Output struct {
	Stdout, Stderr string
	Code           int // -1: it could not be started, or a signal ended it
}

// Run runs the program to its end with this server's data directory.
func (s *Server) Run(ctx context.Context, c Command) Output {
	cmd := s.Cmd(ctx, c)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	out := Output{Stdout: stdout.String(), Stderr: stderr.String()}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		out.Code = exit.ExitCode()
	case err != nil:
		out.Code, out.Stderr = -1, out.Stderr+err.Error()
	}
	return out
}

// Dayfly runs one command without input.
func (s *Server) Dayfly(ctx context.Context, args ...string) Output {
	return s.Run(ctx, Command{Args: args})
}

// EnvIsolation is what isolation auto means for the servers that tests start. It alone of the caller's settings reaches them.
const EnvIsolation = "DAYFLY_ISOLATION_AUTO"

// Cmd prepares a run of the program; the caller starts it. Settings of the caller's environment do not reach it, but EnvIsolation.
func (s *Server) Cmd(ctx context.Context, c Command) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.binary, c.Args...)
	cmd.Stdin, cmd.Dir = c.Stdin, c.Dir
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "DAYFLY_") || strings.HasPrefix(kv, EnvIsolation+"=") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(append(cmd.Env, "DAYFLY_DATA="+s.Data), c.Env...)
	cmd.WaitDelay = deathMax // an `up` leaves a server behind, which has none of our pipes
	return cmd
}

// Kill ends the server as a crash would and waits for its death.
func (s *Server) Kill() error { return kill(s.PID) }

// Stop keeps the server from running, like a debugger or a frozen host would. Continue lets it go on.
func (s *Server) Stop() error     { return unix.Kill(s.PID, unix.SIGSTOP) }
func (s *Server) Continue() error { return unix.Kill(s.PID, unix.SIGCONT) }

// Running tells whether the server's process lives.
func (s *Server) Running() bool { return s.PID > 1 && !dead(fmt.Sprintf("/proc/%d", s.PID)) }

// Warden is the process that holds the leases, or 0.
func (s *Server) Warden() int {
	b, err := os.ReadFile(filepath.Join(s.Data, "warden", "lock"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return 0
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.Contains(string(line), "warden\x00--data\x00"+s.Data+"\x00") {
		return 0
	}
	return pid
}

// KillWarden ends the warden and waits for its death; which process it was.
func (s *Server) KillWarden() (pid int, err error) {
	pid = s.Warden()
	if pid == 0 {
		return 0, errors.New("no warden runs")
	}
	return pid, kill(pid)
}

// kill ends a process and waits for its death.
func kill(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("find process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	deadline := time.Now().Add(deathMax)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(deadline).Milliseconds()))
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			err = fmt.Errorf("process %d outlived SIGKILL by %s", pid, deathMax)
		}
		return err
	}
}

// LogTail is the end of the server's log.
func (s *Server) LogTail() string {
	const most = 8 << 10
	b, _ := os.ReadFile(filepath.Join(s.Data, "logs", "server.log"))
	return string(b[max(0, len(b)-most):])
}

// Close ends everything of the installation, removes the data directory, and says what is left all the same.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeMax)
	defer cancel()
	if s.Running() {
		_ = s.Continue()
	}
	down := s.Dayfly(ctx, "down", "--destroy", "--purge")
	if down.Code != 0 {
		return fmt.Errorf("down --destroy --purge: exit %d: %s", down.Code, down.Stderr)
	}
	err := os.RemoveAll(s.Data) // of a start that made nothing
	left, leftErr := s.Left()
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("left on the host:\n%s", strings.Join(left, "\n")))
	}
	return errors.Join(err, leftErr)
}
