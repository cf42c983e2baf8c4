package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attempt tries one thing of the escape checklist and prints "ok" if it could be done, else the errno's name. It does the same
// on the host, where the checklist runs it in namespaces of its own as the control: nothing of it stays there.
func attempt(a []string) error {
	runtime.LockOSThread() // some attempts change the rights of one thread
	one, args := attempts[a[0]], a[1:]
	if one == nil {
		return fmt.Errorf("no attempt is called %s", a[0])
	}
	fmt.Println(answer(func() error { return one(args) }))
	return nil
}

// attempts by name. Each gets the arguments behind its name.
var attempts = map[string]func(a []string) error{
	"mount": func(a []string) error { return inDir(func(dir string) error { return mountAt(dir, a) }) },
	"bind": func(a []string) error {
		return inDir(func(dir string) error { return unix.Mount("/", dir, "", unix.MS_BIND, "") })
	},
	"remount":       func(a []string) error { return unix.Mount("", a[0], "", unix.MS_REMOUNT|unix.MS_BIND, "") },
	"unmount":       func(a []string) error { return unix.Unmount(a[0], unix.MNT_DETACH) },
	"share":         func([]string) error { return unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "") },
	"overlay":       func([]string) error { return inDir(mountOverlay) },
	"mount_by_fd":   func([]string) error { return inDir(mountByDescriptor) },
	"clone_tree":    func([]string) error { return inDir(cloneTree) },
	"mount_setattr": clearReadOnly,
	"pivot":         func([]string) error { return inDir(pivot) },
	"chroot_dance":  func([]string) error { return inDir(chrootDance) },
	"handle":        openHandle,
	"userns":        inUserNamespace,

	"mknod": makeNode,
	"open":  openPath,

	"domainname":    func([]string) error { return unix.Setdomainname([]byte("other")) },
	"module_load":   loadModule,
	"module_unload": func([]string) error { return unix.DeleteModule("dayfly_no_such_module", unix.O_NONBLOCK) },
	"kexec_file":    func([]string) error { return raw(unix.SYS_KEXEC_FILE_LOAD, ^uintptr(0), ^uintptr(0), 0, 0, 0)() },
	"swapoff":       func([]string) error { return withPath(unix.SYS_SWAPOFF, "/no/such/file") },
	"acct":          func([]string) error { return withPath(unix.SYS_ACCT, "/no/such/file") },
	"reboot":        func([]string) error { return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) },
	"vhangup":       func([]string) error { return raw(unix.SYS_VHANGUP)() },
	"ports":         ports,
	"clock":         func([]string) error { return raw(unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, 1 /* no address */)() },
	"adjtimex":      func([]string) error { _, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_TICK}); return err }, /* no tick */
	"syslog": func([]string) error {
		_, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, make([]byte, 64))
		return err
	},
	"bpf":         bpfMap,
	"perf":        perfEvent,
	"userfaultfd": func([]string) error { return raw(unix.SYS_USERFAULTFD, unix.O_CLOEXEC)() },
	"io_uring": func([]string) error {
		var p [120]byte
		return raw(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&p)))()
	},
	"fanotify": func([]string) error {
		_, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, 0)
		return err
	},
	"key":         hostKey,
	"quota":       func([]string) error { return raw(unix.SYS_QUOTACTL, 0x800001<<8 /* Q_SYNC */, 0, 0, 0)() },
	"raise_files": func([]string) error { return raise(unix.RLIMIT_NOFILE) },
	"core_limit":  coreLimit,
	"nice":        func([]string) error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -20) },
	"realtime":    realtime,
	"alarm": func([]string) error {
		_, err := unix.TimerfdCreate(unix.CLOCK_REALTIME_ALARM, unix.TFD_CLOEXEC)
		return err
	},
	"xattr": func(a []string) error {
		return inDir(func(dir string) error { return unix.Setxattr(dir, a[0], []byte("y"), 0) })
	},
	"immutable":  func([]string) error { return inDir(immutable) },
	"capset":     func([]string) error { return gainCapability() },
	"ambient":    ambient,
	"file_caps":  func([]string) error { return inDir(fileCapabilities) },
	"trace":      trace,
	"open_write": func(a []string) error { return onlyOpen(a[0], unix.O_WRONLY) },
	"write":      func(a []string) error { return writeText(a[0], strings.Join(a[1:], " ")) },
	"rename":     func(a []string) error { return os.Rename(a[0], a[0]+".away") },

	"pidfd_getfd": takeDescriptor,
	"vm_write":    writeMemory,
	"pidfd":       func(a []string) error { pid, _ := strconv.Atoi(a[0]); _, err := unix.PidfdOpen(pid, 0); return err },
	"join":        joinNamespaces,
	"kill_all":    func([]string) error { return unix.Kill(-1, unix.SIGKILL) },
	"segment":     func(a []string) error { key, _ := strconv.Atoi(a[0]); _, err := unix.SysvShmGet(key, 1, 0); return err },
	"queue":       func(a []string) error { return openExistingQueue(a[0]) },
	"crash":       crash,
	"dirty_pipe":  dirtyPipe,
	"writable":    writable,
	"addresses":   addresses,
	"overwrite":   overwriteExecutables,

	"link_add": func([]string) error { return addLink() },
	"address":  func([]string) error { return addAddress() },
	"lo_down":  func([]string) error { return loopbackDown() },
	"buffer":   func([]string) error { return socketOption(unix.SO_RCVBUFFORCE, 1<<30) },
	"nft":      func([]string) error { return firewall() },
	"audit":    func([]string) error { return auditOff() },
}

