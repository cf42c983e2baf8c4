package cgroup

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"

	"dayfly.dev/dayfly"
)

// cpuPeriodMicros is how often a group's CPU quota is renewed: the kernel's default.
const cpuPeriodMicros = 100_000

// socketShare is the part of a group's memory that network data may take besides, where v1 counts it apart: one in so many.
const socketShare = 8

// limitFile is one value to write. An optional file may be missing in a kernel.
type limitFile struct {
	controller string
	name       string
	value      string
	optional   bool
}

// limit writes all limits.
func (g *Group) limit(l dayfly.Limits) error {
	pids := l.PIDs
	if pids == 0 {
		pids = dayfly.PIDsDefault
	}
	files := []limitFile{
		{"", "cgroup.max.depth", strconv.Itoa(depthMax), false},
		{"", "cgroup.max.descendants", strconv.Itoa(childrenMax), false},
		{"pids", "pids.max", strconv.Itoa(pids), false},
	}
	if l.MemoryBytes > 0 {
		files = append(files, g.memoryFiles(l.MemoryBytes)...)
	}
	if l.VCPU > 0 {
		files = append(files, g.cpuFiles(l.VCPU)...)
	}
	for _, f := range files {
		err := write(filepath.Join(g.paths.of(f.controller), f.name), f.value)
		if err != nil && !(f.optional && errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	return nil
}

// memoryFiles limit memory and switch swap off. Without swap in the kernel the swap files do not exist.
func (g *Group) memoryFiles(limitBytes int64) []limitFile {
	limit := strconv.FormatInt(limitBytes, 10)
	if g.paths.V1["memory"] != "" {
		return []limitFile{ // memory and swap together never exceed memory alone
			{"memory", "memory.limit_in_bytes", limit, false},
			{"memory", "memory.memsw.limit_in_bytes", limit, true},
			// Counts what TCP and UDP hold, which v1 otherwise takes from a pot that is the whole host's.
			{"memory", "memory.kmem.tcp.limit_in_bytes", strconv.FormatInt(limitBytes/socketShare, 10), true},
		}
	}
	return []limitFile{
		{"memory", "memory.max", limit, false},
		{"memory", "memory.swap.max", "0", true},
		{"memory", "memory.oom.group", "0", false},
	}
}

func (g *Group) cpuFiles(vcpu int) []limitFile {
	quota, period := strconv.Itoa(vcpu*cpuPeriodMicros), strconv.Itoa(cpuPeriodMicros)
	if g.paths.V1["cpu"] != "" {
		return []limitFile{
			{"cpu", "cpu.cfs_period_us", period, false},
			{"cpu", "cpu.cfs_quota_us", quota, false},
		}
	}
	return []limitFile{{"cpu", "cpu.max", quota + " " + period, false}}
}
