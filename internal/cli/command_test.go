package cli_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// command is the command line as a process.
type command struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
}

// newCommand makes a process with an environment of its own. home is where it finds its configuration.
func newCommand(t *testing.T, ctx context.Context, home string, env []string, args ...string) *command {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &command{Cmd: exec.CommandContext(ctx, self, args...)}
	c.Cmd.Dir = home
	c.Env = append([]string{asCommand + "=1", "HOME=" + home, "PATH=" + os.Getenv("PATH"), "DAYFLY_DATA=" + home + "/data"}, env...)
	c.Stdout, c.Stderr = &c.stdout, &c.stderr
	return c
}

// run waits for the end and gives the exit code.
func (c *command) run(t *testing.T, stdin io.Reader) int {
	t.Helper()
	c.Stdin = stdin
	if err := c.Run(); c.ProcessState == nil {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode()
}

// dayfly runs the command line against s and gives its exit code and outputs.
func (s *testServer) dayfly(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	c := newCommand(t, ctx, t.TempDir(), []string{"DAYFLY_URL=" + s.URL, "DAYFLY_API_KEY=" + testKey}, args...)
	code = c.run(t, strings.NewReader(stdin))
	return code, c.stdout.String(), c.stderr.String()
}
