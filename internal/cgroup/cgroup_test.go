package cgroup_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
)

const killWait = 10 * time.Second

// host finds the real layout and an installation of the test's own, which must be gone at the end.
func host(t testing.TB) (cgroup.Host, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make cgroups")
	}
	h, err := cgroup.Detect("/")
	if err != nil {
		t.Skipf("no usable cgroups: %v", err)
	}
	installation := dayfly.NewInstallation()
	t.Cleanup(func() {
		ids, err := h.List(installation)
		if err != nil || len(ids) > 0 {
			t.Errorf("List at the end = %v, %v; want nothing left", ids, err)
		}
		if err := h.RemoveInstallation(installation); err != nil {
			t.Errorf("RemoveInstallation: %v", err)
		}
	})
	return h, installation
}

// group makes a group and removes it with everything in it at the end.
func group(t testing.TB, h cgroup.Host, installation string, limits dayfly.Limits) *cgroup.Group {
	t.Helper()
	g, err := h.Group(installation, dayfly.NewID(dayfly.PrefixSandbox))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Create(limits); err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), killWait)
		defer cancel()
		if err := g.Kill(ctx); err != nil {
			t.Errorf("Kill at the end: %v", err)
		}
		if err := g.Remove(); err != nil {
			t.Errorf("Remove at the end: %v", err)
		}
	})
	return g
}

// start runs a shell script in g and reaps it at the end. The script says "ready" once it is where the test wants it.
func start(t testing.TB, g *cgroup.Group, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = in
	err = g.StartCmd(cmd)
	in.Close()
	if err != nil {
		t.Fatalf("StartCmd: %v", err)
	}
	t.Cleanup(func() {
		if err := g.Kill(within(t, killWait)); err != nil {
			t.Errorf("Kill at the end: %v", err)
			return
		}
		_ = cmd.Wait()
	})
	_ = out.SetReadDeadline(time.Now().Add(killWait))
	if _, err := out.Read(make([]byte, 64)); err != nil {
		t.Fatalf("the script did not get ready: %v", err)
	}
	return cmd
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	context.AfterFunc(ctx, cancel)
	return ctx
}

func TestBornInEveryGroup(t *testing.T) {
	h, installation := host(t)
	g := group(t, h, installation, dayfly.Limits{VCPU: 1, MemoryBytes: 64 << 20})
	before := readFile(t, "/proc/self/task/"+filepath.Base(must(os.Readlink("/proc/thread-self")))+"/cgroup")
	for range 20 { // on many threads
		cmd := exec.Command("/bin/cat", "/proc/self/cgroup")
		out := new(strings.Builder)
		cmd.Stdout = out
		if err := g.StartCmd(cmd); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		id := filepath.Base(g.Paths().V2)
		for _, want := range append(keys(g.Paths().V1), "::") {
			found := false
			for line := range strings.Lines(out.String()) {
				found = found || strings.Contains(line, want) && strings.HasSuffix(strings.TrimSpace(line), "/"+id)
			}
			if !found {
				t.Fatalf("hierarchy %q: the child is not in %s:\n%s", want, id, out)
			}
		}
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/cgroup")
		if err == nil && string(b) != before {
			t.Errorf("thread %s was left in\n%s", task.Name(), b)
		}
	}
}

