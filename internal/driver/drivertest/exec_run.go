package drivertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agentwire"
)

// RunExec runs the cases about commands: what a command does, says and leaves must be the same under every driver. The
// harness's machines need, beside Inside, what every distribution has: bash, coreutils and procps. A case that names a number
// ("bug 2: …") is one of the failures that users of such platforms report; docs/SPECIFICATION.md lists them.
//
// Cases say nothing about speed: their bounds only tell a hang from an answer. To add one, write a function of (t, *suite) and
// put it into the list.
func RunExec(t *testing.T, h Harness) {
	s := &suite{Harness: h, driver: h.Open(t)}
	s.cases(t, []suiteCase{
		{"bug 1: a timeout ends every descendant", timeoutEndsAll},
		{"bug 2: a background child holds up no answer", backgroundChild},
		{"bug 12: everyone who waits hears of the end", waitersHear},
		{"bug 13: characters survive every cut", charactersSurvive},
		{"bug 14: bytes that are no text", bytesNoText},
		{"bug 15: output without end", endlessOutput},
		{"bug 24: memory exhaustion is told", memoryExhaustion},
		{"bug 25: standard input ends", inputEnds},
		{"bug 26: commands do not wait for each other", independence},
		{"bug 27: the timeout is the end", timeoutIsTheEnd},
		{"bug 40: the last bytes arrive", lastBytes},
		{"bug 42: nobody invents an exit code", noInventedExit},
		{"bug 43: silence ends no command", silence},
		{"bug 65: the clock is right after a pause", wallClock},
		{"bug 82: a program that cannot run", cannotRun},
		{"bug 83: a wrong working directory", wrongDirectory},
		{"bug 84: environment is bytes", environmentIsBytes},
		{"bug 85: commands of many lines", manyLines},
		{"bug 86: a command ends only itself", endsOnlyItself},
		{"bug 87: long commands", longCommands},
		{"bug 88: a kill reaches the whole tree", killTree},
		{"bug 89: output is read again", outputAgain},
		{"bug 91: output flows after a pause", afterPause},
		{"bug 92: no process without an owner", everyProcessOwned},
		{"bug 93: no zombies", noZombies},
		{"bug 94: a command sees its own share", ownShare},
		{"bug 96: nothing waits for a terminal", noTerminal},
		{"bug 97: UTF-8 by default", utf8Default},
		{"bug 98: a terminal shows everything", terminalOutput},
		{"a terminal is a real one", terminalIsReal},
		{"a terminal hangs up", terminalHangsUp},
		{"jobs of a terminal", terminalJobs},
		{"what fails is started again", restarts},
		{"one running process has a name", processNames},
		{"what processes use", processUsage},
		{"a timeout passes while paused", timeoutWhilePaused},
		{"a command goes on after a pause", longAfterPause},
		{"a port is awaited", portIsAwaited},
	})
}

// suiteCase is one case of a suite.
type suiteCase struct {
	name string
	do   func(*testing.T, *suite)
}

// cases runs the cases, each with a look at the host before and after.
func (s *suite) cases(t *testing.T, all []suiteCase) {
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			before := s.Residue(t)
			t.Cleanup(func() { s.sameResidue(t, before) })
			c.do(t, s)
		})
	}
}

// guest is a machine and everything that can be done inside it.
type guest struct {
	*machine
	agentwire.Machine
}

// guest starts a machine.
func (s *suite) guest(t *testing.T, change ...func(*dayfly.InstanceSpec)) *guest {
	t.Helper()
	m := s.start(t, change...)
	return &guest{machine: m, Machine: whole(t, m.shell)}
}

// again gives a second connection to the same machine, as another client of it or the node after a restart has.
func (g *guest) again(t *testing.T) agentwire.Machine {
	t.Helper()
	return whole(t, g.suite.connect(t, g.Instance))
}

func whole(t *testing.T, s Shell) agentwire.Machine {
	t.Helper()
	m, ok := s.(agentwire.Machine)
	if !ok {
		t.Fatalf("%T is no agentwire.Machine", s)
	}
	return m
}

// shell is a command for the machine's shell.
func shell(command string) dayfly.ProcessSpec {
	return dayfly.ProcessSpec{ID: dayfly.NewID(dayfly.PrefixProcess), Command: command}
}

// argv is a command without a shell.
func argv(args ...string) dayfly.ProcessSpec {
	return dayfly.ProcessSpec{ID: dayfly.NewID(dayfly.PrefixProcess), Argv: args}
}

