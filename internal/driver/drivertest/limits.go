package drivertest

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func destroyForkBomb(t *testing.T, s *suite) {
	m := s.start(t, func(spec *dayfly.InstanceSpec) { spec.Limits.PIDs = 200 })
	m.background(t, asUser, "bomb")
	m.background(t, asRoot, "bomb")
	neighbour := s.start(t)
	neighbour.run(t, asUser, "true")
	begun := time.Now()
	if err := m.Destroy(ctx(t)); err != nil {
		t.Fatal(err)
	}
	wait(t, m.Done())
	t.Logf("a fork bomb of 200 was gone after %s", time.Since(begun).Round(time.Millisecond))
}

// memoryLimit: a command that uses more memory than there is ends by it, and nothing else does. Where that can end the whole
// machine, it does when the memory is the user-space kernel's own doing.
func memoryLimit(t *testing.T, s *suite) {
	c := s.driver.Probe(ctx(t))
	m := s.start(t, func(spec *dayfly.InstanceSpec) { spec.Limits.MemoryBytes = 128 << 20 })
	for range memoryRounds { // what one used is there for the next
		r := m.exec(t, dayfly.ProcessSpec{Argv: []string{s.Inside, "alloc", "512"}})
		if r.Exit.Code != 137 || r.Exit.Signal != "KILL" {
			t.Errorf("allocating 512 MiB of 128: exit %d, signal %q, %s", r.Exit.Code, r.Exit.Signal, r.Stdout.Head)
		}
		if !r.Exit.OOMKilled && c.OOM == dayfly.OOMEndsCommand { // else it is the node that sees the counter, and says so
			t.Error("the result does not say that memory was the cause")
		}
		m.run(t, asUser, "true") // the machine goes on
	}
	u, err := m.Usage(ctx(t))
	if err != nil || u.OOMKills < memoryRounds {
		t.Errorf("usage %+v, %v: want %d oom kills", u, err, memoryRounds)
	}
	if c.OOM == dayfly.OOMEndsSandbox {
		m.exhaust(t)
	}
}

const memoryRounds = 3

// exhaust uses more memory than a machine has, where that ends the machine: soon, whole, and with the reason told.
func (m *machine) exhaust(t *testing.T) {
	t.Helper()
	neighbour := m.suite.start(t)
	spec := dayfly.ProcessSpec{ID: dayfly.NewID(dayfly.PrefixProcess), Argv: []string{m.suite.Inside, "zeros", "512"}}
	if r, err := m.shell.Run(ctx(t), spec, nil); err == nil {
		t.Fatalf("reading 512 MiB into 128: exit %+v, %s", r.Exit, r.Stdout.Head)
	}
	lost := time.Now()
	wait(t, m.Done())
	if after := time.Since(lost); after > oomWait {
		t.Errorf("the machine ended %s after its memory did", after)
	}
	why, ok := m.Instance.(interface {
		OutOfMemory() bool
		OOMKills() (int64, error)
	})
	if !ok || !why.OutOfMemory() {
		t.Fatal("the machine does not say that memory was the cause")
	}
	if kills, err := why.OOMKills(); err != nil || kills <= memoryRounds {
		t.Errorf("%d kills, %v: its end is one more than its commands'", kills, err)
	}
	if _, err := m.Dial(ctx(t)); dayfly.ErrorCode(err) != dayfly.CodeGone {
		t.Errorf("Dial = %v, want %s", err, dayfly.CodeGone)
	}
	neighbour.run(t, asUser, "true")
}

// oomWait is how long a machine may live on after the kernel has killed what it needs.
const oomWait = time.Second

func processLimit(t *testing.T, s *suite) {
	const limit = 100
	m := s.start(t, func(spec *dayfly.InstanceSpec) { spec.Limits.PIDs = limit })
	made, err := strconv.Atoi(m.run(t, asUser, "children", "500"))
	if err != nil || made == 0 || made >= limit {
		t.Errorf("made %d children, %v: the limit is %d", made, err, limit)
	}
	neighbour := s.start(t)
	neighbour.run(t, asUser, "true")
}

func ownView(t *testing.T, s *suite) {
	m := s.start(t, func(spec *dayfly.InstanceSpec) { spec.Limits.VCPU = 1 })
	if got := m.run(t, asUser, "cpus"); got != "1" {
		t.Errorf("sees %s CPUs", got)
	}
	if got := m.run(t, asUser, "hostname"); got != m.spec.ID {
		t.Errorf("hostname %q", got)
	}
	var pids []int
	for line := range strings.Lines(m.run(t, asUser, "ls", "/proc")) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			pids = append(pids, pid)
		}
	}
	if len(pids) != 2 { // PID 1 and the command itself
		t.Errorf("sees processes %v", pids)
	}
	if got := m.run(t, asUser, "cat", "/proc/self/cgroup"); strings.Contains(got, m.spec.ID) || strings.Contains(got, "..") {
		t.Errorf("sees the host's cgroups: %q", got)
	}
	if got := m.run(t, asUser, "nofile"); !strings.Contains(got, "core file size 1 1") {
		t.Errorf("limits: %q", got)
	}
}

func distinctIDs(t *testing.T, s *suite) {
	a, b := s.start(t), s.start(t)
	owner := func(m *machine) string {
		m.run(t, asRoot, "write", "/of-root", "x")
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(statePID(t, m.State())) + "/status")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			if rest, ok := strings.CutPrefix(line, "Uid:"); ok {
				return strings.Fields(rest)[0]
			}
		}
		t.Fatal("no uid")
		return ""
	}
	ua, ub := owner(a), owner(b)
	if ua == ub || ua == "0" || ub == "0" {
		t.Errorf("host uids of root inside: %s and %s", ua, ub)
	}
	info, err := os.Stat(a.spec.Root.Upper + "/u/of-root")
	if err != nil {
		t.Fatal(err)
	}
	if uid := ownerOf(info); uid != 0 {
		t.Errorf("a file of root inside is owned by %d on disk, want 0: ids on disk are native", uid)
	}
}
