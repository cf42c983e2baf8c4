package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// What a runsc of the operator's is asked.
const (
	versionWait = 5 * time.Second
	versionMax  = 100 // characters kept
	versionHead = "runsc version "
	answerMax   = 64 << 10 // bytes of each of its streams
	complainMax = 200      // of what it says that it does not like
)

const foreignHint = "name the runsc of a gVisor release, or leave gvisor.runsc_path empty to use the built-in one"

var errEndless = errors.New("it talks without end")

// versionOf asks a runsc that the operator named for its version, with the flags that machines will be started with: one that
// is too old for them says so here. CodeUnavailable: it is none, or does not run, or not so.
func versionOf(path string) (string, error) {
	fault := func(what string, err error) error {
		return dayfly.Errorf(dayfly.CodeUnavailable, "%s (gvisor.runsc_path) %s", path, what).WithCause(err).
			WithHint(foreignHint)
	}
	if !filepath.IsAbs(path) {
		return "", fault("is no absolute path", nil)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", fault("does not exist", err)
	case err != nil:
		return "", fault("cannot be looked at: "+reason(err), err)
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o001 == 0:
		return "", fault("is no program that everybody may execute", nil)
	}
	said, complaint, err := ask(path)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "", fault(fmt.Sprintf("does not answer within %s", versionWait), err)
	case errors.Is(err, errEndless):
		return "", fault("is no runsc: "+err.Error(), err)
	case err != nil && complaint != "":
		return "", fault("does not run as Dayfly needs it: "+complaint, err)
	case err != nil:
		return "", fault("does not run: "+reason(err), err)
	}
	version, ok := strings.CutPrefix(firstLine(said), versionHead)
	if !ok {
		return "", fault("is no runsc", nil)
	}
	return version[:min(len(version), versionMax)], nil
}

// ask runs a program for its version and gives what it said, and the first line of what it complained of. Whatever it started
// is dead then, unless that left its process group.
func ask(path string) (said, complaint string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), versionWait)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	cmd := exec.CommandContext(ctx, path, append(flags(), "--version")...)
	cmd.Env = []string{"PATH=/"}
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, complaints := answer{stop: stop}, answer{stop: stop}
	cmd.Stdout, cmd.Stderr = &out, &complaints
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	if err = cmd.Start(); err == nil {
		awaitEnd(cmd.Process.Pid)
		_ = cmd.Cancel() // those that it left, while its number is still its own
		err = cmd.Wait()
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return string(out.said), firstLine(string(complaints.said)), err
}

// awaitEnd waits for the end of a child and leaves it to be waited for.
func awaitEnd(pid int) {
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// answer keeps what a program says. One that says too much is stopped.
type answer struct {
	said []byte
	stop context.CancelCauseFunc
}

func (a *answer) Write(p []byte) (int, error) {
	if len(a.said)+len(p) > answerMax {
		a.stop(errEndless)
		return 0, errEndless
	}
	a.said = append(a.said, p...)
	return len(p), nil
}

// firstLine is the first line of what a foreign program said, as a user can read it.
func firstLine(said string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(said), "\n")
	line = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.TrimSpace(strings.ToValidUTF8(line, "?")))
	return strings.ToValidUTF8(line[:min(len(line), complainMax)], "")
}
