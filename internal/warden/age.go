package warden

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// statTick is the unit of the times in /proc/PID/stat, the same on every architecture that Go has.
const statTick = time.Second / 100

// firstBorn is when the oldest process of a machine began, on this boot's CLOCK_BOOTTIME; ok is false when it has none. The
// lease file's own time is no help: it is the wall clock's, which may have been set since.
func firstBorn(l Lease) (at time.Duration, ok bool) {
	groups, err := l.groups()
	if err != nil {
		return 0, false
	}
	for _, g := range groups {
		pids, err := g.Processes()
		if err != nil {
			continue
		}
		for _, pid := range pids {
			if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
				if born, err := startTime(string(b)); err == nil && (!ok || born < at) {
					at, ok = born, true
				}
			}
		}
	}
	return at, ok
}

// startTime reads field 22 of /proc/PID/stat. The name before it may hold anything.
func startTime(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const at = 22 - 3 // the first field behind the name is the third
	if len(fields) <= at {
		return 0, fmt.Errorf("a process's stat has %d fields", len(fields))
	}
	ticks, err := strconv.ParseInt(fields[at], 10, 64)
	return time.Duration(ticks) * statTick, err
}
