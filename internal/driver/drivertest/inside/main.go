// Command inside is what the conformance suite of the drivers runs inside machines: small operations that print what they
// found, so that a machine needs no shell and no tools. It is not part of the product.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// operations by name. Each prints its result; an error makes the exit code 1.
var operations = map[string]func(args []string) error{
	"true":     func([]string) error { return nil },
	"env":      func(a []string) error { fmt.Println(os.Getenv(a[0])); return nil },
	"cat":      cat,
	"write":    func(a []string) error { return os.WriteFile(a[0], []byte(a[1]), 0o644) },
	"stat":     stat,
	"ls":       ls,
	"readlink": func(a []string) error { s, err := os.Readlink(a[0]); fmt.Println(s); return err },
	"ids":      func([]string) error { fmt.Println(os.Getuid(), os.Geteuid(), os.Getgid()); return nil },
	"cpus":     func([]string) error { fmt.Println(runtime.NumCPU()); return nil },
	"hostname": func([]string) error { s, err := os.Hostname(); fmt.Println(s); return err },
	"ppid":     func([]string) error { fmt.Println(os.Getppid()); return nil },
	"try":      try,
	"kill":     kill,
	"hold":     hold,
	"burn":     burn,
	"alloc":    alloc,
	"zeros":    zeros,
	"children": children,
	"bomb":     bomb,
	"stopped":  stopped,
	"abstract": abstract,
	"dial":     dial,
	"listen":   listen,
	"nofile":   nofile,
	"take":     take,
	"queued":   queued,
	"fill":     fill,
	"segments": segments,
	"attempt":  attempt,
}

func main() {
	if len(os.Args) < 2 || operations[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "inside: no such operation")
		os.Exit(2)
	}
	if err := operations[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func cat(a []string) error {
	b, err := os.ReadFile(a[0])
	_, _ = os.Stdout.Write(b)
	return err
}

// stat prints type and mode, owner and, of a device, its number.
func stat(a []string) error {
	var st unix.Stat_t
	if err := unix.Lstat(a[0], &st); err != nil {
		return err
	}
	fmt.Printf("%o %d:%d %d:%d\n", st.Mode, st.Uid, st.Gid, unix.Major(st.Rdev), unix.Minor(st.Rdev))
	return nil
}

// ls prints names and, of links, where they lead.
func ls(a []string) error {
	entries, err := os.ReadDir(a[0])
	for _, e := range entries {
		target, _ := os.Readlink(filepath.Join(a[0], e.Name()))
		fmt.Println(e.Name(), target)
	}
	return err
}

// try prints what a system call answers: "ok" or the errno's name.
func try(a []string) error {
	fmt.Println(answer(calls()[a[0]]))
	return nil
}

func answer(call func() error) string {
	if call == nil {
		return "no such call"
	}
	err := call()
	if err == nil {
		return "ok"
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

func raw(nr uintptr, args ...uintptr) func() error {
	return func() error {
		var a [6]uintptr
		copy(a[:], args)
		if _, _, errno := syscall.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
			return errno
		}
		return nil
	}
}

// clone3 clones a child that ends at once, with the given flags.
func clone3(flags uint64) func() error {
	return func() error {
		args := [11]uint64{0: flags, 4: uint64(unix.SIGCHLD)}
		pid, _, errno := syscall.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
		if errno != 0 {
			return errno
		}
		if pid == 0 {
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		return nil
	}
}

func socket(domain, kind, protocol int) func() error {
	return func() error {
		fd, err := unix.Socket(domain, kind, protocol)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}
}

// calls are the system calls that can be tried. Those that could harm are given arguments with which they fail anyway.
func calls() map[string]func() error {
	slash := uintptr(unsafe.Pointer(&[]byte("/\x00")[0]))
	tmpfs := uintptr(unsafe.Pointer(&[]byte("tmpfs\x00")[0]))
	const newUser = unix.CLONE_NEWUSER
	return map[string]func() error{
		"mount":          raw(unix.SYS_MOUNT, tmpfs, slash, tmpfs, 0, 0),
		"umount":         raw(unix.SYS_UMOUNT2, slash, unix.MNT_DETACH),
		"fsopen":         raw(unix.SYS_FSOPEN, tmpfs, 0),
		"open_tree":      raw(unix.SYS_OPEN_TREE, 0, slash, unix.OPEN_TREE_CLONE),
		"pivot_root":     raw(unix.SYS_PIVOT_ROOT, slash, slash),
		"unshare_user":   raw(unix.SYS_UNSHARE, newUser),
		"unshare_cgroup": raw(unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP),
		"setns":          raw(unix.SYS_SETNS, ^uintptr(0), 0),
		"clone_user":     raw(unix.SYS_CLONE, newUser|uintptr(unix.SIGCHLD)),
		"clone3_user":    clone3(newUser),
		"clone3_mount":   clone3(unix.CLONE_NEWNS),
		"keyctl":         raw(unix.SYS_KEYCTL, 0, ^uintptr(2), 0),
		"add_key":        raw(unix.SYS_ADD_KEY, 0, 0, 0, 0, ^uintptr(2)),
		"bpf":            raw(unix.SYS_BPF, 0, 0, 0),
		"userfaultfd":    raw(unix.SYS_USERFAULTFD, 0),
		"io_uring":       raw(unix.SYS_IO_URING_SETUP, 1, 0),
		"perf":           raw(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0),
		"init_module":    raw(unix.SYS_INIT_MODULE, 0, 0, 0),
		"kexec":          raw(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0),
		"reboot":         raw(unix.SYS_REBOOT, 0, 0, 0),
		"swapon":         raw(unix.SYS_SWAPON, 0, 0),
		"settimeofday":   raw(unix.SYS_SETTIMEOFDAY, 0, 0),
		"open_by_handle": raw(unix.SYS_OPEN_BY_HANDLE_AT, 0, 0, 0),
		"quotactl":       raw(unix.SYS_QUOTACTL, 0, 0, 0, 0),
		"newest":         raw(9999),
		"foreign_abi":    raw(0x40000000),
		"vsock":          socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0),
		"alg":            socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0),
		"packet":         socket(unix.AF_PACKET, unix.SOCK_RAW, 0),
		"packet_old":     socket(unix.AF_INET, unix.SOCK_PACKET, 0),
		"xdp":            socket(unix.AF_XDP, unix.SOCK_RAW, 0),
		"io_setup":       raw(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(new(uint64)))),
		"pty": func() error {
			_, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
			return err
		},
		"mqueue":         func() error { return openQueue("one") },
		"tcp":            socket(unix.AF_INET, unix.SOCK_STREAM, 0),
		"netlink":        socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE),
		"raw_socket":     socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP),
		"personality":    raw(unix.SYS_PERSONALITY, 0xffffffff),
		"personality_32": raw(unix.SYS_PERSONALITY, 0x0400000),
		"chroot":         raw(unix.SYS_CHROOT, slash),
		"mknod_char": func() error {
			defer os.Remove("/tmp/node")
			return unix.Mknod("/tmp/node", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
		},
		"mknod_fifo": func() error {
			defer os.Remove("/tmp/fifo")
			return unix.Mkfifo("/tmp/fifo", 0o600)
		},
		"memfd": func() error {
			fd, err := unix.MemfdCreate("x", 0)
			if err == nil {
				_ = unix.Close(fd)
			}
			return err
		},
		"inotify":  raw(unix.SYS_INOTIFY_INIT1, 0),
		"sethost":  func() error { return unix.Sethostname([]byte("other")) },
		"ptrace_1": func() error { return unix.PtraceAttach(1) },
		"kill_1":   func() error { return unix.Kill(1, unix.SIGKILL) },
		"vm_read_1": func() error {
			to := make([]byte, 8)
			remote := []unix.RemoteIovec{{Base: 0x400000, Len: len(to)}}
			_, err := unix.ProcessVMReadv(1, []unix.Iovec{{Base: &to[0], Len: uint64(len(to))}}, remote, 0)
			return err
		},
		"more_cpus": func() error {
			var set unix.CPUSet
			set.Set(0)
			return unix.SchedSetaffinity(0, &set)
		},
	}
}

