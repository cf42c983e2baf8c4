package linux

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
)

const (
	probeInstallation = "probes" // probes of all installations share this one: none of them is anybody's sandbox
	probeUIDBase      = 0x7ffe0000
	probeMemory       = 256 << 20
	probeWait         = 20 * time.Second
	probeStale        = 2 * time.Minute // after which a probe's leftover is removed by the next one
	kernelMajor       = 6
	kernelMinor       = 1
	memoryMapMajor    = 6 // first kernel that maps ids of a tmpfs
	memoryMapMinor    = 3
	diskTemp          = "/var/tmp"
	filesWanted       = 65536 // open files of a process inside that real programs have asked for
)

// requirement is one thing the host must have. fault is empty when it has it.
type requirement struct {
	fault   func() string
	install string
}

// requirements are looked at before a machine is tried, to explain a failure better than an errno does.
var requirements = []requirement{
	{rootFault, "run the server as root (sudo)"},
	{kernelFault, "upgrade the kernel to 6.1 or newer"},
	{userNamespaceFault, "allow user namespaces: sysctl -w user.max_user_namespaces=65536"},
	{fileSystemFault("overlay"), "load or build in the kernel module: modprobe overlay"},
	{seccompFault, "use a kernel built with CONFIG_SECCOMP_FILTER"},
}

// Probe implements dayfly.Driver. It boots a machine with an empty root file system and measures it.
func (d *Driver) Probe(ctx context.Context) dayfly.Capability {
	c := dayfly.Capability{OOM: dayfly.OOMEndsCommand}
	for _, r := range requirements {
		if fault := r.fault(); fault != "" {
			c.Reasons = append(c.Reasons, fault)
			c.Install = append(c.Install, r.install)
		}
	}
	if d.unfit != nil {
		e := dayfly.AsError(d.unfit)
		c.Reasons = append(c.Reasons, e.Message)
		if e.Hint != "" {
			c.Install = append(c.Install, e.Hint)
		}
	}
	if len(c.Reasons) > 0 {
		return c
	}
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	idle, err := d.trial(ctx)
	if err != nil {
		c.Reasons = append(c.Reasons, "a trial machine failed: "+err.Error())
		return c
	}
	c.Works, c.IdleBytes = true, idle
	c.Reasons = append(c.Reasons, shortcomings()...)
	return c
}

// shortcomings tells what works with less on this host.
func shortcomings() (out []string) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err == nil && l.Max < filesWanted {
		out = append(out, fmt.Sprintf("a process inside may open only %d files, the hard limit that this server was started with", l.Max))
	}
	if on, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil && on == 1 {
		out = append(out, "sudo does not work inside, because this server was started with NoNewPrivileges")
	}
	return out
}

// trial starts a machine, measures its idle memory and destroys it.
func (d *Driver) trial(ctx context.Context) (idleBytes int64, err error) {
	d.sweepProbes(ctx)
	spec, remove, err := d.trialSpec()
	if err != nil {
		return 0, err
	}
	defer remove()
	inst, err := d.start(ctx, probeInstallation, spec)
	defer func() { _ = d.host.RemoveInstallation(probeInstallation) }() // busy while another probe runs
	if err != nil {
		return 0, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWait)
		defer cancel()
		err = errors.Join(err, inst.Destroy(ctx))
	}()
	conn, err := inst.Dial(ctx)
	if err != nil {
		return 0, err
	}
	_ = conn.Close()
	usage, err := inst.Usage(ctx)
	if err != nil {
		return 0, err
	}
	pss, err := proportional(inst.pid)
	return max(pss, usage.MemoryBytes), err
}

// trialSpec describes a machine with nothing in it. remove removes its files.
func (d *Driver) trialSpec() (spec dayfly.InstanceSpec, remove func(), err error) {
	dir, err := os.MkdirTemp(d.trialRoot(), "dayfly-probe-")
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
		Limits:  dayfly.Limits{VCPU: 1, MemoryBytes: probeMemory},
		UIDBase: probeUIDBase,
		Root:    dayfly.RootFS{Lower: []string{filepath.Join(dir, "lower")}, Upper: filepath.Join(dir, "disk")},
		RunDir:  dir,
		User:    dayfly.User{Home: "/"},
	}, func() { _ = os.RemoveAll(dir) }, nil
}

// trialRoot gives a directory for a trial machine's files: not in memory where the kernel cannot map ids there (before 6.3).
func (d *Driver) trialRoot() string {
	for _, dir := range []string{d.scratch, os.TempDir(), diskTemp} {
		var fs unix.Statfs_t
		if dir == "" || unix.Statfs(dir, &fs) != nil {
			continue
		}
		if fs.Type != unix.TMPFS_MAGIC || kernelAtLeast(memoryMapMajor, memoryMapMinor) {
			return dir
		}
	}
	return d.scratch
}

// sweepProbes removes what a probe that was killed has left.
func (d *Driver) sweepProbes(ctx context.Context) {
	ids, err := d.host.List(probeInstallation)
	if err != nil {
		return // the trial will say more
	}
	for _, id := range ids {
		info, err := os.Stat(filepath.Join(d.host.InstallationDir(probeInstallation), id))
		if err == nil && time.Since(info.ModTime()) < probeStale {
			continue
		}
		if group, err := d.host.Group(probeInstallation, id); err == nil {
			_ = erase(ctx, group)
		}
	}
}

// proportional reads a process's share of memory, in bytes.
func proportional(pid int) (int64, error) {
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

// kernelAtLeast tells whether the kernel is that version or a later one.
func kernelAtLeast(major, minor int) bool {
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
