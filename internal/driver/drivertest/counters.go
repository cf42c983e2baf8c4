package drivertest

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// ownCounters takes all of what the kernel counts for each user in one machine. A user namespace's use counts for its maker
// too: had all machines the same one, the host's root, one machine could stop the others and the node itself.
func ownCounters(t *testing.T, s *suite) {
	for _, name := range []string{"inotify", "mqueue", "pty"} {
		t.Run(name, func(t *testing.T) {
			a, b := s.start(t), s.start(t)
			if got := b.run(t, asRoot, "try", name); got != "ok" { // the control
				t.Fatalf("before anything was taken: %s", got)
			}
			if got := a.background(t, asRoot, "take", name); got == "took 0" {
				t.Fatal("the greedy machine got nothing")
			}
			if got := b.run(t, asRoot, "try", name); got != "ok" {
				t.Errorf("another machine gets %s", got)
			}
			if name == "inotify" {
				fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
				if err != nil {
					t.Fatalf("the host gets %v", err)
				}
				_ = unix.Close(fd)
			}
		})
	}
}

// firstVictims looks at whom the kernel kills when the whole host lacks memory: machines, before anything of the host, and
// nothing inside can change that where the node may say so (CAP_SYS_RESOURCE).
func firstVictims(t *testing.T, s *suite) {
	m := s.start(t)
	agent, err := scoreOf(strconv.Itoa(statePID(t, m.State())))
	own, oerr := scoreOf("self")
	if err != nil || oerr != nil || agent <= max(own, 0) {
		t.Fatalf("PID 1 has score %d, the host %d: %v, %v", agent, own, err, oerr)
	}
	score, err := strconv.Atoi(m.run(t, asUser, "cat", "/proc/self/oom_score_adj"))
	if err != nil || score <= agent {
		t.Errorf("a command has score %d, PID 1 %d: %v", score, agent, err)
	}
	if s.UserKernel { // what is written inside is the user-space kernel's: nothing on the host changes
		m.run(t, asRoot, "write", "/proc/self/oom_score_adj", "0")
		m.background(t, asUser, "hold", "here")
		highest := 0
		for _, pid := range m.onHost(t) {
			score, err := scoreOf(strconv.Itoa(pid))
			if err == nil && score < agent {
				t.Errorf("process %d of the machine has score %d", pid, score)
			}
			highest = max(highest, score)
		}
		if highest <= agent {
			t.Errorf("a command's processes on the host have score %d, as the machine's", highest)
		}
		return
	}
	if !mayLower() {
		t.Skip("the host lacks CAP_SYS_RESOURCE, so that commands can lower their score")
	}
	for _, user := range []string{asUser, asRoot} {
		r := m.exec(t, dayfly.ProcessSpec{Argv: []string{s.Inside, "write", "/proc/self/oom_score_adj", "0"}, User: user})
		if r.Exit.Code == 0 {
			t.Errorf("user %q can hide behind the host's processes", user)
		}
	}
}

func scoreOf(pid string) (int, error) {
	b, err := os.ReadFile("/proc/" + pid + "/oom_score_adj")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// mayLower tells whether this process has CAP_SYS_RESOURCE.
func mayLower() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// queuedData lets the kernel keep network data that nobody reads. Every connection has a little of its own; what buffers
// grow to beyond that counts.
func queuedData(t *testing.T, s *suite) {
	const limitMiB, connections = 128, 100
	m := s.start(t, func(spec *dayfly.InstanceSpec) { spec.Limits.MemoryBytes = limitMiB << 20 })
	r := m.exec(t, dayfly.ProcessSpec{Argv: []string{s.Inside, "queued", strconv.Itoa(connections)}})
	if r.Exit.Signal == "KILL" {
		return // for lack of memory: it counted
	}
	got, err := strconv.Atoi(output(r))
	if err != nil || got < 1 {
		t.Fatalf("queued %q MiB, exit %+v", r.Stdout.Head, r.Exit)
	}
	if s.UserKernel { // its memory is the machine's, whatever it is used for
		fresh := s.start(t) // one that holds no memory from before
		before := fresh.memoryMiB(t)
		fresh.background(t, asUser, "queued", strconv.Itoa(connections/2), "stay")
		if grown := fresh.memoryMiB(t) - before; grown < got/4 {
			t.Errorf("memory grew by %d MiB; half as many connections held about %d MiB", grown, got/2)
		}
		return
	}
	if got > limitMiB {
		t.Errorf("a machine of %d MiB has %d MiB of network data in the kernel", limitMiB, got)
	}
}

func (m *machine) memoryMiB(t *testing.T) int {
	t.Helper()
	u, err := m.Usage(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	return int(u.MemoryBytes >> 20)
}

// sharedMemory fills what no process owns: killing processes would not free it, so it must stay below the machine's limit.
func sharedMemory(t *testing.T, s *suite) {
	c := s.driver.Probe(ctx(t))
	if c.OOM != dayfly.OOMEndsCommand {
		t.Skip("a lack of memory ends this driver's machines")
	}
	m := s.start(t, func(spec *dayfly.InstanceSpec) { spec.Limits.MemoryBytes = 128 << 20 })
	for _, op := range [][]string{{"fill", "/dev/shm/full"}, {"segments"}} {
		got, err := strconv.Atoi(output(m.exec(t, dayfly.ProcessSpec{Argv: append([]string{s.Inside}, op...)})))
		if err != nil || got < 1 {
			t.Errorf("%v: %d MiB, %v", op, got, err)
		}
	}
	m.run(t, asUser, "true")
	if u, err := m.Usage(ctx(t)); err != nil || u.OOMKills != 0 {
		t.Errorf("usage %+v, %v: want no oom kill", u, err)
	}
}

func output(r dayfly.Result) string { return strings.TrimSpace(string(r.Stdout.Head)) }
