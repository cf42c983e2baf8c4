package drivertest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"dayfly.dev/dayfly"
)

func ownerOf(info os.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }

// dockerCaps is the capability set that root inside has, as /proc shows it.
const dockerCaps = "00000000a80425fb"

func rights(t *testing.T, s *suite) {
	ignoreSignal(t)
	m := s.start(t)
	for _, tt := range []struct{ name, user, permitted string }{
		{"root", asRoot, dockerCaps},
		{"user", asUser, "0000000000000000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status := m.run(t, tt.user, "cat", "/proc/self/status")
			for field, want := range map[string]string{
				"CapBnd": dockerCaps, "CapPrm": tt.permitted, "CapEff": tt.permitted, "CapInh": "0000000000000000",
				"CapAmb": "0000000000000000", "Seccomp": "2", "NoNewPrivs": "0", "SigBlk": "0000000000000000", "SigIgn": "0000000000000000",
			} {
				if s.UserKernel && !strings.HasPrefix(field, "Cap") {
					continue // it shows no such thing; setuid programs work (below) and nothing of the node's signals gets there
				}
				if got := statusField(status, field); got != want {
					t.Errorf("%s = %q, want %q", field, got, want)
				}
			}
		})
	}
	if s.UserKernel {
		m.confinedOnHost(t)
		return
	}
	// Every thread of the agent, too.
	tasks, err := filepath.Glob("/proc/" + strconv.Itoa(statePID(t, m.State())) + "/task/*/status")
	if err != nil || len(tasks) == 0 {
		t.Fatalf("threads of PID 1: %v, %v", tasks, err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for field, want := range map[string]string{"CapBnd": dockerCaps, "CapPrm": dockerCaps, "CapInh": "0000000000000000", "Seccomp": "2"} {
			if got := statusField(string(b), field); got != want {
				t.Errorf("%s: %s = %q, want %q", task, field, got, want)
			}
		}
	}
}

func statusField(status, name string) string {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

func setuid(t *testing.T, s *suite) {
	m := s.start(t)
	if got := m.run(t, asUser, "ids"); got != "1000 1000 1000" {
		t.Fatalf("the default user is %s", got)
	}
	r := m.exec(t, dayfly.ProcessSpec{Argv: []string{s.Inside + "-setuid", "ids"}})
	if got := strings.TrimSpace(string(r.Stdout.Head)); got != "1000 0 1000" {
		t.Errorf("a setuid-root program runs as %q", got)
	}
	r = m.exec(t, dayfly.ProcessSpec{Argv: []string{s.Inside + "-setuid", "cat", "/proc/self/status"}})
	if got := statusField(string(r.Stdout.Head), "CapEff"); got != dockerCaps {
		t.Errorf("a setuid-root program has capabilities %s, want %s", got, dockerCaps)
	}
}

func deniedCalls(t *testing.T, s *suite) {
	m := s.start(t)
	for _, tt := range []struct{ call, want string }{
		{"mount", "EPERM"}, {"umount", "EPERM"}, {"fsopen", "EPERM"}, {"open_tree", "EPERM"}, {"pivot_root", "EPERM"},
		{"unshare_user", "EPERM"}, {"unshare_cgroup", "EPERM"}, {"setns", "EPERM"}, {"clone_user", "EPERM"}, {"clone3_user", "ENOSPC"},
		{"clone3_mount", "EPERM"},
		{"keyctl", "EPERM"}, {"add_key", "EPERM"}, {"bpf", "EPERM"}, {"userfaultfd", "EPERM"}, {"io_uring", "EPERM"},
		{"perf", "EPERM"}, {"init_module", "EPERM"}, {"kexec", "EPERM"}, {"reboot", "EPERM"}, {"swapon", "EPERM"},
		{"settimeofday", "EPERM"}, {"open_by_handle", "EPERM"}, {"quotactl", "EPERM"}, {"newest", "ENOSYS"},
		{"foreign_abi", "ENOSYS"}, {"vsock", "EAFNOSUPPORT"}, {"alg", "EAFNOSUPPORT"}, {"packet", "EAFNOSUPPORT"},
		{"packet_old", "EAFNOSUPPORT"}, {"xdp", "EAFNOSUPPORT"}, {"io_setup", "ENOSYS"}, {"personality_32", "EPERM"}, {"mknod_char", "EPERM"},
		{"sethost", "EPERM"},
	} {
		t.Run(tt.call, func(t *testing.T) {
			got := m.run(t, asRoot, "try", tt.call)
			if s.UserKernel {
				if got == "ok" && harmless[tt.call] == "" {
					t.Errorf("answers %s", got)
				}
			} else if got != tt.want {
				t.Errorf("answers %s, want %s", got, tt.want)
			}
		})
	}
	if s.UserKernel {
		m.confinedOnHost(t)
	}
}

// allowedCalls is the positive control: what ordinary programs need.
func allowedCalls(t *testing.T, s *suite) {
	m := s.start(t)
	for _, call := range []string{"tcp", "netlink", "raw_socket", "personality", "chroot", "mknod_fifo", "memfd", "inotify", "more_cpus"} {
		t.Run(call, func(t *testing.T) {
			if got := m.run(t, asRoot, "try", call); got != "ok" {
				t.Errorf("answers %s", got)
			}
		})
	}
}

func maskedPaths(t *testing.T, s *suite) {
	m := s.start(t)
	for _, path := range []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/interrupts"} {
		if _, err := os.Stat(path); err != nil {
			continue // not in this kernel
		}
		if s.UserKernel && !m.has(t, path) {
			continue
		}
		if got := m.run(t, asRoot, "cat", path); got != "" {
			t.Errorf("%s shows %q", path, got[:min(len(got), 80)])
		}
	}
	for _, path := range []string{"/proc/acpi", "/proc/scsi", "/sys/firmware"} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if s.UserKernel && !m.has(t, path) {
			continue
		}
		if got := m.run(t, asRoot, "ls", path); got != "" {
			t.Errorf("%s shows %q", path, got)
		}
	}
	for _, path := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sys/net/ipv4/ip_forward", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches",
		"/proc/sys/kernel/shmmax", "/proc/sys/fs/mqueue/msg_max", // the machine's root could write these if they were not read-only
		"/sys/kernel/mm/transparent_hugepage/enabled", "/proc/irq/default_smp_affinity",
	} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		before, _ := os.ReadFile(path)
		r := m.exec(t, dayfly.ProcessSpec{Argv: []string{s.Inside, "write", path, "1"}, User: asRoot})
		if r.Exit.Code == 0 && !s.UserKernel { // there it is a setting of the machine's own network or kernel
			t.Errorf("%s can be written", path)
		}
		if after, _ := os.ReadFile(path); string(after) != string(before) {
			t.Errorf("%s of the host was changed from %q to %q", path, before, after)
		}
	}
	mounts := m.run(t, asRoot, "cat", "/proc/self/mountinfo")
	for _, kind := range []string{" cgroup ", " cgroup2 ", " btrfs "} {
		if strings.Contains(mounts, "- "+strings.TrimSpace(kind)+" ") {
			t.Errorf("a %s file system is visible:\n%s", strings.TrimSpace(kind), mounts)
		}
	}
}

