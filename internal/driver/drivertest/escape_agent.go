package drivertest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// runtimeAsInterpreter is the exploit of CVE-2019-5736: a program whose interpreter is /proc/self/exe makes the runtime execute
// itself inside, and another one waits to open that executable for writing.
func runtimeAsInterpreter(t *testing.T, s *suite) {
	layer := t.TempDir()
	if err := os.WriteFile(layer+"/script", []byte("#!/proc/self/exe\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	m := s.start(t, under(layer))
	before := executableOf(t, statePID(t, m.State()))
	attacker := make(chan dayfly.Result, 1)
	go func() {
		r, _ := m.shell.Run(ctx(t), dayfly.ProcessSpec{
			ID: dayfly.NewID(dayfly.PrefixProcess), Argv: []string{s.Inside, "attempt", "overwrite", "50"}, User: asRoot, Timeout: caseWait,
		}, nil)
		attacker <- r
	}()
	for range 20 {
		// Whatever it does: it may fail to start, or be the agent that finds itself to be no PID 1.
		_, _ = m.shell.Run(ctx(t), dayfly.ProcessSpec{ID: dayfly.NewID(dayfly.PrefixProcess), Argv: []string{"/script"}, User: asRoot, Timeout: slowWait}, nil)
	}
	if got := output(<-attacker); got != "ETXTBSY" {
		t.Errorf("overwriting executables answers %q", got)
	}
	if after := executableOf(t, statePID(t, m.State())); after != before {
		t.Error("the executable of PID 1 has changed")
	}
	m.run(t, asUser, "true")
	s.start(t).run(t, asUser, "true")
}

func executableOf(t *testing.T, pid int) [sha256.Size]byte {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(b)
}

// agentDescriptors asks the agent for files by way of its own descriptors and links in /proc: its /proc/self is PID 1.
func agentDescriptors(t *testing.T, s *suite) {
	g := s.guest(t)
	g.put(t, "/tmp/file", []byte("x"))
	if got := g.content(t, "/tmp/file"); got != "x" { // the control
		t.Fatalf("content = %q", got)
	}
	var paths []string
	for fd := range 32 {
		for _, below := range []string{"", "/cgroup.procs", "/../cgroup.procs", "/etc/passwd", "/grant"} {
			paths = append(paths, fmt.Sprintf("/proc/self/fd/%d%s", fd, below))
		}
	}
	for _, of := range []string{"self", "1", "thread-self"} {
		paths = append(paths, "/proc/"+of+"/root/etc/passwd", "/proc/"+of+"/cwd/etc/passwd", "/proc/"+of+"/exe", "/proc/"+of+"/mem")
	}
	for _, path := range paths {
		_, r, err := g.Read(ctx(t), path, dayfly.FileRange{Length: -1})
		if err == nil {
			b, _ := io.ReadAll(io.LimitReader(r, 16))
			_ = r.Close()
			t.Errorf("read %s: %q", path, b)
		}
		if _, err := g.Write(ctx(t), path, nil, bytes.NewReader([]byte("1"))); err == nil {
			t.Errorf("%s was written", path)
		}
	}
	g.run(t, asUser, "true")
}

// procDirectories starts commands in directories that links in /proc lead to (CVE-2024-21626, beside the case "working directory
// in a descriptor").
func procDirectories(t *testing.T, s *suite) {
	m := s.start(t)
	for _, cwd := range []string{
		"/proc/self/root", "/proc/self/cwd", "/proc/self/cwd/../../..", "/proc/1/root", "/proc/1/cwd", "/proc/thread-self/root",
		"/proc/self/fd", "/proc/self/fd/..", "/proc/self/task/1/cwd", "/dev/fd/7", "/proc/self/map_files", "/proc/self/ns",
	} {
		r, err := m.shell.Run(ctx(t), dayfly.ProcessSpec{
			ID: dayfly.NewID(dayfly.PrefixProcess), Argv: []string{s.Inside, "stat", "../../../../../../inside-marker"}, Cwd: cwd, User: asRoot,
		}, nil)
		if err == nil && r.Exit.Code != 0 {
			t.Errorf("cwd %s: the root above it is not the machine's: %s", cwd, r.Stdout.Head)
		}
	}
	r := m.exec(t, dayfly.ProcessSpec{Argv: []string{s.Inside, "stat", "../../inside-marker"}, Cwd: "/home/user", User: asRoot}) // the control
	if r.Exit.Code != 0 {
		t.Errorf("from an ordinary directory: %s", r.Stdout.Head)
	}
}

// loadedByPIDOne puts libraries of the attacker's into the image, where a runtime that enters it would load them (CVE-2019-14271):
// PID 1 maps nothing but itself.
func loadedByPIDOne(t *testing.T, s *suite) {
	layer := t.TempDir()
	for path, content := range map[string]string{
		"etc/ld.so.preload": "/lib/evil.so\n", "etc/nsswitch.conf": "passwd: evil\nhosts: evil\n",
		"lib/evil.so": "no library", "lib/libnss_evil.so.2": "no library",
	} {
		directory(t, filepath.Dir(filepath.Join(layer, path)))
		if err := os.WriteFile(filepath.Join(layer, path), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	g := s.guest(t, under(layer))
	g.put(t, "/home/user/file", []byte("x"))
	if got := g.content(t, "/home/user/file"); got != "x" {
		t.Errorf("content = %q", got)
	}
	g.run(t, "user", "true") // by name
	if s.UserKernel {
		return // what its process on the host maps is what everything inside maps
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", statePID(t, g.State())))
	if err != nil || len(maps) == 0 {
		t.Fatalf("maps: %v", err)
	}
	for line := range strings.Lines(string(maps)) {
		if fields := strings.Fields(line); len(fields) > 5 && fields[5][0] == '/' && !strings.HasPrefix(fields[5], "/memfd:") {
			t.Errorf("PID 1 maps %s", fields[5])
		}
	}
}

// heldByPIDOne looks from the host at every descriptor of every process of a machine: none is a directory of the host, none
// has a root directory of the host.
func heldByPIDOne(t *testing.T, s *suite) {
	m := s.start(t)
	host, err := os.Stat("/")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, pid := range m.onHost(t) {
		if root, err := os.Stat(fmt.Sprintf("/proc/%d/root/", pid)); err == nil && os.SameFile(root, host) {
			t.Errorf("process %d has the host's root directory", pid)
		}
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			info, err := os.Stat(fd)
			if err != nil || !info.IsDir() {
				continue
			}
			seen++
			if fault := m.heldFault(fd, info, host); fault != "" {
				target, _ := os.Readlink(fd)
				t.Errorf("%s (%s): %s", fd, target, fault)
			}
		}
	}
	if seen == 0 {
		t.Error("no directory is held at all: nothing was looked at")
	}
}

// heldFault tells what is wrong with a machine's holding a directory, or nothing.
func (m *machine) heldFault(fd string, info, host os.FileInfo) string {
	if os.SameFile(info, host) {
		return "the host's root directory"
	}
	// Going up must end before the host's root.
	above := fd
	const depth = 64
	for range depth {
		above += "/.."
		up, err := os.Stat(above)
		if err != nil {
			return ""
		}
		if os.SameFile(up, host) {
			return "the host's root directory is above it"
		}
		if os.SameFile(up, info) {
			return ""
		}
		info = up
	}
	return "no end above it"
}

// groupOfPIDOne looks at what PID 1, taken over by an attacker, could do by the control group that it holds: the group is the top
// of what it sees, and what limits it belongs to the host.
func groupOfPIDOne(t *testing.T, s *suite) {
	m := s.start(t)
	seen := 0
	for _, pid := range m.onHost(t) {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			var fs unix.Statfs_t
			if info, err := os.Stat(fd); err != nil || !info.IsDir() || unix.Statfs(fd, &fs) != nil {
				continue
			}
			if fs.Type == unix.CGROUP2_SUPER_MAGIC || fs.Type == unix.CGROUP_SUPER_MAGIC {
				groupFaults(t, fd)
				seen++
			}
		}
	}
	if !s.UserKernel && seen == 0 {
		t.Error("PID 1 holds no control group: nothing was looked at")
	}
	// Nothing inside can have the kernel start a program when a group is empty, or see a group.
	for _, path := range []string{"/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/cgroup.kill", "/sys/fs/cgroup/cgroup.procs"} {
		if got := m.run(t, asRoot, "attempt", "open_write", path); got == "ok" && !s.UserKernel {
			t.Errorf("%s can be written", path)
		}
	}
}

// groupFaults looks at a control group that somebody inside holds.
func groupFaults(t *testing.T, fd string) {
	t.Helper()
	own, err := os.Stat(fd)
	up, uerr := os.Stat(fd + "/..")
	if err != nil || uerr != nil || !os.SameFile(own, up) {
		t.Errorf("%s: another group is above the machine's: %v, %v", fd, err, uerr)
	}
	files, _ := filepath.Glob(fd + "/*")
	if len(files) == 0 {
		t.Errorf("%s shows no files", fd)
	}
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil || info.IsDir() {
			continue
		}
		// These let it make groups below its own, and move its own processes between them.
		delegated := map[string]bool{"cgroup.procs": true, "cgroup.threads": true, "cgroup.subtree_control": true}
		if owner := ownerOf(info); owner != 0 && !delegated[filepath.Base(f)] {
			t.Errorf("%s belongs to %d", f, owner)
		}
	}
}

// killAll has the user, then root, send SIGKILL to everything it can: PID 1 is not among it.
func killAll(t *testing.T, s *suite) {
	m, neighbour := s.start(t), s.start(t)
	m.background(t, asUser, "hold")
	users := []string{asUser, asRoot}
	for _, user := range users {
		_, _ = m.shell.Run(ctx(t), dayfly.ProcessSpec{
			ID: dayfly.NewID(dayfly.PrefixProcess), Argv: []string{s.Inside, "attempt", "kill_all"}, User: user, Timeout: slowWait,
		}, nil)
	}
	m.run(t, asUser, "true")
	neighbour.run(t, asUser, "true")
}

// crashes has a program raise its limit of core files, crash, and looks for what that left. On the host the same leaves a file,
// where core_pattern and the limits of this test let it.
func crashes(t *testing.T, s *suite) {
	m, dir := s.start(t), t.TempDir()
	crash := exec.Command(s.hostProgram(t).path, "attempt", "crash")
	crash.Dir, crash.Env = dir, []string{"GOTRACEBACK=crash"}
	if err := crash.Run(); err == nil {
		t.Error("the crash is none")
	}
	if left, _ := filepath.Glob(dir + "/core*"); len(left) == 0 {
		t.Log("no control: the host leaves no core file either")
	}
	r := m.exec(t, dayfly.ProcessSpec{
		Argv: []string{s.Inside, "attempt", "crash"}, User: asRoot, Cwd: "/home/user", Env: map[string]string{"GOTRACEBACK": "crash"},
	})
	if r.Exit.Code == 0 || r.Exit.Signal != "ABRT" {
		t.Errorf("the crash exits with %+v", r.Exit)
	}
	for _, dir := range []string{"/home/user", "/", "/tmp"} {
		if got := m.run(t, asRoot, "ls", dir); strings.Contains(got, "core") {
			t.Errorf("%s holds a core file: %s", dir, got)
		}
	}
	if got := m.run(t, asRoot, "nofile"); !strings.Contains(got, "core file size 1 1") {
		t.Errorf("limits: %q", got)
	}
}

// hostObjects makes objects with names on the host, which are no names inside.
func hostObjects(t *testing.T, s *suite) {
	m, host := s.start(t), s.hostProgram(t)
	for _, tt := range []struct {
		name string
		make func(t *testing.T) (attempt string)
	}{
		{"System V segment", hostSegment},
		{"message queue", hostQueue},
		{"key in a keyring", hostKey},
		{"process", func(*testing.T) string { return "pidfd " + strconv.Itoa(os.Getpid()) }},
		{"file", func(t *testing.T) string { path := t.TempDir() + "/file"; file(t, path); return "open " + path }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			op := tt.make(t)
			if got := host.attempt(t, 0, op); got != "ok" { // the control
				t.Skipf("on the host it answers %s", got)
			}
			if got := m.run(t, asRoot, append([]string{"attempt"}, strings.Fields(op)...)...); got == "ok" {
				t.Errorf("%s is possible inside", op)
			}
		})
	}
	t.Run("abstract socket", func(t *testing.T) {
		name := "@dayfly-test-" + m.ID()
		l, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := net.Dial("unix", name) // the control
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		m.refused(t, asRoot, "dial", "unix", name)
	})
	t.Run("a port of the host's loopback", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String()) // the control
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		m.refused(t, asRoot, "dial", "tcp", l.Addr().String())
	})
	t.Run("the address of a cloud's metadata", func(t *testing.T) { // where nothing is connected, no address is
		m.refused(t, asRoot, "dial", "tcp", "169.254.169.254:80")
	})
}

