package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/cgroup"
)

// Machines gives the ids of all sandboxes of the installation that the kernel has a control group of.
func (s *Server) Machines() ([]string, error) {
	h, err := cgroup.Detect("/")
	if err != nil {
		return nil, err
	}
	return h.List(s.Installation)
}

// Lives tells whether a process of the sandbox lives.
func (s *Server) Lives(id string) (bool, error) {
	h, err := cgroup.Detect("/")
	if err != nil {
		return false, err
	}
	g, err := h.Group(s.Installation, id)
	if err != nil {
		return false, err
	}
	return g.Populated()
}

// Frozen tells whether the kernel has the sandbox's processes frozen, or is about to.
func (s *Server) Frozen(id string) (bool, error) {
	h, err := cgroup.Detect("/")
	if err != nil {
		return false, err
	}
	g, err := h.Group(s.Installation, id)
	if err != nil {
		return false, err
	}
	return g.Freezing()
}

// WaitDead waits until no process of the sandbox lives, told by the kernel, and gives the time of that.
func (s *Server) WaitDead(ctx context.Context, id string) (time.Time, error) {
	h, err := cgroup.Detect("/")
	if err != nil {
		return time.Time{}, err
	}
	events, err := os.Open(filepath.Join(h.InstallationDir(s.Installation), id, "cgroup.events"))
	if errors.Is(err, os.ErrNotExist) {
		return time.Now(), nil
	}
	if err != nil {
		return time.Time{}, err
	}
	defer events.Close()
	for ctx.Err() == nil {
		b := make([]byte, 256)
		n, err := events.ReadAt(b, 0)
		if n == 0 && err != nil || !containsLine(string(b[:n]), "populated 1") { // ENODEV: the group is gone
			return time.Now(), nil
		}
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}}, 200 /* ms, to see ctx */)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return time.Time{}, fmt.Errorf("wait for the end of %s: %w", id, err)
		}
	}
	return time.Time{}, fmt.Errorf("%s still lives: %w", id, ctx.Err())
}

// FirstProcess gives the host's number of the sandbox's PID 1.
func (s *Server) FirstProcess(id string) (int, error) {
	h, err := cgroup.Detect("/")
	if err != nil {
		return 0, err
	}
	g, err := h.Group(s.Installation, id)
	if err != nil {
		return 0, err
	}
	pids, err := g.Processes()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue // it ended while we looked
		}
		_, names, _ := strings.Cut(string(b), "\nNSpid:")
		names, _, _ = strings.Cut(names, "\n")
		if f := strings.Fields(names); len(f) > 1 && f[len(f)-1] == "1" {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("%s has no first process among %d", id, len(pids))
}
