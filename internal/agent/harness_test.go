package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agent"
	"dayfly.dev/dayfly/internal/agentwire"
)

// agentEnv makes the test binary an agent instead of a test.
const agentEnv = "DAYFLY_TEST_AGENT"

// testLimit bounds every wait in these tests.
const testLimit = 60 * time.Second

// promptly bounds what must not wait for a command of a minute and more. What is promised is shorter, but a loaded host
// keeps no such promise.
const promptly = 20 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(agentEnv) != "" {
		os.Unsetenv(agentEnv)
		fmt.Fprintln(os.Stderr, "agent:", serveTest())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// serveTest is the agent's process: the listener is descriptor 3, the configuration 4, a cgroup perhaps 5. The configuration
// comes through a pipe that stays open: when it closes, the test is gone, however it ended.
func serveTest() error {
	if err := unix.SetNonblock(4, true); err != nil {
		return err
	}
	lifeline := os.NewFile(4, "config")
	var cfg agent.Config
	if err := json.NewDecoder(lifeline).Decode(&cfg); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, lifeline)
		_ = unix.Kill(os.Getpid(), unix.SIGTERM) // the agent takes its children with it
		time.AfterFunc(promptly, func() { os.Exit(1) })
	}()
	cfg.Cgroup, cfg.OOMEvents = inherited(5, unix.S_IFDIR), inherited(6, unix.S_IFREG)
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	return agent.Serve(context.Background(), l, cfg)
}

// inherited gives a descriptor that was handed over, or nil. One that was not may be the runtime's own by now: it must not
// become a File, which is closed when it is collected.
func inherited(fd int, kind uint32) *os.File {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != kind {
		return nil
	}
	return os.NewFile(uintptr(fd), "inherited")
}

// machine is an agent in a process of its own.
type machine struct {
	*agentwire.Client
	home   string
	socket string
	cgroup string // of the agent's leaves, or empty
	cmd    *exec.Cmd
	exited chan struct{}
}

// options of a test agent.
type options struct {
	config agent.Config
	cgroup bool // with leaf cgroups: root only
	root   bool // change users: root only
	// confine is called with the agent's process before it starts to work, or is nil.
	confine func(pid int)
	// oomEvents is where the agent reads how many processes were killed for lack of memory, or nil; it needs cgroup.
	oomEvents *os.File
}

// startAgent runs an agent. Its end, and that nothing is left of it, is checked when the test ends.
func startAgent(t testing.TB, o options) *machine {
	t.Helper()
	m := &machine{home: t.TempDir(), exited: make(chan struct{})}
	o.config.User = dayfly.User{Name: "tester", UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Home: m.home}
	if o.root {
		needRoot(t)
		o.config.SwitchUser = true
		o.config.User = dayfly.User{Name: "tester", UID: 1000, GID: 1000, Home: m.home}
		openUp(t, m.home)
		if err := os.Chown(m.home, 1000, 1000); err != nil {
			t.Fatal(err)
		}
	}
	m.socket = filepath.Join(t.TempDir(), "agent")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: m.socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	lf, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	m.start(t, o, lf)
	m.Client = m.connect(t)
	return m
}

// openUp lets the other user into the test's directories.
func openUp(t testing.TB, dir string) {
	for d := dir; len(d) > len(os.TempDir()); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func (m *machine) start(t testing.TB, o options, listener *os.File) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	m.cmd = exec.Command(self)
	m.cmd.Env = []string{agentEnv + "=1"}
	m.cmd.ExtraFiles = []*os.File{listener, r}
	var stderr strings.Builder
	m.cmd.Stderr = &stderr
	m.cmd.WaitDelay = time.Second
	if o.cgroup {
		m.cgroup = makeCgroup(t)
		dir, err := os.Open(m.cgroup)
		if err != nil {
			t.Fatal(err)
		}
		m.cmd.ExtraFiles = append(m.cmd.ExtraFiles, dir)
		defer dir.Close()
	}
	if o.oomEvents != nil {
		m.cmd.ExtraFiles = append(m.cmd.ExtraFiles, o.oomEvents)
	}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	_ = listener.Close()
	if o.confine != nil {
		o.confine(m.cmd.Process.Pid)
	}
	if err := json.NewEncoder(w).Encode(o.config); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = m.cmd.Wait()
		_ = w.Close()
		close(m.exited)
	}()
	t.Cleanup(func() {
		_ = m.cmd.Process.Signal(unix.SIGTERM) // the agent takes its children with it
		select {
		case <-m.exited:
		case <-time.After(testLimit):
			_ = m.cmd.Process.Kill()
			t.Error("the agent did not end")
		}
		if s := stderr.String(); strings.Contains(s, "panic") || strings.Contains(s, "fatal") {
			t.Errorf("the agent said: %s", s)
		}
	})
}

