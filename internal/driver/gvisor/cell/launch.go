package cell

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

// Limits of what runsc and the agent may say while they start.
const (
	saidMax  = 16 << 10
	readyMax = 4 << 10
	tellMax  = 1 << 10 // of it that the driver is told
)

// runsc's descriptors. waitFD is where the built-in one waits for a byte before it does anything, if the variable waitName is
// set (helper/gvisor/main.go).
const (
	agentFD  = 3
	waitFD   = 4
	waitName = "DAYFLY_WAIT"
)

// run is runsc while it starts the machine, with the cell's ends of what connects them.
type run struct {
	cmd                *exec.Cmd
	feed, ready, start *os.File // start is nil for a runsc that does not wait
}

// startEarly starts a runsc that can wait: it loads while the network is being attached.
func (c *cell) startEarly() error {
	if !c.cfg.Waits {
		return nil
	}
	return c.startRunsc()
}

// startRunsc starts runsc. It ends with the cell, whatever fails from here on.
func (c *cell) startRunsc() error {
	in, feed, err := os.Pipe()
	if err != nil {
		return err
	}
	ready, out, err := os.Pipe()
	if err != nil {
		return err
	}
	agent := os.NewFile(uintptr(c.fds[fdAgent]), "agent")
	args := append(append([]string{}, c.cfg.Flags...), "run", "-detach", fmt.Sprintf("-exec-fd=%d", agentFD), "-bundle", bundleDir, c.cfg.ID)
	cmd := exec.Command(runscPath, args...)
	cmd.Args[0] = "runsc"
	cmd.Env = []string{"PATH=/", "TMPDIR=/tmp", "HOME=/"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, out
	cmd.ExtraFiles = []*os.File{agent}
	c.run = &run{cmd: cmd, feed: feed, ready: ready}
	if c.cfg.Waits {
		wait, start, err := os.Pipe()
		if err != nil {
			return err
		}
		defer wait.Close()
		c.run.start = start
		cmd.ExtraFiles = append(cmd.ExtraFiles, wait)
		cmd.Env = append(cmd.Env, waitName+"=1")
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run runsc: %w", err)
	}
	_, _, _ = in.Close(), out.Close(), agent.Close()
	return nil
}

// launch starts the machine and returns when its agent accepts connections.
func (c *cell) launch() error {
	config, err := json.Marshal(c.cfg.Guest)
	if err != nil {
		return err
	}
	if c.run == nil {
		if err := c.startRunsc(); err != nil {
			return err
		}
	} else {
		_, _ = c.run.start.Write([]byte{1}) // one that has died says so below
		_ = c.run.start.Close()
	}
	feed := c.run.feed
	go func() {
		_, _ = feed.Write(config) // a machine that dies does not read it
		_ = feed.Close()
	}()
	text, err := awaitReady(c.run.ready)
	_ = c.run.ready.Close()
	werr := c.run.cmd.Wait()
	switch {
	case err == nil && werr == nil:
		return nil
	case text != "":
		return errors.New(text)
	case werr != nil:
		return fmt.Errorf("runsc: %w", werr)
	}
	return err
}

// readyText is what the agent says first when it accepts connections, and failText what it says when it could not start.
const (
	readyText = "dayfly-agent: ready\n"
	failText  = "dayfly-agent: "
)

// awaitReady reads until the agent says that it is ready. Otherwise text is what was said instead, as a user can read it.
func awaitReady(r io.Reader) (text string, err error) {
	var b bytes.Buffer
	buf := make([]byte, readyMax)
	for b.Len() < saidMax {
		n, err := r.Read(buf)
		b.Write(buf[:n])
		if strings.Contains(b.String(), readyText) {
			return "", nil
		}
		if err != nil {
			return plain(b.String()), errors.New("the machine ended while it started")
		}
	}
	return plain(b.String()), errors.New("the machine talks instead of starting")
}

// logLine is a line of runsc's log, such as its warning about the command of membarrier(2) that the cell refuses.
var logLine = regexp.MustCompile(`^[DIW]\d{4} \d\d:\d\d:\d\d\.\d+ `)

// ways are what runsc puts before an error to tell how it came there.
var ways = []string{"running container: ", "starting container: ", "starting root container: ", "starting sandbox: ", "creating container: ", "FATAL ERROR: "}

// plain takes out of what runsc and the agent said what only their makers can use.
func plain(said string) string {
	var lines []string
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(strings.ToValidUTF8(line, "?"))
		if line == "" || logLine.MatchString(line) {
			continue
		}
		line = strings.TrimPrefix(line, failText)
		for _, way := range ways {
			line = strings.TrimPrefix(line, way)
		}
		if len(lines) == 0 || lines[len(lines)-1] != line {
			lines = append(lines, line)
		}
	}
	text := strings.Join(lines, "; ")
	return strings.ToValidUTF8(text[:min(len(text), tellMax)], "")
}