// inDir does something with a new directory, which is removed again.
func inDir(do func(dir string) error) error {
	dir, err := os.MkdirTemp("", "attempt-")
	if err != nil {
		return err
	}
	err = do(dir)
	_ = unix.Unmount(dir, unix.MNT_DETACH)
	_ = os.RemoveAll(dir)
	return err
}

// withPath calls what takes one path.
func withPath(nr uintptr, path string) error {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	err = raw(nr, uintptr(unsafe.Pointer(p)))()
	runtime.KeepAlive(p)
	return err
}

func onlyOpen(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

func writeText(path, text string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(text))
	return err
}

func openPath(a []string) error { return onlyOpen(a[0], unix.O_RDONLY) }

// makeNode makes a device node and opens it: kind (b or c), major, minor.
func makeNode(a []string) error {
	major, _ := strconv.Atoi(a[1])
	minor, _ := strconv.Atoi(a[2])
	kind := uint32(unix.S_IFCHR)
	if a[0] == "b" {
		kind = unix.S_IFBLK
	}
	return inDir(func(dir string) error {
		node := filepath.Join(dir, "node")
		if err := unix.Mknod(node, kind|0o600, int(unix.Mkdev(uint32(major), uint32(minor)))); err != nil {
			return err
		}
		return onlyOpen(node, unix.O_RDONLY)
	})
}

// writable walks directories and tries to open every file for writing. It writes nothing. It prints what it could open.
func writable(a []string) error {
	const shownMax = 20
	seen, found := 0, []string{}
	for _, root := range a {
		_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil // what cannot be listed cannot be opened either
			}
			seen++
			if onlyOpen(path, unix.O_WRONLY) == nil && len(found) < shownMax {
				found = append(found, path)
			}
			return nil
		})
	}
	if seen == 0 {
		return errors.New("nothing to open")
	}
	if len(found) == 0 {
		return unix.EROFS
	}
	return errors.New(strings.Join(found, " "))
}

// addresses looks for kernel addresses at the start of the lines of a file.
func addresses(a []string) error {
	const part, addressDigits = 64 << 10, 8
	f, err := os.Open(a[0])
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, part)
	n, err := f.Read(b)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b[:n])) {
		if line = strings.TrimSpace(line); len(line) > addressDigits && strings.Trim(line[:addressDigits], "0-") != "" {
			return nil
		}
	}
	return unix.EPERM
}

// overwriteExecutables writes to the executable of every process: by its link, and by a descriptor opened before, as
// CVE-2019-5736 did. It goes round so often, to meet processes that are just starting, and starts such itself. What it writes is
// what is there.
func overwriteExecutables(a []string) error {
	rounds, err := strconv.Atoi(a[0])
	if err != nil {
		return err
	}
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return err
	}
	seen := 0
	for range rounds {
		cmd := exec.Command("/script") // its interpreter is /proc/self/exe
		_ = cmd.Start()
		links, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, link := range links {
			seen++
			if info, err := os.Stat(link); err == nil && os.SameFile(info, own) {
				continue // the machine's own program, which is the machine's to change
			}
			if err := overwrite(link); err != nil {
				return err
			}
		}
		if cmd.Process != nil {
			_ = cmd.Wait()
		}
	}
	if seen == 0 {
		return errors.New("no executable was seen at all")
	}
	return unix.ETXTBSY
}

func overwrite(link string) error {
	name, _ := os.Readlink(link)
	fd, err := unix.Open(link, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
	}
	for _, path := range []string{link, fmt.Sprintf("/proc/self/fd/%d", fd)} {
		to, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		defer unix.Close(to)
		first := make([]byte, 1)
		if _, err := unix.Pread(to, first, 0); err != nil {
			return err
		}
		if _, err := unix.Pwrite(to, first, 0); err == nil {
			return fmt.Errorf("%s, which is %s, was written", path, name)
		}
		b, err := unix.Mmap(to, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			continue
		}
		written := touch(b)
		_ = unix.Munmap(b)
		if written {
			return fmt.Errorf("%s, which is %s, was written by a mapping", path, name)
		}
	}
	return nil
}

// touch writes what is there to memory and tells whether the kernel let it.
func touch(b []byte) (written bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { _ = recover() }()
	p := (*atomic.Uint32)(unsafe.Pointer(&b[0]))
	p.Store(p.Load())
	return true
}

// crash ends this process by a signal that leaves a core file.
func crash([]string) error {
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	panic("crash") // with GOTRACEBACK=crash
}

// coreLimit sets the limit of core files to nothing, which lets a core_pattern program start, and tells whether that holds.
func coreLimit([]string) error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return err
	}
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &now); err != nil {
		return err
	}
	if now.Cur != 0 {
		return fmt.Errorf("still_%d", now.Cur)
	}
	return nil
}

func raise(resource int) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(resource, &now); err != nil {
		return err
	}
	now.Max++
	return unix.Setrlimit(resource, &now)
}

// nativeAttr is the head of a kernel structure of 32-bit words.
func nativeAttr(words ...uint32) []byte {
	b := make([]byte, 0, 128)
	for _, w := range words {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	return b[:128]
}
