package drivertest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// under puts a layer of the attacker's over the root file system.
func under(layer string) func(*dayfly.InstanceSpec) {
	return func(spec *dayfly.InstanceSpec) { spec.Root.Lower = append([]string{layer}, spec.Root.Lower...) }
}

// imageNodes puts device nodes into an image, which nothing inside could make, and opens them inside and on the host.
func imageNodes(t *testing.T, s *suite) {
	layer := t.TempDir()
	nodes := []struct {
		name         string
		kind         uint32
		major, minor uint32
	}{
		{"zero", unix.S_IFCHR, 1, 5}, {"memory", unix.S_IFCHR, 1, 1}, {"ports", unix.S_IFCHR, 1, 4}, {"kernel log", unix.S_IFCHR, 1, 11},
		{"loop control", unix.S_IFCHR, 10, 237}, {"fuse", unix.S_IFCHR, 10, 229}, {"tunnel", unix.S_IFCHR, 10, 200},
		{"hypervisor", unix.S_IFCHR, 10, 232}, {"user input", unix.S_IFCHR, 10, 223}, {"loop device", unix.S_IFBLK, 7, 0},
		{"first disk", unix.S_IFBLK, 8, 0}, {"first virtual disk", unix.S_IFBLK, 254, 0},
	}
	directory(t, layer+"/nodes")
	for _, n := range nodes {
		if err := unix.Mknod(nodePath(layer, n.name), n.kind|0o666, int(unix.Mkdev(n.major, n.minor))); err != nil {
			t.Skipf("the host cannot make device nodes: %v", err)
		}
	}
	host := s.hostProgram(t)
	if got := host.attempt(t, 0, "open "+nodePath(layer, "zero")); got != "ok" { // the control
		t.Skipf("the host cannot open device nodes in its temporary directory: %s", got)
	}
	m := s.start(t, under(layer))
	for _, n := range nodes {
		t.Run(n.name, func(t *testing.T) {
			got := m.run(t, asRoot, "attempt", "open", nodePath("", n.name))
			if got == "ok" && (!s.UserKernel || n.name != "zero") || !s.UserKernel && got != "EACCES" {
				t.Errorf("opening it answers %s", got)
			}
		})
	}
}

func nodePath(layer, name string) string {
	return filepath.Join(layer, "/nodes", strings.ReplaceAll(name, " ", "-"))
}

// imageLinks are images that put links where a runtime mounts, masks or writes: the patterns of CVE-2025-31133 (/dev/null),
// CVE-2025-52565 (/dev/console, /dev/pts) and CVE-2025-52881 (writes to procfs that land elsewhere).
func imageLinks(t *testing.T, s *suite) {
	const pattern = "/proc/sys/kernel/core_pattern"
	for _, tt := range []struct {
		name string
		lay  func(t *testing.T, dir, host string)
	}{
		{"null device leads to core_pattern", func(t *testing.T, dir, _ string) { link(t, pattern, dir+"/dev/null") }},
		{"null device leads to the host", func(t *testing.T, dir, host string) { link(t, host+"/victim", dir+"/dev/null") }},
		{"console leads to core_pattern", func(t *testing.T, dir, _ string) { link(t, pattern, dir+"/dev/console") }},
		{"terminals lead to procfs", func(t *testing.T, dir, _ string) {
			link(t, "/proc/sys", dir+"/dev/pts")
			link(t, "pts/0", dir+"/dev/ptmx")
		}},
		{"shared memory leads to the host", func(t *testing.T, dir, host string) { link(t, host, dir+"/dev/shm") }},
		{"attributes of a process lead to the host", func(t *testing.T, dir, host string) {
			for _, name := range []string{"attr/exec", "attr/fscreate", "oom_score_adj", "uid_map", "setgroups"} {
				link(t, host+"/victim", dir+"/proc/self/"+name)
				link(t, host+"/victim", dir+"/proc/1/"+name)
			}
		}},
		{"switches lead to the host", func(t *testing.T, dir, host string) {
			link(t, host+"/victim", dir+"/proc/sys/user/max_user_namespaces")
			link(t, "/proc/sysrq-trigger", dir+"/proc/sys/net/ipv4/ping_group_range")
		}},
		{"masked paths lead elsewhere", func(t *testing.T, dir, host string) {
			link(t, host, dir+"/proc/acpi")
			link(t, host+"/victim", dir+"/proc/kcore")
			link(t, host, dir+"/sys/firmware")
		}},
		{"sys leads to proc", func(t *testing.T, dir, _ string) { link(t, "proc", dir+"/sys") }},
		{"proc leads to itself", func(t *testing.T, dir, _ string) { link(t, "proc", dir+"/proc") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			layer, outside := t.TempDir(), t.TempDir()
			file(t, outside+"/victim")
			tt.lay(t, layer, outside)
			before := hostSettings(t)
			s.soundMachine(t, under(layer))
			unchanged(t, outside)
			if after := hostSettings(t); after != before {
				t.Errorf("the host's settings changed from\n%s to\n%s", before, after)
			}
		})
	}
}