func TestKill(t *testing.T) {
	const bomb = `export B='while :; do sh -c "$B" 2>/dev/null & done'; sh -c "$B" 2>/dev/null & echo ready; wait; sleep 600`
	h, installation := host(t)
	for _, tt := range []struct {
		name, script string
		pids         int
		freeze       bool
	}{
		{"one", "echo ready; exec sleep 600", 0, false},
		{"a hundred", "for i in $(seq 100); do sleep 600 & done; echo ready; wait", 0, false},
		{"fork bomb", bomb, 200, false},
		{"stopped", "sleep 600 & kill -STOP $!; echo ready; kill -STOP $$", 0, false},
		{"frozen", "sleep 600 & echo ready; wait", 0, true},
		{"left its session, ignores signals", "trap '' TERM INT HUP; setsid sleep 600 & (setsid sh -c 'trap \"\" TERM; sleep 601' &) ; echo ready; wait", 0, false},
	} {
		for _, way := range []string{"kill", "freeze"} {
			t.Run(tt.name+"/"+way, func(t *testing.T) {
				g := group(t, h, installation, dayfly.Limits{PIDs: tt.pids})
				start(t, g, tt.script)
				waitFull(t, g, tt.pids)
				if tt.freeze {
					if err := g.Freeze(within(t, killWait)); err != nil {
						t.Fatal(err)
					}
				}
				kill, began := g.Kill, time.Now()
				if way == "freeze" {
					kill = g.KillByFreezing
				}
				if err := kill(within(t, killWait)); err != nil {
					t.Fatalf("Kill: %v", err)
				}
				t.Logf("%v", time.Since(began))
				if populated, err := g.Populated(); populated || err != nil {
					t.Errorf("Populated after Kill = %v, %v", populated, err)
				}
				if pids, err := g.Processes(); len(living(pids)) > 0 || err != nil {
					t.Errorf("Processes after Kill = %v, %v", pids, err)
				}
			})
		}
	}
}

