package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/cli"
	"dayfly.dev/dayfly/internal/disk/btrfs"
	"dayfly.dev/dayfly/internal/reserve"
)

// verdict is how a check of the host ended.
type verdict string

// The verdicts. A warning works with less; a failure means that no sandbox can start.
const (
	verdictOK   verdict = "ok"
	verdictWarn verdict = "warning"
	verdictFail verdict = "failed"
)

// finding is one line of the doctor's report.
type finding struct {
	Check   string   `json:"check"`
	Verdict verdict  `json:"verdict"`
	Detail  string   `json:"detail"`
	Fix     []string `json:"fix,omitempty"` // what to install or change
}

func ok(check, format string, args ...any) finding {
	return finding{Check: check, Verdict: verdictOK, Detail: fmt.Sprintf(format, args...)}
}

func warn(check, detail string, fix ...string) finding {
	return finding{check, verdictWarn, detail, fix}
}

func fail(check, detail string, fix ...string) finding {
	return finding{check, verdictFail, detail, fix}
}

func doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "doctor",
		Short:   "Check what this host can do, and say what to install",
		Long:    "Check what this host can do: kernel, cgroups, disk, network, and each isolation driver, with what to\ninstall or change where something is missing. It changes nothing. Exit code 1 if no sandbox could start.",
		Example: "  sudo dayfly doctor\n  sudo dayfly doctor -o json",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			found := examine(cmd.Context(), cfg)
			if err := report(cmd, found); err != nil {
				return err
			}
			for _, f := range found {
				if f.Verdict == verdictFail {
					return cli.ErrSaid
				}
			}
			return nil
		},
	}
	addSettings(cmd, "data", "listen", "network-range", "network-allow-private", "disk-pool", "disk-quota", "isolation-auto", "gvisor-runsc-path")
	return cmd
}

// report prints findings as text or JSON.
func report(cmd *cobra.Command, found []finding) error {
	if asJSON(cmd) {
		return cli.WriteJSON(cmd.OutOrStdout(), map[string]any{"checks": found})
	}
	for _, f := range found {
		fmt.Fprintf(cmd.OutOrStdout(), "%-8s %-22s %s\n", f.Verdict, f.Check, f.Detail)
		for _, fix := range f.Fix {
			fmt.Fprintf(cmd.OutOrStdout(), "%31s %s\n", "→", fix)
		}
	}
	return nil
}

// examine runs every check. None depends on another's outcome.
func examine(ctx context.Context, cfg config) []finding {
	found := []finding{
		checkRoot(), checkKernel(), checkCgroups(), checkFilesystem("overlay"), checkBtrfs(cfg), checkQuota(cfg),
		checkUserNamespaces(), checkThreads(), checkKVM(), checkSpace(cfg), checkListen(cfg),
	}
	found = append(found, checkNetwork(ctx, cfg)...)
	return append(found, checkDrivers(ctx, cfg)...)
}

func checkRoot() finding {
	if os.Geteuid() != 0 {
		return fail("root", "not running as root", "run it with sudo")
	}
	return ok("root", "yes")
}

func checkKernel() finding {
	release := kernelRelease()
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return warn("kernel", "cannot read the version from "+release)
	}
	if major < 6 || major == 6 && minor < 1 {
		return fail("kernel", release+" is older than 6.1", "install a newer kernel: Debian 12, Ubuntu 24.04 or later have one")
	}
	return ok("kernel", "%s", release)
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func checkCgroups() finding {
	h, err := cgroup.Detect("/")
	if err != nil {
		return fail("cgroups", err.Error(), "mount cgroup2 on /sys/fs/cgroup (any systemd of the last years does)")
	}
	if h.Hybrid() {
		return ok("cgroups", "hybrid: limits by version 1, life by version 2 at %s", h.V2())
	}
	return ok("cgroups", "version 2 at %s", h.V2())
}

func checkFilesystem(name string) finding {
	b, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return warn(name, "cannot read /proc/filesystems")
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 0 && f[len(f)-1] == name {
			return ok(name, "the kernel has it")
		}
	}
	if exec.Command("modprobe", name).Run() == nil {
		return ok(name, "the kernel has it as a module")
	}
	return fail(name, "the kernel has no "+name, "use a stock distribution kernel")
}

func checkBtrfs(cfg config) finding {
	r := btrfs.Probe(cfg.Data)
	if !r.Works {
		return warn("btrfs", strings.Join(r.Reasons, " ")+" The disk pool will be plain, and disk limits off.", r.Install...)
	}
	return ok("btrfs", "kernel and tools are there")
}