func readOnlyGrant(t *testing.T, s *suite) {
	m := s.start(t)
	for _, path := range []string{"/run/dayfly/grant", "/run/dayfly/new"} {
		r := m.exec(t, dayfly.ProcessSpec{Argv: []string{s.Inside, "write", path, "999999"}, User: asRoot})
		if r.Exit.Code == 0 || !strings.Contains(string(r.Stdout.Head), "read-only") {
			t.Errorf("writing %s: exit %d, %s", path, r.Exit.Code, r.Stdout.Head)
		}
	}
	// The node replaces the file, and the machine sees it.
	file := filepath.Join(m.spec.RunDir, "in", "grant")
	if err := os.WriteFile(file+".new", []byte("120"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	if got := m.run(t, asUser, "cat", "/run/dayfly/grant"); got != "120" {
		t.Errorf("grant = %q", got)
	}
	if got := m.run(t, asUser, "ls", "/run/dayfly"); got != "grant" {
		t.Errorf("the node's directory shows %q", got)
	}
}

func devices(t *testing.T, s *suite) {
	m := s.start(t)
	for device, want := range map[string]string{
		"null": "20666 0:0 1:3", "zero": "20666 0:0 1:5", "full": "20666 0:0 1:7", "random": "20666 0:0 1:8",
		"urandom": "20666 0:0 1:9", "tty": "20666 0:0 5:0",
	} {
		if got := m.run(t, asUser, "stat", "/dev/"+device); got != want {
			t.Errorf("/dev/%s is %s, want %s", device, got, want)
		}
	}
	m.run(t, asUser, "write", "/dev/null", "x")
	m.run(t, asUser, "write", "/dev/shm/file", "x")
	if got := m.run(t, asUser, "readlink", "/dev/ptmx"); got != "pts/ptmx" {
		t.Errorf("/dev/ptmx leads to %q", got)
	}
	for _, name := range []string{"vda", "sda", "loop0", "mem", "kmsg", "fuse", "kvm"} {
		r := m.exec(t, dayfly.ProcessSpec{Argv: []string{s.Inside, "stat", "/dev/" + name}, User: asRoot})
		if r.Exit.Code == 0 {
			t.Errorf("/dev/%s is there", name)
		}
	}
}

func apart(t *testing.T, s *suite) {
	a, b := s.start(t), s.start(t)
	name := "dayfly-test-" + a.ID()
	a.background(t, asUser, "abstract", name)
	a.run(t, asUser, "dial", "unix", "@"+name) // the control
	r := b.exec(t, dayfly.ProcessSpec{Argv: []string{s.Inside, "dial", "unix", "@" + name}, User: asRoot})
	if r.Exit.Code == 0 {
		t.Error("an abstract socket of one machine is reached from another")
	}
	// A pid that lives in the host and in the other machine means nothing here.
	for _, pid := range []int{statePID(t, a.State()), os.Getpid()} {
		r := b.exec(t, dayfly.ProcessSpec{Argv: []string{s.Inside, "kill", strconv.Itoa(pid)}, User: asRoot})
		if r.Exit.Code == 0 {
			t.Errorf("killed process %d of the outside", pid)
		}
	}
	b.run(t, asRoot, "write", "/marker", "b")
	r = a.exec(t, dayfly.ProcessSpec{Argv: []string{s.Inside, "cat", "/marker"}, User: asRoot})
	if r.Exit.Code == 0 {
		t.Error("a file of one machine is in another")
	}
}

func pidOne(t *testing.T, s *suite) {
	m := s.start(t)
	if got := m.run(t, asRoot, "try", "ptrace_1"); got != "EPERM" {
		t.Errorf("tracing PID 1: %s", got)
	}
	if got := m.run(t, asRoot, "try", "vm_read_1"); got != "EPERM" {
		t.Errorf("reading PID 1's memory: %s", got)
	}
	if s.UserKernel {
		if got := m.run(t, asUser, "try", "kill_1"); got != "EPERM" {
			t.Errorf("killing PID 1 as the user: %s", got)
		}
		defer s.rootEndsItsOwn(t)
	} else {
		m.run(t, asRoot, "try", "kill_1") // the kernel drops it without an error
	}
	m.run(t, asUser, "true")
	for line := range strings.Lines(m.run(t, asRoot, "ls", "/proc/1/fd")) { // numbers can be seen, what they are cannot
		if fields := strings.Fields(line); len(fields) != 1 {
			t.Errorf("a descriptor of PID 1 can be looked at: %v", fields)
		}
	}
	for _, path := range []string{"/proc/1/root", "/proc/1/cwd/", "/proc/1/map_files"} {
		r := m.exec(t, dayfly.ProcessSpec{Argv: []string{s.Inside, "ls", path}, User: asRoot})
		if r.Exit.Code == 0 {
			t.Errorf("%s can be looked into: %s", path, r.Stdout.Head)
		}
	}
	for _, path := range []string{"/proc/1/exe", "/proc/1/mem", "/proc/1/environ"} {
		r := m.exec(t, dayfly.ProcessSpec{Argv: []string{s.Inside, "cat", path}, User: asRoot})
		if r.Exit.Code == 0 {
			t.Errorf("%s can be read", path)
		}
	}
}

// workingDirectory tries the way out that a leaked descriptor of a host directory would be.
func workingDirectory(t *testing.T, s *suite) {
	m := s.start(t)
	for fd := 3; fd <= 20; fd++ {
		cwd := "/proc/self/fd/" + strconv.Itoa(fd)
		r, err := m.shell.Run(ctx(t), dayfly.ProcessSpec{
			ID: dayfly.NewID(dayfly.PrefixProcess), Argv: []string{s.Inside, "ls", "../../../../.."}, Cwd: cwd, User: asRoot,
		}, nil)
		if err != nil {
			if dayfly.ErrorCode(err) != dayfly.CodeInvalid {
				t.Errorf("cwd %s: %v", cwd, err)
			}
			continue
		}
		if r.Exit.Code == 0 && !strings.Contains(string(r.Stdout.Head), "inside-marker") {
			t.Errorf("cwd %s leads out of the machine: %s", cwd, r.Stdout.Head)
		}
	}
}

func networkNamespace(t *testing.T, s *suite) {
	var got os.FileInfo
	m := s.start(t, func(spec *dayfly.InstanceSpec) {
		spec.AttachNetwork = attachProbe(&got)
	})
	host, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if got == nil || os.SameFile(got, host) {
		t.Fatal("the hook did not get a namespace of the machine")
	}
	mine, err := os.Stat("/proc/" + strconv.Itoa(statePID(t, m.State())) + "/ns/net")
	if err != nil || !os.SameFile(got, mine) {
		t.Errorf("the hook got another namespace than the machine has: %v", err)
	}
	if s.UserKernel { // it has no such directory in /sys
		if got := interfaces(m.run(t, asUser, "cat", "/proc/net/dev")); got != "lo" {
			t.Errorf("interfaces: %q", got)
		}
	} else if got := m.run(t, asUser, "ls", "/sys/class/net"); got != "lo ../../devices/virtual/net/lo" {
		t.Errorf("interfaces: %q", got)
	}
	if dev := m.run(t, asUser, "cat", "/proc/net/if_inet6"); dev != "" {
		t.Errorf("IPv6 addresses inside: %q", dev)
	}
}