func hostSegment(t *testing.T) string {
	key := 0x0da70000 + os.Getpid()&0xffff
	id, err := unix.SysvShmGet(key, 4096, unix.IPC_CREAT|unix.IPC_EXCL|0o666)
	if err != nil {
		t.Skipf("the host has no System V segments: %v", err)
	}
	t.Cleanup(func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
	return fmt.Sprint("segment ", key)
}

func hostQueue(t *testing.T) string {
	name := fmt.Sprintf("dayfly-test-%d", os.Getpid())
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		t.Fatal(err)
	}
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(p)), unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o666, 0, 0, 0)
	if errno != 0 {
		t.Skipf("the host has no message queues: %v", errno)
	}
	t.Cleanup(func() {
		_ = unix.Close(int(fd))
		_, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(p)), 0, 0)
	})
	return "queue " + name
}

func hostKey(t *testing.T) string {
	name := fmt.Sprintf("dayfly-test-%d", os.Getpid())
	id, err := unix.AddKey("user", name, []byte("secret"), unix.KEY_SPEC_USER_KEYRING)
	if err != nil {
		t.Skipf("the host has no keyrings: %v", err)
	}
	t.Cleanup(func() { _, _ = unix.KeyctlInt(unix.KEYCTL_UNLINK, id, unix.KEY_SPEC_USER_KEYRING, 0, 0) })
	return "key " + name
}