// waitFull waits until the group lives and, with a limit, is nearly full. The kernel has no event for "nearly full".
func waitFull(t *testing.T, g *cgroup.Group, pids int) {
	t.Helper()
	if populated, err := g.Populated(); !populated || err != nil {
		t.Fatalf("Populated before Kill = %v, %v", populated, err)
	}
	for range 2000 {
		u, err := g.Usage()
		if err != nil {
			t.Fatal(err)
		}
		if u.PIDs >= pids*3/4 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("the bomb never filled the group")
}

// living leaves out zombies, which wait for their parent in another group.
func living(pids []int) []int {
	return slices.DeleteFunc(pids, func(pid int) bool { return syscall.Kill(pid, 0) != nil || zombie(pid) })
}

func TestKillIsFinal(t *testing.T) {
	h, installation := host(t)
	g := group(t, h, installation, dayfly.Limits{})
	start(t, g, "echo ready; exec sleep 600")
	if err := g.Kill(within(t, killWait)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/true")
	if err := g.StartCmd(cmd); !errors.Is(err, syscall.EAGAIN) {
		if err == nil {
			_ = cmd.Wait()
		}
		t.Errorf("StartCmd after Kill = %v, want EAGAIN", err)
	}
}

func TestSubgroups(t *testing.T) {
	h, installation := host(t)
	g := group(t, h, installation, dayfly.Limits{})
	if err := g.Delegate(12345, 12346); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
		info, err := os.Stat(filepath.Join(g.Paths().V2, f))
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 12345 || st.Gid != 12346 {
			t.Errorf("owner of %q = %d:%d", f, st.Uid, st.Gid)
		}
	}
	deep := filepath.Join(g.Paths().V2, "a", "b", "c")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := start(t, g, "echo $$ > "+deep+"/cgroup.procs; echo ready; sleep 600")
	if err := os.WriteFile(filepath.Join(deep, "cgroup.freeze"), []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	if pids, err := g.Processes(); err != nil || !slices.Contains(pids, cmd.Process.Pid) {
		t.Errorf("Processes = %v, %v; want %d among them", pids, err, cmd.Process.Pid)
	}
	if populated, err := g.Populated(); !populated || err != nil {
		t.Errorf("Populated = %v, %v", populated, err)
	}
	if err := g.Remove(); !errors.Is(err, cgroup.ErrBusy) {
		t.Errorf("Remove of a populated group = %v, want ErrBusy", err)
	}
	if ids, err := h.List(installation); err != nil || !slices.Equal(ids, []string{filepath.Base(g.Paths().V2)}) {
		t.Errorf("List = %v, %v", ids, err)
	}
}

func TestMissingAndTaken(t *testing.T) {
	h, installation := host(t)
	g, err := h.Group(installation, dayfly.NewID(dayfly.PrefixSandbox))
	if err != nil {
		t.Fatal(err)
	}
	if populated, err := g.Populated(); populated || err != nil {
		t.Errorf("Populated of nothing = %v, %v", populated, err)
	}
	if err := g.Kill(within(t, killWait)); err != nil {
		t.Errorf("Kill of nothing: %v", err)
	}
	if err := g.Remove(); err != nil {
		t.Errorf("Remove of nothing: %v", err)
	}
	if _, err := g.Usage(); dayfly.ErrorCode(err) != dayfly.CodeGone {
		t.Errorf("Usage of nothing = %v, want gone", err)
	}
	if err := g.StartCmd(exec.Command("/bin/true")); err == nil {
		t.Error("StartCmd in nothing succeeded")
	}
	taken := group(t, h, installation, dayfly.Limits{})
	if err := taken.Create(dayfly.Limits{}); dayfly.ErrorCode(err) != dayfly.CodeConflict {
		t.Errorf("second Create = %v, want conflict", err)
	}
	for _, id := range []string{"", "..", "a/b", "sbshort"} {
		if _, err := h.Group(installation, id); dayfly.ErrorCode(err) != dayfly.CodeInvalid {
			t.Errorf("Group(%q) = %v, want invalid", id, err)
		}
	}
}

func TestLimitsHold(t *testing.T) {
	h, installation := host(t)
	g := group(t, h, installation, dayfly.Limits{VCPU: 1, MemoryBytes: 32 << 20, PIDs: 20})
	cmd := exec.Command("/bin/sh", "-c", `for i in $(seq 40); do sleep 600 & done; echo ready; wait`)
	if err := g.StartCmd(cmd); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the shell ends at the first fork that fails
	u, err := g.Usage()
	if err != nil || u.PIDs < 15 || u.PIDs > 20 || u.MemoryBytes <= 0 || u.CPU <= 0 {
		t.Errorf("Usage = %+v, %v", u, err)
	}
	big := group(t, h, installation, dayfly.Limits{MemoryBytes: 32 << 20})
	counter, err := big.OOMCounter()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = counter.Close() })
	if n, err := counter.Kills(); err != nil || n != 0 {
		t.Errorf("Kills before = %d, %v", n, err)
	}
	hog := exec.Command("/bin/sh", "-c", `x=a; while :; do x=$x$x; done`)
	if err := big.StartCmd(hog); err != nil {
		t.Fatal(err)
	}
	_ = hog.Wait()
	if n, err := counter.Kills(); err != nil || n != 1 {
		t.Errorf("Kills after = %d, %v; want one more", n, err)
	}
	if u, err := big.Usage(); err != nil || u.OOMKills != 1 {
		t.Errorf("Usage after running out of memory = %+v, %v; want one kill", u, err)
	}
}