// soundMachine starts a machine and fails unless what protects it is in place.
func (s *suite) soundMachine(t *testing.T, change ...func(*dayfly.InstanceSpec)) {
	t.Helper()
	m := s.start(t, change...)
	if got := m.run(t, asRoot, "readlink", "/proc/self/exe"); got != s.Inside {
		t.Errorf("/proc is not the machine's: %q", got)
	}
	if got := m.run(t, asUser, "stat", "/dev/null"); got != "20666 0:0 1:3" {
		t.Errorf("/dev/null is %s", got)
	}
	if got := m.run(t, asRoot, "attempt", "open_write", "/proc/sys/kernel/core_pattern"); got == "ok" {
		t.Error("core_pattern can be written")
	}
	m.refused(t, asRoot, "stat", "/dev/console")
	if s.UserKernel {
		return
	}
	r := m.exec(t, dayfly.ProcessSpec{Argv: []string{s.Inside, "cat", "/proc/kcore"}, User: asRoot})
	if r.Exit.Code == 0 && len(r.Stdout.Head) > 0 { // not every kernel has it
		t.Errorf("/proc/kcore shows %d bytes", r.Stdout.Bytes)
	}
	if got := m.run(t, asRoot, "try", "clone3_user"); got != "ENOSPC" {
		t.Errorf("a user namespace: %s", got)
	}
}

// mountRace exchanges, all the time that machines start, the directories on which they mount for links to the host
// (CVE-2021-30465). Nothing inside runs then, so this is more than an image can do. A start may fail; it may not go elsewhere.
func mountRace(t *testing.T, s *suite) {
	const starts = 5
	outside := t.TempDir()
	file(t, outside+"/victim")
	for i := range starts {
		spec := s.Spec(t)
		upper := spec.Root.Upper + "/u"
		var racers sync.WaitGroup
		stop := make(chan struct{})
		for _, name := range []string{"proc", "sys", "dev", "tmp", "run"} {
			racers.Go(func() { exchange(filepath.Join(upper, name), outside, stop) })
		}
		inst, err := s.driver.Start(ctx(t), spec)
		close(stop)
		racers.Wait()
		if err != nil {
			t.Logf("start %d: %v", i, err)
		} else if err := inst.Destroy(ctx(t)); err != nil {
			t.Fatal(err)
		}
		unchanged(t, outside)
	}
	s.soundMachine(t)
}

// exchange puts a link to the host and a directory into each other's place until it is stopped.
func exchange(path, outside string, stop <-chan struct{}) {
	other := path + ".other"
	_, _ = os.Mkdir(path, 0o755), os.Symlink(outside, other)
	for {
		select {
		case <-stop:
			return
		default:
			_ = unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
		}
	}
}

func movedMounts(t *testing.T, s *suite) {
	m := s.start(t)
	m.run(t, asRoot, "write", "/movable", "x")
	if got := m.run(t, asRoot, "attempt", "rename", "/movable"); got != "ok" { // the control
		t.Fatalf("renaming a file answers %s", got)
	}
	for _, path := range []string{"/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/run/dayfly", "/proc/sys"} {
		if got := m.run(t, asRoot, "attempt", "rename", path); got == "ok" {
			t.Errorf("%s can be moved away", path)
		}
	}
	// A directory above a mount can be moved: the node's file must not follow, and its word must not change.
	m.run(t, asRoot, "attempt", "rename", "/run")
	file := filepath.Join(m.spec.RunDir, "in", "grant")
	if b, err := os.ReadFile(file); err != nil || string(b) != "60" {
		t.Errorf("the grant on the host is %q, %v", b, err)
	}
	m.run(t, asUser, "true")
}

// mountTable looks for names of the host in what a machine can read about its mounts.
func mountTable(t *testing.T, s *suite) {
	m := s.start(t)
	for _, path := range []string{"/proc/self/mountinfo", "/proc/self/mounts"} {
		if table := m.run(t, asRoot, "cat", path); strings.Contains(table, filepath.Dir(filepath.Dir(m.spec.RunDir))) {
			t.Errorf("%s names directories of the host:\n%s", path, table)
		}
	}
}

