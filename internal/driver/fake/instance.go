package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

var errEnded = dayfly.Errorf(dayfly.CodeGone, "the sandbox's machine has ended")

// instance implements dayfly.Instance. The machine ends with its agent: what that leaves behind is killed.
type instance struct {
	id     string
	mark   string
	runDir string
	state  json.RawMessage
	agent  *os.File    // pidfd, polled by the runtime
	child  *os.Process // nil for a recovered machine
	done   chan struct{}
}

func (d *Driver) newInstance(id, runDir string, pid int) (*instance, error) {
	raw, err := json.Marshal(state{Version: stateVersion, PID: pid, RunDir: runDir})
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return &instance{
		id: id, mark: d.mark(id), runDir: runDir, state: raw, agent: os.NewFile(uintptr(fd), "agent"), done: make(chan struct{}),
	}, nil
}

// watch starts the goroutine that ends with the machine.
func (i *instance) watch() {
	go func() {
		defer close(i.done)
		i.wait()
		if i.child != nil {
			_, _ = i.child.Wait()
		}
		killMarked(i.mark)
		_ = i.agent.Close()
	}()
}

// wait blocks until the agent has ended, without holding a thread: a pidfd becomes readable then.
func (i *instance) wait() {
	raw, err := i.agent.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

// ID implements dayfly.Instance.
func (i *instance) ID() string { return i.id }

// State implements dayfly.Instance.
func (i *instance) State() json.RawMessage { return i.state }

// Done implements dayfly.Instance.
func (i *instance) Done() <-chan struct{} { return i.done }

// Dial implements dayfly.Instance.
func (i *instance) Dial(ctx context.Context) (net.Conn, error) {
	select {
	case <-i.done:
		return nil, errEnded
	default:
	}
	dir, path, err := shortened(filepath.Join(i.runDir, socketName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errEnded.WithCause(err)
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil, errEnded.WithCause(err)
	}
	return conn, err
}

// pausedName is a file beside the socket that tells that the machine is paused, not just stopped by somebody.
const pausedName = "paused"

// Pause implements dayfly.Pauser.
func (i *instance) Pause(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := os.WriteFile(i.pausedPath(), nil, 0o600); err != nil {
		return fmt.Errorf("pause %s: %w", i.id, err)
	}
	if !stopMarked(i.mark) {
		return fmt.Errorf("pause %s: some of its processes do not stop", i.id)
	}
	return nil
}

// Resume implements dayfly.Pauser. Processes that were stopped before go on too.
func (i *instance) Resume(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	continueMarked(i.mark)
	if err := os.Remove(i.pausedPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("resume %s: %w", i.id, err)
	}
	return nil
}

// Paused implements dayfly.Pauser.
func (i *instance) Paused() (bool, error) {
	_, err := os.Stat(i.pausedPath())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (i *instance) pausedPath() string { return filepath.Join(i.runDir, pausedName) }

// Usage implements dayfly.Instance: the sum over the processes that live.
func (i *instance) Usage(ctx context.Context) (dayfly.Usage, error) {
	if err := ctx.Err(); err != nil {
		return dayfly.Usage{}, err
	}
	var u dayfly.Usage
	for _, pid := range marked(i.mark) {
		memory, cpu := counters(pid)
		u.MemoryBytes += memory
		u.CPU += cpu
		u.PIDs++
	}
	if u.PIDs == 0 {
		return u, errEnded
	}
	return u, nil
}

// killAgent kills the agent by its descriptor: right after its exec the environment with the mark cannot be read yet.
func (i *instance) killAgent() {
	raw, err := i.agent.SyscallConn()
	if err != nil {
		return // closed: it has ended
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
}

// Destroy implements dayfly.Instance.
func (i *instance) Destroy(ctx context.Context) error {
	i.killAgent()
	left := killMarked(i.mark)
	var err error
	select {
	case <-i.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if left > 0 {
		err = errors.Join(err, fmt.Errorf("%d processes are left", left))
	}
	for _, name := range []string{socketName, pausedName} {
		if rerr := os.Remove(filepath.Join(i.runDir, name)); !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	err = errors.Join(err, os.RemoveAll(filepath.Join(i.runDir, homeName)))
	if err != nil {
		return fmt.Errorf("destroy %s: %w", i.id, err)
	}
	return nil
}
