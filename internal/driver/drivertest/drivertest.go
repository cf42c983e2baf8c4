// Package drivertest is the conformance suite of dayfly.Driver: what every driver must do, as seen from the node and from a
// command inside. A driver's own test makes a Harness and calls Run. The suite looks at the host before and after each
// case, so a driver that leaves anything behind fails.
//
// Run needs of the agent no more than that it runs commands. RunExec and RunFiles hold what users see of commands and files, by
// way of driver, agent and wire together, to the failures that others report; how the agent does it is internal/agent's to
// test. To add a case, write a function of (t, *suite) and put it into the list in Run, RunExec or RunFiles; to let a command
// inside do something new, add an operation to inside.
package drivertest

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

// Shell runs commands in a machine, by way of its agent. agentwire.Client is one.
type Shell interface {
	Run(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.Result, error)
	Start(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.OutputStream, dayfly.Process, error)
	Close() error
}

// Harness is what a driver's test supplies.
type Harness struct {
	// Open makes a driver for always the same installation: a second one is the driver after a restart of the node.
	Open func(t *testing.T) dayfly.Driver
	// Spec makes a valid spec for a new machine: an id and host ids of its own, a root file system in which Inside can be
	// executed, the default user with a uid that is not 0 where the driver has users.
	Spec func(t *testing.T) dayfly.InstanceSpec
	// Connect takes a dialled connection over.
	Connect func(ctx context.Context, conn net.Conn) (Shell, error)
	// Inside is the path of the program of package inside, as a command in a machine names it.
	Inside string
	// Residue lists everything of this driver that is on the host now, one line each, in a fixed order.
	Residue func(t *testing.T) []string
	// Isolated: machines are separated from the host and from each other. The cases about that run only then.
	Isolated bool
	// UserKernel: a kernel in user space answers the system calls of what runs inside. What a call does there, it does to that
	// kernel alone, so the cases ask for what is true and safe then (userkernel.go), and look at that kernel's own processes on
	// the host instead.
	UserKernel bool
}

const (
	caseWait = 60 * time.Second // for one case
	slowWait = 10 * time.Second // for one thing that should take milliseconds
)

// suite is one run of the cases on one driver.
type suite struct {
	Harness
	driver dayfly.Driver
}

// Run runs the whole suite. It must not run in parallel with other tests that use the same harness.
func Run(t *testing.T, h Harness) {
	s := &suite{Harness: h, driver: h.Open(t)}
	for _, c := range []struct {
		name     string
		isolated bool // needs Harness.Isolated
		do       func(*testing.T, *suite)
	}{
		{"probe works", false, probe},
		{"start, dial, run", false, startDialRun},
		{"environment, files and grant are there", false, environment},
		{"no descriptor is inherited", false, descriptors},
		{"twenty at once", false, twentyAtOnce},
		{"same id twice", false, sameIDTwice},
		{"wrong specs leave nothing", false, wrongSpecs},
		{"context ends during start", false, cancelledStart},
		{"network hook fails", false, failingNetwork},
		{"destroy twice, dial after", false, destroyTwice},
		{"done after PID 1 was killed", false, killedAgent},
		{"recover after a restart", false, recoverRunning},
		{"recover what has ended", false, recoverEnded},
		{"recover a damaged state", false, recoverDamaged},
		{"list and reclaim the unrecorded", false, reclaimUnrecorded},
		{"usage counts", false, usage},
		{"destroy stopped processes", false, destroyStopped},
		{"pause and resume, each twice", false, pauseTwice},
		{"pause and resume often", false, pauseOften},
		{"a paused machine uses no CPU", false, pausedUsesNothing},
		{"a paused machine ends", false, endPaused},
		{"destroy amid pauses and resumes", false, endsAmidPause},
		{"recover while paused", false, recoverPaused},

		{"destroy a fork bomb", true, destroyForkBomb},
		{"memory limit ends what the driver says", true, memoryLimit},
		{"process limit", true, processLimit},
		{"kernel counters are its own", true, ownCounters},
		{"first victims of the host's lack of memory", true, firstVictims},
		{"unread network data counts as memory", true, queuedData},
		{"shared memory cannot end the machine", true, sharedMemory},
		{"sees its own CPUs, name and processes", true, ownView},
		{"host ids are distinct", true, distinctIDs},
		{"rights of a command", true, rights},
		{"setuid programs work", true, setuid},
		{"denied system calls", true, deniedCalls},
		{"allowed system calls", true, allowedCalls},
		{"masked and read-only paths", true, maskedPaths},
		{"grant directory is read-only", true, readOnlyGrant},
		{"device nodes", true, devices},
		{"machines cannot reach each other", true, apart},
		{"PID 1 is out of reach", true, pidOne},
		{"working directory in a descriptor", true, workingDirectory},
		{"hostile images", true, hostileImages},
		{"network namespace is its own", true, networkNamespace},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.isolated && !h.Isolated {
				t.Skip("this driver isolates nothing")
			}
			before := h.Residue(t)
			t.Cleanup(func() { s.sameResidue(t, before) })
			c.do(t, s)
		})
	}
}