// sharedImage has one machine change, as its root, every file of the image in every way. Others share the same layer.
func sharedImage(t *testing.T, s *suite) {
	layer := t.TempDir()
	const content = "of the image"
	for _, name := range []string{"written", "renamed", "removed", "traced"} {
		if err := os.WriteFile(filepath.Join(layer, name), []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	a, b := s.start(t, under(layer)), s.start(t, under(layer))
	a.run(t, asRoot, "write", "/written", "of an attacker")
	a.run(t, asRoot, "attempt", "rename", "/renamed")
	a.run(t, asRoot, "write", "/traced", "x")
	a.run(t, asRoot, "attempt", "rename", "/removed")
	if got := a.run(t, asRoot, "cat", "/written"); got != "of an attacker" { // the control: it may, for itself
		t.Errorf("a machine reads %q of what it wrote", got)
	}
	for _, name := range []string{"written", "renamed", "removed", "traced"} {
		if got := b.run(t, asRoot, "cat", "/"+name); got != content {
			t.Errorf("the neighbour reads %q in %s", got, name)
		}
		if got, err := os.ReadFile(filepath.Join(layer, name)); err != nil || string(got) != content {
			t.Errorf("the layer has %q in %s: %v", got, name, err)
		}
	}
}

// pagesOfTheImage tries to write to a read-only file's pages, which all machines and the host share. The attempt itself succeeds;
// what it did is seen in the file.
func pagesOfTheImage(t *testing.T, s *suite) {
	layer := t.TempDir()
	const content = "of the image, which nobody may change"
	path := filepath.Join(layer, "read-only")
	if err := os.WriteFile(path, []byte(content), 0o444); err != nil {
		t.Fatal(err)
	}
	a, b := s.start(t, under(layer)), s.start(t, under(layer))
	for _, user := range []string{asUser, asRoot} {
		if got := a.run(t, user, "attempt", "dirty_pipe", "/read-only"); got != "ok" {
			t.Logf("as %q: %s", user, got)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != content {
		t.Errorf("the host reads %q, %v", got, err)
	}
	if got := b.run(t, asUser, "cat", "/read-only"); got != content {
		t.Errorf("the neighbour reads %q", got)
	}
}

// setuidFile makes a program set-user-ID root inside. Ids on the disk are native, so the host must not run it: what keeps it from
// that is the mount of the pool and its directory (internal/disk/btrfs). Here: it gives no other machine's user anything.
func setuidFile(t *testing.T, s *suite) {
	m := s.start(t)
	own := s.setuidProgram(t, m)
	if got := own; got != "1000 0 1000" { // the control
		t.Errorf("a set-user-ID program runs as %q", got)
	}
	program := s.Inside + "-setuid"
	r := m.exec(t, dayfly.ProcessSpec{Argv: []string{program, "attempt", "mount", "tmpfs"}})
	if got := output(r); got != "EPERM" {
		t.Errorf("a set-user-ID program mounts: %q", got)
	}
	// As the host sees it, the process has the machine's id, not 0.
	m.background(t, asRoot, "hold")
	for _, pid := range m.onHost(t) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue // it has ended
		}
		for id := range strings.FieldsSeq(statusField(string(b), "Uid")) {
			if id == "0" {
				t.Errorf("process %d of the machine is root on the host", pid)
			}
		}
	}
}

func (s *suite) setuidProgram(t *testing.T, m *machine) string {
	t.Helper()
	return output(m.exec(t, dayfly.ProcessSpec{Argv: []string{s.Inside + "-setuid", "ids"}}))
}

// hungryNeighbour has one machine take all memory that it can get, again and again, while another works.
func hungryNeighbour(t *testing.T, s *suite) {
	neighbour := s.start(t)
	m := s.start(t, func(spec *dayfly.InstanceSpec) { spec.Limits.MemoryBytes = 128 << 20 })
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, cancel := context.WithTimeout(context.Background(), caseWait)
		defer cancel()
		for range 3 {
			spec := dayfly.ProcessSpec{ID: dayfly.NewID(dayfly.PrefixProcess), Argv: []string{s.Inside, "alloc", "512"}, User: asRoot, Timeout: caseWait}
			if _, err := m.shell.Run(c, spec, nil); err != nil {
				return // the machine has ended, where a lack of memory does that
			}
		}
	}()
	for {
		neighbour.run(t, asUser, "true")
		select {
		case <-done:
			return
		case <-time.After(time.Millisecond):
		}
	}
}
