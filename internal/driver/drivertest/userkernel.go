package drivertest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/loopback"
)

// harmless are calls that a user-space kernel may answer, with why that touches nothing but itself.
var harmless = map[string]string{
	"unshare_cgroup": "its control groups are its own; the host's limits are on its processes",
	"unshare_user":   "a user namespace of its own gives rights over itself",
	"clone_user":     "the same",
	"clone3_user":    "the same",
	"clone3_mount":   "it has no mount of the host's that is not the machine's",
	"keyctl":         "its keyrings are its own",
	"packet":         "its network ends at the machine's interface, where the host's rules are",
	"io_setup":       "its requests are its own threads",
}

// noCapabilities is the set of the process that surrounds a machine.
const noCapabilities = "0000000000000000"

// fileCapabilities are the most that a process of a user-space kernel may have, in a user namespace that owns nothing: over
// files of the machine's ids (CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID), to change root directory and, for its own
// children, to trace.
const fileCapabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_FSETID | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_SYS_PTRACE

// sentryFilters is how many system call filters each thread of a user-space kernel has at least: one from whoever started it,
// one of its own.
const sentryFilters = 2

// onHost lists the machine's processes on the host: those in the control group of its first one.
func (m *machine) onHost(t *testing.T) []int {
	t.Helper()
	own := groupOf(statePID(t, m.State()))
	if own == "" {
		t.Fatal("the machine has no control group")
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && groupOf(pid) == own {
			pids = append(pids, pid)
		}
	}
	return pids
}

// groupOf gives a process's v2 control group, or nothing when it is gone.
func groupOf(pid int) string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	for line := range strings.Lines(string(b)) {
		if group, ok := strings.CutPrefix(line, "0::"); ok {
			return group
		}
	}
	return ""
}

// confinedOnHost looks at every thread of the machine on the host: it has the machine's ids, cannot gain a right, and either
// has none or is behind the filters of the user-space kernel.
func (m *machine) confinedOnHost(t *testing.T) {
	t.Helper()
	pids := m.onHost(t)
	if len(pids) < 3 {
		t.Fatalf("the machine has only %d processes on the host", len(pids))
	}
	host := namespaceOf(os.Getpid())
	for _, pid := range pids {
		if ns := namespaceOf(pid); ns == host {
			t.Errorf("process %d is in the host's user namespace", pid)
		}
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		for _, task := range tasks {
			b, err := os.ReadFile(task)
			if err != nil {
				continue // the thread has ended
			}
			if fault := m.threadFault(string(b)); fault != "" {
				t.Errorf("%s: %s", task, fault)
			}
		}
	}
}

func namespaceOf(pid int) string {
	s, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid))
	return s
}

func (m *machine) threadFault(status string) string {
	for _, field := range []string{"Uid", "Gid"} {
		for id := range strings.FieldsSeq(statusField(status, field)) {
			n, err := strconv.ParseUint(id, 10, 32)
			if base := uint64(m.spec.UIDBase); err != nil || n < base || n >= base+dayfly.IDCount {
				return field + " " + id + " is not the machine's"
			}
		}
	}
	if got := statusField(status, "NoNewPrivs"); got != "1" {
		return "NoNewPrivs = " + got
	}
	if statusField(status, "CapPrm") == noCapabilities && statusField(status, "CapEff") == noCapabilities {
		return ""
	}
	for _, field := range []string{"CapPrm", "CapEff", "CapBnd"} {
		caps, err := strconv.ParseUint(statusField(status, field), 16, 64)
		if err != nil || caps&^fileCapabilities != 0 {
			return field + " = " + statusField(status, field)
		}
	}
	filters, err := strconv.Atoi(statusField(status, "Seccomp_filters"))
	if statusField(status, "Seccomp") != "2" || err != nil || filters < sentryFilters {
		return fmt.Sprintf("%d filters, mode %s", filters, statusField(status, "Seccomp"))
	}
	return ""
}

// has tells whether a path exists inside.
func (m *machine) has(t *testing.T, path string) bool {
	t.Helper()
	return m.exec(t, dayfly.ProcessSpec{Argv: []string{m.suite.Inside, "stat", path}, User: asRoot}).Exit.Code == 0
}

// rootEndsItsOwn has root inside kill PID 1, which a user-space kernel lets it: that ends its own machine, whole, and no other.
func (s *suite) rootEndsItsOwn(t *testing.T) {
	m, neighbour := s.start(t), s.start(t)
	spec := dayfly.ProcessSpec{ID: dayfly.NewID(dayfly.PrefixProcess), Argv: []string{s.Inside, "try", "kill_1"}, User: asRoot}
	_, _ = m.shell.Run(ctx(t), spec, nil)
	wait(t, m.Done())
	neighbour.run(t, asUser, "true")
}

// interfaces reads the names out of /proc/net/dev.
func interfaces(table string) string {
	var names []string
	for line := range strings.Lines(table) {
		if name, _, ok := strings.Cut(line, ":"); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// connectNothing is a network hook that does the least that one must: loopback up, IPv6 off.
func connectNothing(_ context.Context, netns *os.File) error {
	done := make(chan error, 1)
	go onSpareThread(done, func() error {
		if err := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		return loopback.Up()
	})
	return <-done
}

// onSpareThread runs f on a thread that ends afterwards, which the process's first one cannot.
func onSpareThread(done chan<- error, f func() error) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		done <- f()
		return
	}
	inner := make(chan error, 1)
	go onSpareThread(inner, f) // cannot get the first thread while this goroutine holds it
	err := <-inner
	runtime.UnlockOSThread()
	done <- err
}