func TestOpen(t *testing.T) {
	h, installation := host(t)
	g := group(t, h, installation, dayfly.Limits{})
	start(t, g, "echo ready; exec sleep 600")
	id := filepath.Base(g.Paths().V2)
	if found, err := h.Find(id); err != nil || len(found) != 1 || found[0].Paths().V2 != g.Paths().V2 {
		t.Errorf("Find = %v, %v", found, err)
	}
	again, err := cgroup.Open(g.Paths(), installation, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Kill(within(t, killWait)); err != nil {
		t.Fatal(err)
	}
	for _, v2 := range []string{"", "/", "/sys/fs/cgroup", "relative/dayfly-" + installation + "/" + id, g.Paths().V2 + "/..", "/x/../dayfly-" + installation + "/" + id} {
		if _, err := cgroup.Open(cgroup.Paths{V2: v2}, installation, id); dayfly.ErrorCode(err) != dayfly.CodeInvalid {
			t.Errorf("Open(%q) = %v, want invalid", v2, err)
		}
	}
}

func TestEvents(t *testing.T) {
	h, installation := host(t)
	e, err := cgroup.NewEvents()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	var chans []<-chan struct{}
	var groups []*cgroup.Group
	for range 20 {
		g := group(t, h, installation, dayfly.Limits{})
		start(t, g, "sleep 600 & echo ready; wait")
		empty, cancel, err := e.Watch(g.EventsPath())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cancel)
		select {
		case <-empty:
			t.Fatal("a populated group counts as empty")
		default:
		}
		groups, chans = append(groups, g), append(chans, empty)
	}
	for i, g := range groups {
		if err := g.Kill(within(t, killWait)); err != nil {
			t.Fatal(err)
		}
		select {
		case <-chans[i]:
		case <-time.After(killWait):
			t.Fatalf("group %d emptied and nobody was told", i)
		}
		if i+1 < len(chans) {
			select {
			case <-chans[i+1]:
				t.Fatal("a living group counts as empty")
			default:
			}
		}
	}
	missing, cancel, err := e.Watch("/sys/fs/cgroup/nothing/cgroup.events")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-missing
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.Watch(groups[0].EventsPath()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Watch after Close = %v", err)
	}
}

// TestNotifySeesRemoval: the kernel holds a change back that follows another one within 10 ms, and drops it when the group is
// removed meanwhile. Who watches is told all the same.
func TestNotifySeesRemoval(t *testing.T) {
	h, installation := host(t)
	e, err := cgroup.NewEvents()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for range 10 {
		g := group(t, h, installation, dayfly.Limits{})
		start(t, g, "echo ready; exec sleep 600")
		empty, cancel, err := e.Watch(g.EventsPath())
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []func(context.Context) error{g.Freeze, g.Thaw, g.Kill, func(context.Context) error { return g.Remove() }} {
			if err := step(within(t, killWait)); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-empty:
		case <-time.After(killWait):
			t.Fatal("nobody told of the removal")
		}
		cancel()
	}
}

func TestNotifySeesBirthAndDeath(t *testing.T) {
	h, installation := host(t)
	e, err := cgroup.NewEvents()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	g := group(t, h, installation, dayfly.Limits{})
	seen := make(chan bool, 8)
	cancel, err := e.Notify(g.EventsPath(), func(populated bool) { seen <- populated })
	if err != nil {
		t.Fatal(err)
	}
	defer cancel()
	want := func(populated bool) {
		t.Helper()
		select {
		case got := <-seen:
			if got != populated {
				t.Fatalf("told populated=%v, want %v", got, populated)
			}
		case <-time.After(killWait):
			t.Fatalf("nobody told populated=%v", populated)
		}
	}
	want(false)
	start(t, g, "echo ready; exec sleep 600")
	want(true)
	if err := g.Kill(within(t, killWait)); err != nil {
		t.Fatal(err)
	}
	want(false)
}

func TestKillObeysContext(t *testing.T) {
	h, installation := host(t)
	g := group(t, h, installation, dayfly.Limits{})
	start(t, g, "echo ready; exec sleep 600")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := g.Freeze(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Freeze with an ended context = %v", err)
	}
	if err := g.Thaw(within(t, killWait)); err != nil {
		t.Errorf("Thaw = %v", err)
	}
}

func BenchmarkStart(b *testing.B) {
	h, installation := host(b)
	g := group(b, h, installation, dayfly.Limits{})
	for b.Loop() {
		cmd := exec.Command("/bin/true")
		if err := g.StartCmd(cmd); err != nil {
			b.Fatal(err)
		}
		_ = cmd.Wait()
	}
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func zombie(pid int) bool {
	b, err := os.ReadFile("/proc/" + itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(b), ") Z ")
}