// call runs a command whose result is wanted, whatever it is.
func (g *guest) call(t *testing.T, spec dayfly.ProcessSpec) dayfly.Result {
	t.Helper()
	r, err := g.Run(ctx(t), spec, nil)
	if err != nil {
		t.Fatalf("run %.200q %.200q: %v", spec.Command, spec.Argv, err)
	}
	return r
}

// sh runs a command that must exit with 0, and gives what it wrote.
func (g *guest) sh(t *testing.T, command string) string {
	t.Helper()
	r := g.call(t, shell(command))
	if r.Exit.Code != 0 {
		t.Fatalf("%.200q: %+v: %s", command, r.Exit, r.Stderr.Head)
	}
	return kept(r.Stdout)
}

// kept is all that was kept of an output.
func kept(c dayfly.Captured) string { return string(c.Head) + string(c.Tail) }

// begin starts a command in the background. Its stream ends with the case.
func (g *guest) begin(t *testing.T, spec dayfly.ProcessSpec) (dayfly.OutputStream, dayfly.Process) {
	t.Helper()
	stream, p, err := g.Start(ctx(t), spec, nil)
	if err != nil {
		t.Fatalf("start %.200q: %v", spec.Command, err)
	}
	t.Cleanup(func() { _ = stream.Close() })
	return stream, p
}

// line reads a stream until its stdout holds a whole line more.
func line(t *testing.T, stream dayfly.OutputStream) string {
	t.Helper()
	var b strings.Builder
	for !strings.HasSuffix(b.String(), "\n") {
		o, err := stream.Next()
		if err != nil || o.Kind == dayfly.OutputExit || o.Kind == dayfly.OutputDropped {
			t.Fatalf("after %d bytes, %.100q: %+v, %v", b.Len(), b.String(), o, err)
		}
		if o.Kind == dayfly.OutputStdout {
			b.Write(o.Data)
		}
	}
	return b.String()
}

// collect reads a stream to its exit. Stdout must come without a gap, from the offset on, and the exit last.
func collect(t *testing.T, stream dayfly.OutputStream, from int64) (string, dayfly.Exit) {
	t.Helper()
	var b strings.Builder
	for {
		o, err := stream.Next()
		if err != nil {
			t.Fatalf("after %d bytes: %v", b.Len(), err)
		}
		switch o.Kind {
		case dayfly.OutputStdout:
			if o.Offset != from+int64(b.Len()) {
				t.Fatalf("offset %d after %d bytes from %d", o.Offset, b.Len(), from)
			}
			b.Write(o.Data)
		case dayfly.OutputDropped:
			t.Fatalf("%d bytes of %s are missing at %d", o.Bytes, o.Stream, o.Offset)
		case dayfly.OutputExit:
			if _, err := stream.Next(); err != io.EOF {
				t.Fatalf("after the exit: %v", err)
			}
			return b.String(), *o.Exit
		}
	}
}

// nap gives a command that sleeps for more than an hour and bears a name that no other process has.
func nap() string { return fmt.Sprintf("sleep 4%03d.%09d", rand.IntN(1000), rand.IntN(1_000_000_000)) }

// runs tells whether a command that nap gave runs, or is a zombie, in the machine.
func (g *guest) runs(t *testing.T, nap string) bool {
	t.Helper()
	return strings.Contains(g.sh(t, "ps axo args"), "\n"+nap+"\n")
}

// endNap ends what a case left running, so that a driver that isolates nothing has nothing of it.
func (g *guest) endNap(t *testing.T, naps ...string) {
	t.Helper()
	for _, n := range naps {
		g.call(t, shell("pkill -KILL -xf '"+n+"'"))
	}
}

// wantCode fails unless err has the code.
func wantCode(t *testing.T, what string, err error, want dayfly.Code) {
	t.Helper()
	if err == nil || dayfly.ErrorCode(err) != want {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
}

// soon is the context of a call that must end long before the case does.
func soon(t *testing.T) context.Context {
	t.Helper()
	c, cancel := context.WithTimeout(context.Background(), slowWait)
	t.Cleanup(cancel)
	return c
}

// lost fails unless err says that the agent is gone.
func lost(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, agentwire.ErrLost) {
		t.Errorf("%s ended with %v, want that the agent is lost", what, err)
	}
}

// eventually waits for what no event tells.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	const tick = 20 * time.Millisecond
	for deadline := time.Now().Add(slowWait); !cond(); <-time.After(tick) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", slowWait, what)
		}
	}
}

// agentBytes is the memory that the machine's first process has resident.
func (g *guest) agentBytes(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", statePID(t, g.State())))
	if err != nil {
		t.Fatal(err)
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
