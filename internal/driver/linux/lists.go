package linux

import (
	"os"
	"path/filepath"
)

// maskedConst are paths that show nothing inside; the list is moby's and runc's default. They tell about the host or
// control it.
var maskedConst = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/latency_stats",
	"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap",
	"/sys/firmware",
}

// readOnlyPaths cannot be written inside, not even by root; the list is moby's and runc's default.
var readOnlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

// thermal matches, for each CPU, the one entry of moby's list that depends on the host.
const thermal = "/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle"

// maskedPaths gives those of the masked paths that this host's kernel has.
func maskedPaths() []string {
	paths, _ := filepath.Glob(thermal) // the pattern is well formed
	for _, p := range maskedConst {
		if _, err := os.Lstat(p); err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}
