package measure

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// Host is the machine on which this process ran, which is the server's unless Remote.
type Host struct {
	CPU        string  `json:"cpu"`
	CPUs       int     `json:"cpus"`
	MemoryMB   int64   `json:"memory_mb"`
	Kernel     string  `json:"kernel"`
	LoadBefore float64 `json:"load_before"` // average of the last minute
	LoadAfter  float64 `json:"load_after"`
	Remote     bool    `json:"remote"` // the server is on another machine: figures hold the network too, and there is no floor
}

func thisHost() Host {
	h := Host{CPU: "unknown CPU", CPUs: runtime.NumCPU(), MemoryMB: memoryKiB("MemTotal") >> 10, Kernel: "unknown", LoadBefore: load()}
	if model, ok := field("/proc/cpuinfo", "model name"); ok {
		h.CPU = model
	}
	var u syscall.Utsname
	if syscall.Uname(&u) == nil {
		var b strings.Builder
		for _, c := range u.Release {
			if c == 0 {
				break
			}
			b.WriteByte(byte(c))
		}
		h.Kernel = b.String()
	}
	return h
}

// load is the load average of the last minute, or 0.
func load() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	minute, _, _ := strings.Cut(string(b), " ")
	v, _ := strconv.ParseFloat(minute, 64)
	return v
}

// memoryKiB is a line of /proc/meminfo, or 0.
func memoryKiB(name string) int64 {
	text, _ := field("/proc/meminfo", name)
	v, _ := strconv.ParseInt(strings.TrimSuffix(text, " kB"), 10, 64)
	return v
}

// field is the value of the first line "name: value" of a file.
func field(path, name string) (value string, ok bool) {
	f, err := os.Open(path)
	if err != nil {
		return "", false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value), true
		}
	}
	return "", false
}

// String is one line about the machine.
func (h Host) String() string {
	return fmt.Sprintf("%d × %s, %.1f GiB, Linux %s, load %.1f before and %.1f after", h.CPUs, h.CPU, float64(h.MemoryMB)/1024, h.Kernel, h.LoadBefore, h.LoadAfter)
}