func kill(a []string) error {
	pid, err := strconv.Atoi(a[0])
	if err != nil {
		return err
	}
	return unix.Kill(pid, unix.SIGKILL)
}

// hold prints a line and stays. Its argument marks it in process lists.
func hold([]string) error {
	fmt.Println("here", os.Getpid())
	for {
		_ = unix.Pause() // until it is killed; the runtime's own signals wake it
	}
}

// burn uses one CPU for so many milliseconds of its own time.
func burn(a []string) error {
	ms, err := strconv.Atoi(a[0])
	if err != nil {
		return err
	}
	var u unix.Rusage
	for u.Utime.Nano()+u.Stime.Nano() < int64(ms)*int64(time.Millisecond) {
		for i := range 1 << 20 {
			_ = i * i
		}
		_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	}
	return nil
}

// alloc takes so many MiB of memory for real, prints, and stays.
func alloc(a []string) error {
	mib, err := strconv.Atoi(a[0])
	if err != nil {
		return err
	}
	var all [][]byte
	for range mib {
		b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return err
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		all = append(all, b)
	}
	fmt.Println("allocated", len(all))
	return hold(nil)
}

// zeros reads so many MiB of zeros into memory that it never looks at: the kernel alone touches it.
func zeros(a []string) error {
	mib, err := strconv.Atoi(a[0])
	if err != nil {
		return err
	}
	f, err := os.Open("/dev/zero")
	if err != nil {
		return err
	}
	b, err := unix.Mmap(-1, 0, mib<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	if _, err := io.ReadFull(f, b); err != nil {
		return err
	}
	fmt.Println("read", len(b)>>20)
	return hold(nil)
}

// children starts up to so many children that stay, and prints how many it could.
func children(a []string) error {
	want, err := strconv.Atoi(a[0])
	if err != nil {
		return err
	}
	made := 0
	for range want {
		cmd := exec.Command("/proc/self/exe", "hold", "child")
		if cmd.Start() != nil {
			break
		}
		made++
	}
	fmt.Println(made)
	return nil
}

// bomb makes children that make children, for ever.
func bomb([]string) error {
	fmt.Println("here")
	for {
		cmd := exec.Command("/proc/self/exe", "bomb")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		_ = cmd.Start()
	}
}

// stopped starts a child, stops it and stays.
func stopped([]string) error {
	cmd := exec.Command("/proc/self/exe", "hold", "stopped")
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		return err
	}
	return hold(nil)
}

// abstract listens on an abstract unix socket and stays.
func abstract(a []string) error {
	l, err := net.Listen("unix", "@"+a[0])
	if err != nil {
		return err
	}
	defer l.Close()
	return hold(nil)
}

// dial connects: network, address.
func dial(a []string) error {
	c, err := net.DialTimeout(a[0], a[1], 2*time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

// listen listens on a TCP port (0 for any), prints which, and stays.
func listen(a []string) error {
	l, err := net.Listen("tcp", "127.0.0.1:"+a[0])
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	for {
		_ = unix.Pause() // until it is killed
	}
}

func nofile([]string) error {
	b, err := os.ReadFile("/proc/self/limits")
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "Max open files") || strings.HasPrefix(line, "Max core file size") {
			fmt.Println(strings.Join(strings.Fields(line), " "))
		}
	}
	return err
}