// sameResidue fails when something is on the host that was not there before.
func (s *suite) sameResidue(t *testing.T, before []string) {
	t.Helper()
	after := s.Residue(t)
	if got, want := strings.Join(after, "\n"), strings.Join(before, "\n"); got != want {
		t.Errorf("left behind:\n%s\nbefore it was:\n%s", got, want)
	}
}

// machine is a started machine with a shell in it.
type machine struct {
	dayfly.Instance
	spec  dayfly.InstanceSpec
	shell Shell
	suite *suite
}

// start makes a machine and destroys it when the case ends.
func (s *suite) start(t *testing.T, change ...func(*dayfly.InstanceSpec)) *machine {
	t.Helper()
	spec := s.Spec(t)
	for _, c := range change {
		c(&spec)
	}
	inst, err := s.driver.Start(ctx(t), spec)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	m := &machine{Instance: inst, spec: spec, suite: s}
	t.Cleanup(func() { m.destroy(t) })
	m.shell = s.connect(t, inst)
	return m
}

// connect dials a machine and closes the shell when the case ends.
func (s *suite) connect(t *testing.T, inst dayfly.Instance) Shell {
	t.Helper()
	conn, err := inst.Dial(ctx(t))
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	shell, err := s.Connect(ctx(t), conn)
	if err != nil {
		t.Fatalf("Connect: %v", err)
	}
	t.Cleanup(func() { _ = shell.Close() })
	return shell
}

func (m *machine) destroy(t *testing.T) {
	t.Helper()
	if m.shell != nil {
		_ = m.shell.Close()
	}
	if err := m.Destroy(ctx(t)); err != nil {
		t.Errorf("Destroy: %v", err)
	}
}

// ctx is a context for one call. It does not end with the test, so that cleanups can use it.
func ctx(t *testing.T) context.Context {
	t.Helper()
	c, cancel := context.WithTimeout(context.Background(), caseWait)
	t.Cleanup(cancel)
	return c
}

// as names who runs a command.
const (
	asUser = ""
	asRoot = "0"
)

// run runs an operation of the inside program and gives its trimmed output. It must exit with 0.
func (m *machine) run(t *testing.T, user string, op ...string) string {
	t.Helper()
	r := m.exec(t, dayfly.ProcessSpec{Argv: append([]string{m.suite.Inside}, op...), User: user})
	if r.Exit.Code != 0 {
		t.Fatalf("%v: exit %d (signal %q, oom %t): %s%s", op, r.Exit.Code, r.Exit.Signal, r.Exit.OOMKilled, r.Stdout.Head, r.Stderr.Head)
	}
	return strings.TrimSpace(string(r.Stdout.Head))
}

func (m *machine) exec(t *testing.T, spec dayfly.ProcessSpec) dayfly.Result {
	t.Helper()
	spec.ID = dayfly.NewID(dayfly.PrefixProcess)
	r, err := m.shell.Run(ctx(t), spec, nil)
	if err != nil {
		t.Fatalf("run %v: %v", spec.Argv, err)
	}
	return r
}

// background starts an operation that prints a line when it has done its work, then stays. It returns that line.
func (m *machine) background(t *testing.T, user string, op ...string) string {
	t.Helper()
	out, _, err := m.shell.Start(ctx(t), dayfly.ProcessSpec{
		ID: dayfly.NewID(dayfly.PrefixProcess), Argv: append([]string{m.suite.Inside}, op...), User: user,
		OnDisconnect: dayfly.DisconnectContinue, Timeout: caseWait,
	}, nil)
	if err != nil {
		t.Fatalf("start %v: %v", op, err)
	}
	t.Cleanup(func() { _ = out.Close() })
	var line strings.Builder
	for !strings.Contains(line.String(), "\n") {
		e, err := out.Next()
		if err != nil {
			t.Fatalf("%v said %q, then: %v", op, line.String(), err)
		}
		if e.Kind == dayfly.OutputExit {
			t.Fatalf("%v said %q and exited with %d", op, line.String(), e.Exit.Code)
		}
		line.Write(e.Data)
	}
	return strings.TrimSpace(line.String())
}

// Build builds one of this module's commands, statically, into a directory of the test and returns the file.
func Build(t testing.TB, pkg string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), filepath.Base(pkg))
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", file, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return file
}

// The programs that a driver's test builds.
const (
	AgentPackage  = "dayfly.dev/dayfly/cmd/dayfly-agent"
	InsidePackage = "dayfly.dev/dayfly/internal/driver/drivertest/inside"
)
