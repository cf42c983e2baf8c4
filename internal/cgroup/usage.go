package cgroup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// usageFiles are where one layout keeps its counters.
type usageFiles struct {
	memory   string
	inactive string // key of memory.stat: file pages that the kernel takes back first
	oom      string
}

var (
	usageV1 = usageFiles{"memory.usage_in_bytes", "total_inactive_file", "memory.oom_control"}
	usageV2 = usageFiles{"memory.current", "inactive_file", "memory.events"}
)

// Usage reads the group's counters. MemoryBytes is the working set: what is charged to the group less its inactive file
// pages, which the kernel takes back before it would kill anything. CodeGone: there is no such group.
func (g *Group) Usage() (dayfly.Usage, error) {
	var u dayfly.Usage
	files, dir := usageV2, g.paths.of("memory")
	if g.paths.V1["memory"] != "" {
		files = usageV1
	}
	charged, err := number(filepath.Join(dir, files.memory))
	if err != nil {
		return u, usageError(err)
	}
	inactive, err := keyed(filepath.Join(dir, "memory.stat"), files.inactive)
	if err != nil {
		return u, usageError(err)
	}
	u.MemoryBytes = max(0, charged-inactive)
	if u.OOMKills, err = keyed(filepath.Join(dir, files.oom), "oom_kill"); err != nil {
		return u, usageError(err)
	}
	pids, err := number(filepath.Join(g.paths.of("pids"), "pids.current"))
	if err != nil {
		return u, usageError(err)
	}
	u.PIDs = int(pids)
	micros, err := keyed(filepath.Join(g.paths.V2, "cpu.stat"), "usage_usec") // there without the controller too
	if err != nil {
		return u, usageError(err)
	}
	u.CPU = time.Duration(micros) * time.Microsecond
	return u, nil
}

// oomBytes is more than the file with the counter holds.
const oomBytes = 512

// OOMCounter tells again and again how many processes of one group were killed for lack of memory, far cheaper than Usage. It
// holds a descriptor until it is closed, which keeps no group from being removed.
type OOMCounter struct{ file *os.File }

// OOMCounter opens the counter of the group. CodeGone: there is no such group.
func (g *Group) OOMCounter() (*OOMCounter, error) {
	fd, err := unix.Open(g.OOMPath(), unix.O_RDONLY|unix.O_CLOEXEC, 0) // not os.Open: the runtime's poller has no use for it
	if err != nil {
		return nil, usageError(err)
	}
	return &OOMCounter{os.NewFile(uintptr(fd), g.OOMPath())}, nil
}

// Kills reads the counter. CodeGone: the group was removed.
func (c *OOMCounter) Kills() (int64, error) {
	var buf [oomBytes]byte
	n, err := c.file.ReadAt(buf[:], 0)
	if err != nil && err != io.EOF {
		return 0, usageError(err)
	}
	kills, ok := field(buf[:n], "oom_kill")
	if !ok {
		return 0, errors.New("no oom_kill in " + c.file.Name())
	}
	return kills, nil
}

// Close gives the descriptor back.
func (c *OOMCounter) Close() error { return c.file.Close() }

func usageError(err error) error {
	if gone(err) {
		return dayfly.Errorf(dayfly.CodeGone, "the sandbox's machine has ended").WithCause(err)
	}
	return fmt.Errorf("read cgroup usage: %w", err)
}

func number(path string) (int64, error) {
	b, err := readLimited(path, fileMax)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

func keyed(path, key string) (int64, error) {
	b, err := readLimited(path, fileMax)
	if err != nil {
		return 0, err
	}
	n, ok := field(b, key)
	if !ok {
		return 0, errors.New("no " + key + " in " + path)
	}
	return n, nil
}

// OOMPath is the file with a line "oom_kill N": how many processes of the group were killed for lack of memory.
func (g *Group) OOMPath() string {
	if dir := g.paths.V1["memory"]; dir != "" {
		return filepath.Join(dir, usageV1.oom)
	}
	return filepath.Join(g.paths.V2, usageV2.oom)
}
