package drivertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Escapes runs the escape checklist: what somebody tries who wants out of a machine, or at its neighbour. docs/SECURITY.md lists
// the cases by name, beside those of Run that belong to it. The harness's machines need nothing but Inside.
//
// A case that is refused inside has its control: the same attempt of the same program on the host, in namespaces of its own
// where it would leave something, must answer differently, so that a refusal is the machine's and not the attempt's fault. Where
// the host answers the same, the case is checked and then skipped with that reason.
//
// To add a case, add a line to a table (escape_attempts.go) and, for a new kind of attempt, a function to attempts in inside.
func Escapes(t *testing.T, h Harness) {
	s := &suite{Harness: h, driver: h.Open(t)}
	s.cases(t, []suiteCase{
		{"mounts", attemptsOf(mountAttempts)},
		{"nodes", attemptsOf(nodeAttempts)},
		{"rights", attemptsOf(rightAttempts)},
		{"kernel", attemptsOf(kernelAttempts)},
		{"switches", attemptsOf(switchAttempts)},
		{"network", attemptsOf(networkAttempts)},
		{"processes", attemptsOf(processAttempts)},

		{"device nodes of an image", imageNodes},
		{"links in place of what gets mounted or masked", imageLinks},
		{"links exchanged while the machine starts", mountRace},
		{"mount points cannot be moved away", movedMounts},
		{"no path of the host in the mount table", mountTable},
		{"a script run by its own runtime", runtimeAsInterpreter},
		{"files through the agent's descriptors", agentDescriptors},
		{"working directory through /proc", procDirectories},
		{"PID 1 loads nothing of the image (CVE-2019-14271)", loadedByPIDOne},
		{"PID 1 holds nothing of the host", heldByPIDOne},
		{"the control group ends at its own", groupOfPIDOne},
		{"every process of the user killed", killAll},
		{"a crash starts nothing and leaves nothing", crashes},
		{"the shared image stays as it was", sharedImage},
		{"pages of the image through a pipe (CVE-2022-0847)", pagesOfTheImage},
		{"set-user-ID files are root inside alone", setuidFile},
		{"objects of the host have no name inside", hostObjects},
		{"memory taken beside a neighbour", hungryNeighbour},
	})
}

// attempt is one thing that is tried inside, as root.
type attempt struct {
	name    string
	try     string // attempt of the inside program, with its arguments
	want    string // what may be answered where the host's kernel is shared: errno names
	control string // another attempt for the host; empty: the same
	alone   string // why there is no control, or empty
	own     string // why a user-space kernel may answer "ok": what it does then, or empty
}

func attemptsOf(all []attempt) func(*testing.T, *suite) {
	return func(t *testing.T, s *suite) {
		m, host := s.start(t), s.hostProgram(t)
		for _, a := range all {
			t.Run(a.name, func(t *testing.T) {
				before := hostSettings(t)
				got := m.run(t, asRoot, append([]string{"attempt"}, strings.Fields(a.try)...)...)
				t.Logf("%s answers %s", a.try, got)
				if after := hostSettings(t); after != before {
					t.Errorf("the host's settings changed from\n%s to\n%s", before, after)
				}
				switch {
				case s.UserKernel && got == "ok" && a.own == "", !s.UserKernel && !slices.Contains(strings.Fields(a.want), got):
					t.Errorf("%s answers %s, want %s", a.try, got, a.want)
				case a.alone == "" && !(s.UserKernel && got == "ok"):
					control(t, host, got, a)
				}
			})
		}
		if s.UserKernel {
			m.confinedOnHost(t)
		}
	}
}

// control makes the same attempt on the host.
func control(t *testing.T, host hostProgram, got string, a attempt) {
	t.Helper()
	op := a.control
	if op == "" {
		op = a.try
	}
	there := host.attempt(t, apartFromHost, op)
	if there == got {
		t.Skipf("refused inside (%s), but the host answers the same", got)
	}
	t.Logf("%s answers %s on the host", op, there)
}

// hostProgram is the inside program, to be run on the host: its path, in a directory of its own.
type hostProgram struct{ path string }

// apartFromHost are the namespaces in which an attempt on the host leaves nothing there.
const apartFromHost = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET

func (s *suite) hostProgram(t *testing.T) hostProgram {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.Spec(t).Root.Lower[0], s.Inside))
	if err != nil {
		t.Fatal(err)
	}
	p := hostProgram{path: filepath.Join(t.TempDir(), "inside")}
	if err := os.WriteFile(p.path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

// attempt runs an attempt in new namespaces of the given kinds (0: none) and gives its answer.
func (p hostProgram) attempt(t *testing.T, namespaces uintptr, op string) string {
	t.Helper()
	cmd := exec.Command(p.path, append([]string{"attempt"}, strings.Fields(op)...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: namespaces, Pdeathsig: unix.SIGKILL}
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	if strings.HasPrefix(op, "chroot_dance") { // out of a directory that looks like a machine's root, to the host's
		root := filepath.Dir(p.path)
		file(t, root+"/inside-marker")
		directory(t, root+"/tmp")
		cmd.Path, cmd.SysProcAttr.Chroot, cmd.Dir, cmd.Env = "/inside", root, "/", []string{"TMPDIR=/tmp"}
	}
	out, err := cmd.Output()
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(out))
}

// hostSettings are switches of the whole host that attempts would turn.
func hostSettings(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, path := range []string{
		"/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe",
		"/proc/sys/kernel/sysrq", "/proc/sys/user/max_user_namespaces", "/sys/kernel/uevent_helper", "/proc/sys/kernel/ctrl-alt-del",
	} {
		value, _ := os.ReadFile(path) // not every kernel has each
		b.WriteString(path + " " + string(value))
	}
	return b.String()
}

// refused fails when a command exits with 0.
func (m *machine) refused(t *testing.T, user string, op ...string) {
	t.Helper()
	r := m.exec(t, dayfly.ProcessSpec{Argv: append([]string{m.suite.Inside}, op...), User: user})
	if r.Exit.Code == 0 {
		t.Errorf("%v is possible: %.200s", op, r.Stdout.Head)
	}
}
