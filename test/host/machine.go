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

// Parts of a sandbox on the host, beside the programs inside.
const (
	PartFirst  = "first"   // its PID 1: the agent, or the cell around gVisor
	PartSentry = "sandbox" // gVisor's kernel
	PartGofer  = "gofer"   // gVisor's file server
)

// FirstProcess gives the host's number of the sandbox's PID 1.
func (s *Server) FirstProcess(id string) (int, error) {
	parts, err := s.Parts(id)
	if err == nil && parts[PartFirst] == 0 {
		err = fmt.Errorf("%s has no first process", id)
	}
	return parts[PartFirst], err
}

// Parts gives the host's numbers of what a sandbox consists of now. Under linux there is no part but the first.
func (s *Server) Parts(id string) (map[string]int, error) {
	h, err := cgroup.Detect("/")
	if err != nil {
		return nil, err
	}
	g, err := h.Group(s.Installation, id)
	if err != nil {
		return nil, err
	}
	pids, err := g.Processes()
	if err != nil {
		return nil, err
	}
	parts := map[string]int{}
	for _, pid := range pids {
		if part := partOf(pid); part != "" {
			parts[part] = pid
		}
	}
	return parts, nil
}

// partOf tells which part a process is, or "" if none, or it ended while we looked.
func partOf(pid int) string {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	name, _, _ := strings.Cut(string(line), "\x00")
	if part, ok := strings.CutPrefix(name, "runsc-"); ok && (part == PartSentry || part == PartGofer) {
		return part
	}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, names, _ := strings.Cut(string(status), "\nNSpid:")
	names, _, _ = strings.Cut(names, "\n")
	if f := strings.Fields(names); len(f) == 2 && f[1] == "1" { // its number here, and in its own namespace
		return PartFirst
	}
	return ""
}
