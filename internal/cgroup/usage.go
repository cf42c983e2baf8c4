package cgroup

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

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

// OOMKills reads how many processes of the group were killed for lack of memory, far cheaper than Usage. CodeGone: there is
// no such group.
func (g *Group) OOMKills() (int64, error) {
	n, err := keyed(g.OOMPath(), "oom_kill")
	if err != nil {
		return 0, usageError(err)
	}
	return n, nil
}

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
