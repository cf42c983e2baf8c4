// Package trial is what the probes of all drivers have in common: what a host must have, a machine with nothing in it to try a
// start with, and the removal of what a probe that was killed has left.
//
// To ask a host for one more thing, add a Requirement here and name it in the drivers that need it.
package trial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
)

// Installation is that of all trial machines of all installations: none of them is anybody's sandbox.
const Installation = "probes"

const (
	uidBase        = 0x7ffe0000
	memoryBytes    = 256 << 20
	stale          = 2 * time.Minute // after which a probe's leftover is removed by the next one
	kernelMajor    = 6
	kernelMinor    = 1
	memoryMapMajor = 6 // first kernel that maps ids of a tmpfs
	memoryMapMinor = 3
	diskTemp       = "/var/tmp"
	dirMode        = 0o755
)

// Requirement is one thing that a host must have. Fault is empty when it has it, else a sentence; Install says what to do then.
type Requirement struct {
	Fault   func() string
	Install string
}

// The requirements.
var (
	Root           = Requirement{rootFault, "run the server as root (sudo)"}
	Kernel         = Requirement{kernelFault, "upgrade the kernel to 6.1 or newer"}
	UserNamespaces = Requirement{userNamespaceFault, "allow user namespaces: sysctl -w user.max_user_namespaces=65536"}
	Overlay        = Requirement{fileSystemFault("overlay"), "load or build in the kernel module: modprobe overlay"}
	Seccomp        = Requirement{seccompFault, "use a kernel built with CONFIG_SECCOMP_FILTER"}
)

// Check adds what the host lacks to c.
func Check(c *dayfly.Capability, all ...Requirement) {
	for _, r := range all {
		if fault := r.Fault(); fault != "" {
			c.Reasons = append(c.Reasons, fault)
			c.Install = append(c.Install, r.Install)
		}
	}
}

// Spec describes a machine with nothing in it, whose files are in scratch if it may be used. remove removes its files.
func Spec(scratch string) (spec dayfly.InstanceSpec, remove func(), err error) {
	dir, err := os.MkdirTemp(root(scratch), "dayfly-probe-")
	if err != nil {
		return spec, nil, fmt.Errorf("make scratch directory: %w", err)
	}
	for _, sub := range []string{"in", "lower", "disk/u", "disk/w"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, sub), dirMode))
	}
	if err != nil {
		return spec, nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dayfly.InstanceSpec{
		ID:      dayfly.NewID(dayfly.PrefixSandbox),
		Limits:  dayfly.Limits{VCPU: 1, MemoryBytes: memoryBytes},
		UIDBase: uidBase,
		Root:    dayfly.RootFS{Lower: []string{filepath.Join(dir, "lower")}, Upper: filepath.Join(dir, "disk")},
		RunDir:  dir,
		User:    dayfly.User{Home: "/"},
	}, func() { _ = os.RemoveAll(dir) }, nil
}

// root gives a directory for a trial machine's files: not in memory where the kernel cannot map ids there (before 6.3).
func root(scratch string) string {
	for _, dir := range []string{scratch, os.TempDir(), diskTemp} {
		var fs unix.Statfs_t
		if dir == "" || unix.Statfs(dir, &fs) != nil {
			continue
		}
		if fs.Type != unix.TMPFS_MAGIC || KernelAtLeast(memoryMapMajor, memoryMapMinor) {
			return dir
		}
	}
	return scratch
}

// Sweep removes what a probe that was killed has left.
func Sweep(ctx context.Context, host cgroup.Host) {
	ids, err := host.List(Installation)
	if err != nil {
		return // the trial will say more
	}
	for _, id := range ids {
		info, err := os.Stat(filepath.Join(host.InstallationDir(Installation), id))
		if err == nil && time.Since(info.ModTime()) < stale {
			continue
		}
		if group, err := host.Group(Installation, id); err == nil {
			_ = errors.Join(group.Kill(ctx), group.Remove())
		}
	}
}

// Proportional reads a process's share of memory, in bytes.
func Proportional(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, fmt.Errorf("measure idle memory: %w", err)
	}
	for line := range bytes.Lines(b) {
		if f := strings.Fields(string(line)); len(f) == 3 && f[0] == "Pss:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("measure idle memory: the kernel tells no proportional share")
}

func rootFault() string {
	if unix.Geteuid() != 0 {
		return "the server does not run as root"
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return "its own capabilities cannot be read: " + err.Error()
	}
	for name, c := range map[string]uint{
		"CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_SETUID": unix.CAP_SETUID, "CAP_SETGID": unix.CAP_SETGID,
		"CAP_MKNOD": unix.CAP_MKNOD, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_KILL": unix.CAP_KILL,
	} {
		if data[0].Effective&(1<<c) == 0 {
			return "root lacks " + name + " here, as in a container"
		}
	}
	return ""
}

func kernelFault() string {
	release, major, minor, err := kernelVersion()
	if err != nil {
		return "the kernel's version cannot be read: " + err.Error()
	}
	if major < kernelMajor || major == kernelMajor && minor < kernelMinor {
		return "the kernel " + release + " is too old"
	}
	return ""
}

// KernelAtLeast tells whether the kernel is that version or a later one.
func KernelAtLeast(major, minor int) bool {
	_, haveMajor, haveMinor, err := kernelVersion()
	return err == nil && (haveMajor > major || haveMajor == major && haveMinor >= minor)
}

func kernelVersion() (release string, major, minor int, err error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", 0, 0, err
	}
	release = unix.ByteSliceToString(u.Release[:])
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return "", 0, 0, fmt.Errorf("%q is not understood", release)
	}
	return release, major, minor, nil
}

func userNamespaceFault() string {
	b, err := os.ReadFile("/proc/sys/user/max_user_namespaces")
	if err != nil {
		return "the kernel has no user namespaces"
	}
	if strings.TrimSpace(string(b)) == "0" {
		return "user namespaces are switched off"
	}
	return ""
}

func fileSystemFault(name string) func() string {
	return func() string {
		fd, err := unix.Fsopen(name, unix.FSOPEN_CLOEXEC) // loads the module, if there is one
		if err != nil {
			return "the kernel has no file system " + name
		}
		_ = unix.Close(fd)
		return ""
	}
}

func seccompFault() string {
	if _, err := os.Stat("/proc/sys/kernel/seccomp/actions_avail"); err != nil {
		return "the kernel has no seccomp filters"
	}
	return ""
}
