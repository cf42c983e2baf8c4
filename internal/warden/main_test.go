package warden_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/clock"
	"dayfly.dev/dayfly/internal/reserve"
	"dayfly.dev/dayfly/internal/warden"
)

const (
	roleEnv   = "DAYFLY_TEST_WARDEN_BUILD" // makes this binary a warden, of this build
	serverEnv = "DAYFLY_TEST_SERVER"       // makes it a server of "data directory:installation"
	bootEnv   = "DAYFLY_TEST_BOOT_ID"      // whose clock shows this boot
	wallEnv   = "DAYFLY_TEST_WALL"         // whose wall clock is set by this much before each reading, back and forth
	aheadEnv  = "DAYFLY_TEST_BOOT_AHEAD"   // whose boot is so much longer ago
	waitLong  = 20 * time.Second
)

// TestMain is the warden when a test starts this binary as one.
func TestMain(m *testing.M) {
	if build := os.Getenv(roleEnv); build != "" {
		os.Exit(runWarden(build))
	}
	if data := os.Getenv(serverEnv); data != "" {
		os.Exit(runServer(data))
	}
	os.Exit(m.Run())
}

func runWarden(build string) int {
	at := slices.Index(os.Args, "--data")
	if at < 0 || at+1 >= len(os.Args) {
		return 2
	}
	var c clock.Clock
	host, err := clock.NewHost()
	c = host
	if boot := os.Getenv(bootEnv); boot != "" {
		c = otherBoot{host, boot}
	}
	if by, wrong := time.ParseDuration(os.Getenv(wallEnv)); wrong == nil {
		c = &restlessWall{Host: host, by: by}
	}
	if by, wrong := time.ParseDuration(os.Getenv(aheadEnv)); wrong == nil {
		c = longAgo{host, by}
	}
	if err == nil {
		err = warden.Run(context.Background(), warden.Options{
			DataDir: os.Args[at+1], Build: build, Replace: slices.Contains(os.Args, "--replace"), Clock: c,
			Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// otherBoot is the host's clock after another start of the host.
type otherBoot struct {
	clock.Host
	id string
}

func (c otherBoot) Now() dayfly.Instant {
	now := c.Host.Now()
	now.BootID = c.id
	return now
}

// restlessWall is the host's clock, whose wall clock somebody sets before each reading.
type restlessWall struct {
	clock.Host
	by time.Duration
	n  atomic.Int64
}

func (c *restlessWall) Now() dayfly.Instant {
	now := c.Host.Now()
	now.Wall = now.Wall.Add(c.by * time.Duration(c.n.Add(1)%3-1))
	return now
}

// longAgo is the clock of a host that has run for longer.
type longAgo struct {
	clock.Host
	by time.Duration
}

func (c longAgo) Now() dayfly.Instant {
	now := c.Host.Now()
	now.Boot += c.by
	return now
}

// site is a data directory with the things around it.
type site struct {
	t            testing.TB
	data         string
	host         cgroup.Host
	installation string
	clock        clock.Host
	dir          *warden.Dir
	guard        *warden.Guard
	unlock       func() // ends the server
}

// newSite makes one and, at the end, ends its warden and machines and checks that nothing is left.
func newSite(t testing.TB) *site { return newSiteAt(t, t.TempDir()) }

func newSiteAt(t testing.TB, data string) *site {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make cgroups")
	}
	h, err := cgroup.Detect("/")
	if err != nil {
		t.Skipf("no usable cgroups: %v", err)
	}
	c, err := clock.NewHost()
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, data: data, host: h, installation: dayfly.NewInstallation(), clock: c}
	t.Cleanup(s.clean)
	s.guard = s.newGuard("one")
	if s.dir, err = warden.OpenDir(s.data); err != nil {
		t.Fatal(err)
	}
	s.unlock = s.lockServer()
	return s
}

func (s *site) newGuard(build string, env ...string) *warden.Guard {
	g, err := warden.NewGuard(warden.GuardOptions{
		DataDir: s.data, Installation: s.installation, Host: s.host, Exe: must(os.Executable()), Build: build,
		Env: append(env, roleEnv+"="+build), Clock: s.clock, Log: discard(),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return g
}

// lockServer is a running server, for as long as the returned function is not called.
func (s *site) lockServer() (stop func()) {
	f, err := reserve.Lock(filepath.Join(s.data, "server.lock"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = f.Close() })
	return func() { _ = f.Close() }
}

func (s *site) clean() {
	if pid := s.wardenPID(); pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	ids, err := s.host.List(s.installation)
	if err != nil {
		s.t.Error(err)
	}
	for _, id := range ids {
		g, err := s.host.Group(s.installation, id)
		if err != nil {
			s.t.Error(err)
			continue
		}
		if err := g.Kill(ctxFor(waitLong)); err != nil {
			s.t.Error(err)
		}
		if err := g.Remove(); err != nil {
			s.t.Error(err)
		}
	}
	own, err := s.host.Group(s.installation, cgroup.WardenID)
	if err != nil {
		s.t.Error(err)
	}
	if err := own.Kill(ctxFor(waitLong)); err != nil {
		s.t.Error(err)
	}
	if err := s.host.RemoveInstallation(s.installation); err != nil {
		s.t.Error(err)
	}
	if s.t.Failed() {
		log, _ := os.ReadFile(filepath.Join(s.data, "logs", "warden.log"))
		s.t.Logf("warden's log:\n%s", log)
	}
}

// wardenPID is the running warden's, or 0.
func (s *site) wardenPID() int {
	if held, err := reserve.Held(filepath.Join(s.data, "warden", "lock")); err != nil || !held {
		return 0
	}
	b, _ := os.ReadFile(filepath.Join(s.data, "warden", "lock"))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return pid
}

func (s *site) ensure() {
	s.t.Helper()
	if err := s.guard.Ensure(ctxFor(waitLong)); err != nil {
		s.t.Fatalf("Ensure: %v", err)
	}
}

// machine is a sandbox with a lease file, a control group and one process in it.
type machine struct {
	id    string
	group *cgroup.Group
	cmd   *exec.Cmd
}

// machine makes one that lives for d from now.
func (s *site) machine(d time.Duration) machine {
	s.t.Helper()
	m := machine{id: dayfly.NewID(dayfly.PrefixSandbox)}
	if err := s.guard.Write(m.id, dayfly.NewLease(s.clock.Now(), d, 0)); err != nil {
		s.t.Fatalf("Write: %v", err)
	}
	var err error
	if m.group, err = s.host.Group(s.installation, m.id); err != nil {
		s.t.Fatal(err)
	}
	if err := m.group.Create(dayfly.Limits{}); err != nil {
		s.t.Fatalf("Create: %v", err)
	}
	m.cmd = exec.Command("/bin/sleep", "600")
	if err := m.group.StartCmd(m.cmd); err != nil {
		s.t.Fatalf("StartCmd: %v", err)
	}
	s.t.Cleanup(func() {
		if err := m.group.Kill(ctxFor(waitLong)); err != nil {
			s.t.Error(err)
		}
		_ = m.cmd.Wait()
	})
	return m
}

// until blocks until the machine has no process and tells how late that was after the boot time due.
func (s *site) until(m machine, due time.Duration) time.Duration {
	s.t.Helper()
	s.dies(m)
	s.t.Logf("%s: %v after its deadline", m.id, clock.Boot()-due)
	return clock.Boot() - due
}

// dies waits for the machine's process to end, or fails the test and ends it.
func (s *site) dies(m machine) {
	s.t.Helper()
	timer := time.AfterFunc(waitLong, func() {
		s.t.Errorf("%s was still alive after %v", m.id, waitLong)
		_ = m.group.Kill(ctxFor(waitLong))
	})
	defer timer.Stop()
	_ = m.cmd.Wait()
}

func (s *site) alive(m machine) bool {
	s.t.Helper()
	populated, err := m.group.Populated()
	if err != nil {
		s.t.Fatal(err)
	}
	return populated
}

// end waits for the end record.
func (s *site) end(id string) warden.End {
	s.t.Helper()
	for range 2000 {
		e, ok, err := s.guard.Ended(id)
		if err != nil {
			s.t.Fatal(err)
		}
		if ok {
			return e
		}
		time.Sleep(time.Millisecond) // files of another process: a bounded look
	}
	s.t.Fatalf("nobody recorded the end of %s", id)
	return warden.End{}
}

// eventually waits for something that another process does.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range int(waitLong / (2 * time.Millisecond)) {
		if ok() {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
	t.Fatalf("it never came to this: %s", what)
}

func ctxFor(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	context.AfterFunc(ctx, cancel)
	return ctx
}

func must(s string, err error) string {
	if err != nil {
		panic(err)
	}
	return s
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func sleeper() *exec.Cmd { return exec.Command("/bin/sleep", "600") }

// report gives the percentiles of a measurement in milliseconds.
func report(b *testing.B, d []time.Duration) {
	slices.Sort(d)
	for name, at := range map[string]int{"p50-ms": len(d) / 2, "p99-ms": len(d) * 99 / 100, "max-ms": len(d) - 1} {
		b.ReportMetric(float64(d[at].Microseconds())/1000, name)
	}
}
