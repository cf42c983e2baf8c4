package btrfs

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"dayfly.dev/dayfly"
)

// Report is what this host offers for a pool.
type Report struct {
	Works   bool
	Hosted  bool     // the pool would be a directory on the data directory's own btrfs
	Quota   Quota    // what QuotaAuto would choose for a new pool
	Reasons []string // why it does not work, one sentence each
	Install []string // what to install or change, one sentence each
}

const (
	kernelFileSystems = "/proc/filesystems"
	simpleQuotaSign   = "/sys/fs/btrfs/features/simple_quota"
	installProgs      = "Install the package btrfs-progs (apt-get install btrfs-progs)."
	noMkfs            = "The command mkfs.btrfs is missing."
)

// Probe looks whether a pool of the data directory would work here, without making anything.
func Probe(dataDir string) Report {
	var r Report
	r.Reasons, r.Install = checkKernel()
	r.Quota = QuotaClassic
	if _, err := os.Stat(simpleQuotaSign); err == nil {
		r.Quota = QuotaSimple
	}
	if hosted, err := onHost(dataDir); err == nil {
		r.Hosted = hosted
	}
	if _, err := os.Lstat(filepath.Join(dataDir, fileName)); !r.Hosted && errors.Is(err, fs.ErrNotExist) {
		if _, err := findMkfs(); err != nil {
			r.Reasons, r.Install = append(r.Reasons, noMkfs), append(r.Install, installProgs)
		}
	}
	if _, err := os.Stat(loopControl); !r.Hosted && err != nil {
		r.Reasons = append(r.Reasons, "The kernel has no loop devices.")
		r.Install = append(r.Install, "Load the module loop (modprobe loop).")
	}
	r.Works = len(r.Reasons) == 0
	return r
}

// checkKernel tells what the kernel lacks; a module that is not loaded yet counts as there if it can be found.
func checkKernel() (reasons, install []string) {
	b, err := os.ReadFile(kernelFileSystems)
	if err != nil || strings.Contains(string(b), "\tbtrfs\n") || hasModule("btrfs") {
		return nil, nil // if it cannot be told, the mount will tell
	}
	return []string{"The kernel has no btrfs."}, []string{"Use a kernel with btrfs (on Ubuntu: the package linux-modules-extra)."}
}

// hasModule tells whether the running kernel could load a module; mounting loads it.
func hasModule(name string) bool {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return false
	}
	dep, err := os.ReadFile(filepath.Join("/lib/modules", strings.TrimSpace(string(release)), "modules.dep"))
	return err == nil && strings.Contains(string(dep), "/"+name+".ko")
}

// findMkfs finds the command also where a plain PATH lacks the system directories.
func findMkfs() (string, error) {
	for _, name := range []string{"mkfs.btrfs", "/usr/sbin/mkfs.btrfs", "/sbin/mkfs.btrfs"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", dayfly.Errorf(dayfly.CodeUnavailable, "the disk pool needs the command mkfs.btrfs, which is missing").
		WithHint("install it: apt-get install btrfs-progs")
}