func (m *machine) connect(t testing.TB) *agentwire.Client { return m.connectSince(t, 0) }

// connectSince connects as a node does that knows how old the lease is.
func (m *machine) connectSince(t testing.TB, age time.Duration) *agentwire.Client {
	t.Helper()
	conn, err := net.Dial("unix", m.socket)
	if err != nil {
		t.Fatal(err)
	}
	c, err := agentwire.NewClientSince(t.Context(), conn, age)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// makeCgroup makes a v2 cgroup for an agent, removed when the test ends.
func makeCgroup(t testing.TB) string {
	t.Helper()
	needRoot(t)
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(root + "/cgroup.procs"); err != nil {
			continue
		}
		dir, err := os.MkdirTemp(root, "dayfly-agent-test-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { removeCgroup(t, dir) })
		return dir
	}
	t.Skip("no cgroup v2 hierarchy")
	return ""
}

// removeCgroup removes what the agent, which is dead by now, left in its cgroup: leaves of commands that it killed.
func removeCgroup(t testing.TB, dir string) {
	_ = os.WriteFile(dir+"/cgroup.kill", []byte("1"), 0)
	deadline := time.Now().Add(testLimit)
	for {
		leaves, _ := filepath.Glob(dir + "/[sx]-*") // spare ones too
		for _, l := range leaves {
			_ = os.Remove(l)
		}
		err := os.Remove(dir)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("remove cgroup: %v", err)
			return
		}
		time.Sleep(time.Millisecond) // the kernel tells nothing when a cgroup becomes removable
	}
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
}

// spec of a shell command with a fresh id.
func shell(command string) dayfly.ProcessSpec {
	return dayfly.ProcessSpec{ID: dayfly.NewID(dayfly.PrefixProcess), Command: command}
}

// run runs a command to its end.
func (m *machine) run(t testing.TB, spec dayfly.ProcessSpec) dayfly.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	res, err := m.Run(ctx, spec, nil)
	if err != nil {
		t.Fatalf("run %.60q: %v", spec.Command, err)
	}
	return res
}

// living lists what the machine's commands have running, a line of arguments each. Other machines' processes, which it could
// see as well, do not count.
func (m *machine) living(t testing.TB) string {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d processes, %v", len(names), err)
	}
	var lines strings.Builder
	for _, name := range names {
		env, _ := os.ReadFile(name + "/environ") // a process that has just ended has none
		args, _ := os.ReadFile(name + "/cmdline")
		if len(args) > 0 && strings.Contains("\x00"+string(env), "\x00HOME="+m.home+"\x00") {
			lines.WriteString(strings.ReplaceAll(strings.TrimRight(string(args), "\x00"), "\x00", " ") + "\n")
		}
	}
	return lines.String()
}

// out is a command's whole standard output.
func out(c dayfly.Captured) string { return string(c.Head) + string(c.Tail) }

// wantCode checks an error's code.
func wantCode(t testing.TB, err error, want dayfly.Code) {
	t.Helper()
	if got := dayfly.ErrorCode(err); got != want {
		t.Errorf("code = %q, want %q (%v)", got, want, err)
	}
	if errors.Is(err, agentwire.ErrLost) {
		t.Errorf("the connection was lost: %v", err)
	}
}

// eventually retries a check that no event announces.
func eventually(t testing.TB, what string, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testLimit); !check(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}
