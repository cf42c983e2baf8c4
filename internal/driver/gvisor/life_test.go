package gvisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agentwire"
	"dayfly.dev/dayfly/internal/driver/drivertest"
	"dayfly.dev/dayfly/internal/driver/gvisor"
)

const (
	endWait    = time.Second // for a machine to end after a part of it was killed
	manyStarts = 20
	callWait   = time.Minute
)

// start makes a machine and destroys it when the test ends.
func start(t *testing.T, d *gvisor.Driver, spec dayfly.InstanceSpec) dayfly.Instance {
	t.Helper()
	inst, err := d.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := inst.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return inst
}

// shell dials a machine.
func shell(t *testing.T, inst dayfly.Instance) *agentwire.Client {
	t.Helper()
	conn, err := inst.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := agentwire.NewClient(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// run runs an operation of the inside program and gives its exit and output.
func run(t *testing.T, c *agentwire.Client, user string, op ...string) (dayfly.Exit, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callWait)
	defer cancel()
	r, err := c.Run(ctx, dayfly.ProcessSpec{ID: dayfly.NewID(dayfly.PrefixProcess), Argv: append([]string{"/bin/inside"}, op...), User: user}, nil)
	if err != nil {
		t.Fatalf("run %v: %v", op, err)
	}
	return r.Exit, strings.TrimSpace(string(r.Stdout.Head))
}

func firstPID(t *testing.T, inst dayfly.Instance) int {
	t.Helper()
	var st struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(inst.State(), &st); err != nil || st.PID <= 1 {
		t.Fatalf("state %s: %v", inst.State(), err)
	}
	return st.PID
}

// parts finds the processes of a machine by what they are called, "cell", "gofer", "sandbox", and "source", which those of
// commands are cloned from.
func parts(t *testing.T, inst dayfly.Instance) map[string]int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{"cell": firstPID(t, inst)}
	for _, f := range files {
		b, _ := os.ReadFile(f)
		name, _, _ := strings.Cut(string(b), "\x00")
		part, ok := strings.CutPrefix(name, "runsc-")
		if score, _ := os.ReadFile(filepath.Dir(f) + "/oom_score_adj"); name == "" && strings.TrimSpace(string(score)) == gvisor.CommandScore {
			part, ok = "source", true
		}
		group, _ := os.ReadFile(filepath.Dir(f) + "/cgroup")
		if !ok || !strings.Contains(string(group), inst.ID()) {
			continue
		}
		if out[part], err = strconv.Atoi(filepath.Base(filepath.Dir(f))); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestMachineEndsWithEachOfItsParts kills what a machine is made of on the host, one at a time.
func TestMachineEndsWithEachOfItsParts(t *testing.T) {
	w := drivertest.NewWorld(t)
	d := open(t, w)
	for _, part := range []string{"cell", "sandbox", "gofer", "source"} {
		t.Run(part, func(t *testing.T) {
			before := w.Residue(t)
			inst := start(t, d, w.Spec(t))
			pid := parts(t, inst)[part]
			if pid == 0 {
				t.Fatalf("no such process among %v", parts(t, inst))
			}
			killed := time.Now()
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			select {
			case <-inst.Done():
			case <-time.After(10 * endWait):
				t.Fatal("the machine lives on")
			}
			if after := time.Since(killed); after > endWait {
				t.Errorf("ended after %s", after)
			}
			if _, err := inst.Dial(t.Context()); dayfly.ErrorCode(err) != dayfly.CodeGone {
				t.Errorf("Dial = %v, want %s", err, dayfly.CodeGone)
			}
			if inst.(interface{ OutOfMemory() bool }).OutOfMemory() {
				t.Error("a killed machine says that it ran out of memory")
			}
			if err := inst.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
			if after := w.Residue(t); !slices.Equal(before, after) {
				t.Errorf("left behind: %v, before %v", after, before)
			}
		})
	}
}

// TestKilledWhileItStarts ends the machine's group at moments of the start.
func TestKilledWhileItStarts(t *testing.T) {
	w := drivertest.NewWorld(t)
	d := open(t, w)
	before := w.Residue(t)
	for after := time.Duration(0); after < 120*time.Millisecond; after += 15 * time.Millisecond {
		spec := w.Spec(t)
		reclaimed := make(chan error, 1)
		timer := time.AfterFunc(after, func() { reclaimed <- d.Reclaim(context.Background(), spec.ID) })
		inst, err := d.Start(t.Context(), spec)
		if !timer.Stop() {
			if rerr := <-reclaimed; rerr != nil {
				t.Errorf("Reclaim after %s: %v", after, rerr)
			}
		}
		if err == nil {
			err = inst.Destroy(t.Context())
			if err != nil {
				t.Errorf("Destroy after %s: %v", after, err)
			}
		}
		if rerr := d.Reclaim(t.Context(), spec.ID); rerr != nil {
			t.Errorf("Reclaim at the end: %v", rerr)
		}
	}
	if after := w.Residue(t); !slices.Equal(before, after) {
		t.Errorf("left behind: %v, before %v", after, before)
	}
}

// TestSocketIsNobodysInside: root inside finds neither the agent's socket nor the directory that it was made in.
func TestSocketIsNobodysInside(t *testing.T) {
	w := drivertest.NewWorld(t)
	inst := start(t, open(t, w), w.Spec(t))
	c := shell(t, inst)
	if _, got := run(t, c, "0", "ls", "/tmp"); got != "" {
		t.Errorf("/tmp holds %q", got)
	}
	if _, got := run(t, c, "0", "cat", "/proc/self/mounts"); strings.Contains(got, "/tmp") || strings.Contains(got, "sock") {
		t.Errorf("mounts: %s", got)
	}
	if exit, got := run(t, c, "0", "dial", "unix", "/tmp/.dayfly-"+inst.ID()+"/sock"); exit.Code == 0 {
		t.Errorf("the agent's socket can be dialled inside: %s", got)
	}
	if exit, _ := run(t, c, "0", "try", "umount"); exit.Code != 0 {
		t.Errorf("exit %+v", exit)
	}
	if exit, got := run(t, c, "", "write", "/tmp/mine", "x"); exit.Code != 0 {
		t.Errorf("/tmp cannot be used: %s", got)
	}
	if _, err := os.Stat(filepath.Join(w.Dir, "disk", inst.ID(), "u", "tmp", "mine")); err != nil {
		t.Errorf("what is written to /tmp is not on the machine's disk: %v", err)
	}
}

// TestDialLooksAtTheSocket puts other things in the socket's place, as a file server that has been taken over could.
func TestDialLooksAtTheSocket(t *testing.T) {
	w := drivertest.NewWorld(t)
	spec := w.Spec(t)
	inst := start(t, open(t, w), spec)
	dir := fmt.Sprintf("/proc/%d/root/sock", firstPID(t, inst))
	hostSocket := filepath.Join(t.TempDir(), "host")
	l, err := net.Listen("unix", hostSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, tt := range []struct {
		name  string
		place func(path string) error
	}{
		{"link to a socket of the host", func(p string) error { return os.Symlink(hostSocket, p) }},
		{"link to itself", func(p string) error { return os.Symlink("sock", p) }},
		{"file", func(p string) error { return os.WriteFile(p, nil, 0o666) }},
		{"pipe", func(p string) error { return unix.Mkfifo(p, 0o666) }},
		{"directory", func(p string) error { return os.Mkdir(p, 0o777) }},
		{"nothing", func(string) error { return nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := dir + "/sock"
			if err := asMachine(spec.UIDBase, func() error {
				return errors.Join(os.RemoveAll(path), tt.place(path))
			}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if conn, err := inst.Dial(ctx); err == nil {
				_ = conn.Close()
				t.Error("dialled it")
			}
		})
	}
	_ = l.(*net.UnixListener).SetDeadline(time.Unix(1, 0))
	if conn, err := l.Accept(); err == nil {
		_ = conn.Close()
		t.Error("the host's socket was dialled")
	}
}

// asMachine runs f with the machine's root as the owner of what it makes: that file system knows no other ids.
func asMachine(base uint32, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, _ = unix.SetfsgidRetGid(int(base))
	_, _ = unix.SetfsuidRetUid(int(base))
	defer func() {
		_, _ = unix.SetfsuidRetUid(0)
		_, _ = unix.SetfsgidRetGid(0)
	}()
	return f()
}

func TestFailedStartNamesItsStep(t *testing.T) {
	w := drivertest.NewWorld(t)
	d := open(t, w)
	for _, tt := range []struct {
		name, want string
		change     func(*dayfly.InstanceSpec)
	}{
		{"file without a name", "write files", func(s *dayfly.InstanceSpec) { s.Files = map[string][]byte{"/": nil} }},
		{"lower directory missing", "missing", func(s *dayfly.InstanceSpec) { s.Root.Lower = []string{"/missing"} }},
		{"no lower directory", "root file system", func(s *dayfly.InstanceSpec) { s.Root.Lower = nil }},
		{"upper directory missing", "missing", func(s *dayfly.InstanceSpec) { s.Root.Upper = "/missing" }},
		{"run directory missing", "missing", func(s *dayfly.InstanceSpec) { s.RunDir = "/missing" }},
		{"agent cannot serve", "start the machine: the default user's home", func(s *dayfly.InstanceSpec) { s.User.Home = "relative" }},
		{"ids of the host", "not for machines", func(s *dayfly.InstanceSpec) { s.UIDBase = 0 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := w.Residue(t)
			spec := w.Spec(t)
			tt.change(&spec)
			_, err := d.Start(t.Context(), spec)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Start = %v, want %q in it", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "membarrier") {
				t.Errorf("the error has a line of a log in it: %v", err)
			}
			if after := w.Residue(t); !slices.Equal(before, after) {
				t.Errorf("left behind: %v, before %v", after, before)
			}
		})
	}
}

// TestManyStarts looks for what one start leaks too little of to be seen.
func TestManyStarts(t *testing.T) {
	w := drivertest.NewWorld(t)
	d := open(t, w)
	life := func() {
		spec := w.Spec(t)
		inst, err := d.Start(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := inst.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left, err := filepath.Glob(spec.RunDir + "/*"); err != nil || len(left) != 1 {
			t.Errorf("in the run directory: %v, %v", left, err)
		}
	}
	life() // whatever is made once
	before := drivertest.Descriptors(t)
	for range manyStarts {
		life()
	}
	if after := drivertest.Descriptors(t); !slices.Equal(before, after) {
		t.Errorf("after %d starts:\n%s\nbefore:\n%s", manyStarts, strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
}

// TestMemoryTooSmallToStart: the reason is told, and nothing is left.
func TestMemoryTooSmallToStart(t *testing.T) {
	w := drivertest.NewWorld(t)
	d := open(t, w)
	before := w.Residue(t)
	d.LimitOverhead(0)
	for _, limit := range []int64{1 << 20, 2 << 20, 4 << 20, 8 << 20} { // each keeps another part from starting
		spec := w.Spec(t)
		spec.Limits.MemoryBytes = limit
		_, err := d.Start(t.Context(), spec)
		if dayfly.ErrorCode(err) != dayfly.CodeInvalid || !strings.Contains(err.Error(), "too small") {
			t.Errorf("%d MiB: Start = %v", limit>>20, err)
		}
	}
	if after := w.Residue(t); !slices.Equal(before, after) {
		t.Errorf("left behind: %v, before %v", after, before)
	}
}

// TestFilesAreTheUsers: the agent has no file system ids to take a user's rights with here, and does it with others.
func TestFilesAreTheUsers(t *testing.T) {
	w := drivertest.NewWorld(t)
	inst := start(t, open(t, w), w.Spec(t))
	c := shell(t, inst)
	for _, op := range [][]string{{"write", "/root/secret", "x"}, {"write", "/public", "x"}} {
		if exit, out := run(t, c, "0", op...); exit.Code != 0 {
			t.Fatalf("%v: %s", op, out)
		}
	}
	const rounds = 20 // on every thread that touches paths
	for range rounds {
		if _, err := c.Write(t.Context(), "/home/user/file", nil, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(t.Context(), "/root/file", nil, strings.NewReader("x")); dayfly.ErrorCode(err) != dayfly.CodeFilePermission {
			t.Fatalf("writing to root's home: %v", err)
		}
		if _, err := c.Write(t.Context(), "/public", nil, strings.NewReader("x")); dayfly.ErrorCode(err) != dayfly.CodeFilePermission {
			t.Fatalf("writing root's file: %v", err)
		}
		if exit, out := run(t, c, "0", "write", "/root/file", "x"); exit.Code != 0 {
			t.Fatalf("root cannot write after that: %s", out)
		}
	}
	if _, got := run(t, c, "0", "stat", "/home/user/file"); !strings.Contains(got, "1000:1000") {
		t.Errorf("the user's file is %s", got)
	}
	// Every thread can return, and none can be reached: real and saved ids are root's.
	for n := range 64 {
		exit, status := run(t, c, "0", "cat", "/proc/1/task/"+strconv.Itoa(n+1)+"/status")
		if exit.Code != 0 {
			continue
		}
		for line := range strings.Lines(status) {
			if f := strings.Fields(line); len(f) == 5 && (f[0] == "Uid:" || f[0] == "Gid:") && (f[1] != "0" || f[3] != "0") {
				t.Errorf("thread %d of the agent: %s", n+1, line)
			}
		}
	}
	for user, want := range map[string]string{"0": "0 0 0", "": "1000 1000 1000"} {
		if _, got := run(t, c, user, "ids"); got != want {
			t.Errorf("user %q has ids %s", user, got)
		}
	}
}

// TestTimeoutEndsEveryDescendant: a command's children are known by their marks, in their own sessions too.
func TestTimeoutEndsEveryDescendant(t *testing.T) {
	w := drivertest.NewWorld(t)
	inst := start(t, open(t, w), w.Spec(t))
	c := shell(t, inst)
	r, err := c.Run(t.Context(), dayfly.ProcessSpec{
		ID: dayfly.NewID(dayfly.PrefixProcess), Argv: []string{"/bin/inside", "stopped"}, Timeout: time.Second,
	}, nil)
	if err != nil || !r.Exit.TimedOut {
		t.Fatalf("exit %+v, %v", r.Exit, err)
	}
	_, names := run(t, c, "0", "ls", "/proc")
	left := 0
	for line := range strings.Lines(names) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if _, err := strconv.Atoi(name); err == nil {
			left++
		}
	}
	if left != 2 { // PID 1 and ls itself
		t.Errorf("%d processes are left: %s", left, names)
	}
}