func checkQuota(cfg config) finding {
	const check = "disk limits"
	r := btrfs.Probe(cfg.Data)
	switch {
	case cfg.Disk.Pool == "plain":
		return warn(check, "off: the disk pool is set to plain")
	case !r.Works:
		return warn(check, "off: see btrfs")
	case cfg.Disk.Quota != "auto":
		return ok(check, "%s quotas, as set", cfg.Disk.Quota)
	case r.Quota == btrfs.QuotaSimple:
		return ok(check, "simple quotas")
	}
	return ok(check, "classic quotas (simple ones need kernel 6.7)")
}

func checkUserNamespaces() finding {
	b, err := os.ReadFile("/proc/sys/user/max_user_namespaces")
	if err != nil || strings.TrimSpace(string(b)) == "0" {
		return fail("user namespaces", "switched off", "sysctl user.max_user_namespaces=65536")
	}
	return ok("user namespaces", "up to %s", strings.TrimSpace(string(b)))
}

// Threads of an idle machine, for what doctor says. bench measures them.
const (
	threadsLinux  = 19
	threadsGVisor = 31
)

// checkThreads tells how many sandboxes the kernel's own limit of threads allows, which is the first that a host with much memory
// meets where nobody raised it (systemd does).
func checkThreads() finding {
	const check = "threads"
	most := 0
	for _, name := range []string{"pid_max", "threads-max"} {
		b, err := os.ReadFile("/proc/sys/kernel/" + name)
		if err != nil {
			return warn(check, "cannot read the kernel's limit: "+err.Error())
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			return warn(check, "cannot read the kernel's limit: "+err.Error())
		}
		if most == 0 || n < most {
			most = n
		}
	}
	detail := fmt.Sprintf("%d: idle sandboxes end at about %d under linux, %d under gvisor", most, most/threadsLinux, most/threadsGVisor)
	if most/threadsGVisor >= reserve.SlotsPerBlock {
		return ok(check, "up to %d", most)
	}
	f := ok(check, "%s", detail)
	f.Fix = []string{"for more, where the memory allows it: sysctl kernel.pid_max=4194304"}
	return f
}

// KVM requests, from linux/kvm.h.
const (
	kvmCreateVM      = 0xAE01
	kvmCreateIRQChip = 0xAE60
)

// checkKVM tells whether the hardware could run virtual machines. No driver of this version uses it.
func checkKVM() finding {
	const check = "KVM"
	kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return ok(check, "not there (not needed)")
	}
	defer kvm.Close()
	vm, _, errno := unix.Syscall(unix.SYS_IOCTL, kvm.Fd(), kvmCreateVM, 0)
	if errno != 0 {
		return ok(check, "/dev/kvm makes no virtual machine: %v (not needed)", errno)
	}
	defer unix.Close(int(vm))
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, vm, kvmCreateIRQChip, 0); errno != 0 {
		return ok(check, "/dev/kvm cannot run stock guests: %v (not needed)", errno)
	}
	return ok(check, "usable (not needed)")
}

// diskWanted is what a first start needs: the base image unpacked, and room for sandboxes.
const diskWanted = 4 << 30

// nearest is a directory if it is there, else the closest one above it that is.
func nearest(dir string) string {
	for dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

func checkSpace(cfg config) finding {
	dir := nearest(cfg.Data)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return warn("disk space", "cannot read it for "+dir)
	}
	free := int64(fs.Bavail) * fs.Bsize
	if free < diskWanted {
		return warn("disk space", fmt.Sprintf("%d GiB free for %s", free>>30, cfg.Data), "make room, or choose another place with --data")
	}
	return ok("disk space", "%d GiB free for %s", free>>30, cfg.Data)
}

func checkListen(cfg config) finding {
	l, err := net.Listen("tcp", cfg.Listen)
	if err == nil {
		_ = l.Close()
		return ok("listen address", "%s is free", cfg.Listen)
	}
	if s, running := runningServer(cfg.Data); running {
		return ok("listen address", "a server of this data directory listens on %s", s.URL)
	}
	return fail("listen address", err.Error(), "choose another with --listen")
}

// tail reads at most the last most bytes of a file after offset begin, for error texts.
func tail(path string, begin, most int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		begin = max(begin, info.Size()-most)
	}
	b, _ := io.ReadAll(io.NewSectionReader(f, begin, most))
	return string(b)
}
