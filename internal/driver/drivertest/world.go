package drivertest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/driver/trial"
)

// World is one installation of the driver for tests, with a root file system that holds nothing but the inside program.
type World struct {
	Installation string
	Agent        string // path of the agent's binary
	Dir          string // of everything of this world on disk
	Lower        string // the root file system
	User         dayfly.User
}

// uidBases deals out host ids far from those that servers use, and from those of another run at the same time.
var (
	uidBases     atomic.Uint32
	uidBaseFirst = 0x40000000 + rand.Uint32N(0x1000)*(dayfly.IDCount<<2)
)

const (
	memoryTest = 512 << 20
	grantTest  = time.Minute
)

// NewWorld makes a world, which ends with the test. It needs root.
func NewWorld(t testing.TB) *World {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	w := &World{
		Installation: dayfly.NewInstallation(),
		Agent:        Build(t, AgentPackage),
		Dir:          scratch(t),
		User:         dayfly.User{Name: "user", UID: 1000, GID: 1000, Home: "/home/user"},
	}
	w.Lower = filepath.Join(w.Dir, "lower")
	w.fill(t, Build(t, InsidePackage))
	t.Cleanup(func() {
		host, err := cgroup.Detect("/")
		if err == nil {
			err = host.RemoveInstallation(w.Installation)
		}
		if err != nil {
			t.Errorf("remove the test's cgroups: %v", err)
		}
		probesEnd(t, host)
	})
	return w
}

// Other processes may probe at any time, so a trial machine that is there is somebody's rest only when it stays.
const (
	probeTries = 400
	probeWait  = 50 * time.Millisecond // the kernel tells nobody of a control group's removal
)

// probesEnd fails when a trial machine that is there now stays.
func probesEnd(t testing.TB, host cgroup.Host) {
	t.Helper()
	left, err := host.List(trial.Installation)
	for range probeTries {
		if err != nil || len(left) == 0 {
			break
		}
		time.Sleep(probeWait)
		var now []string
		now, err = host.List(trial.Installation)
		left = slices.DeleteFunc(left, func(id string) bool { return !slices.Contains(now, id) })
	}
	if err != nil || len(left) > 0 {
		t.Errorf("trial machines that stay: %v, %v", left, err)
	}
}

// scratch makes the directory of a world. In memory, if the host's kernel can map ids there (6.3 and newer): on a disk a run
// of tests measures the disk.
func scratch(t testing.TB) string {
	t.Helper()
	if !MemoryMaps() {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp("/dev/shm", "dayfly-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// MemoryMaps tells whether the kernel can idmap a tmpfs.
func MemoryMaps() bool {
	var u unix.Utsname
	var major, minor int
	if err := unix.Uname(&u); err != nil {
		return false
	}
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return err == nil && (major > 6 || major == 6 && minor >= 3)
}

// fill makes the root file system.
func (w *World) fill(t testing.TB, inside string) {
	t.Helper()
	program, err := os.ReadFile(inside)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		path    string
		content []byte
		mode    os.FileMode
	}{
		{"bin/inside", program, 0o755},
		{"bin/inside-setuid", program, 0o755 | os.ModeSetuid},
		{"etc/passwd", []byte("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"), 0o644},
		{"etc/group", []byte("root:x:0:\nuser:x:1000:\n"), 0o644},
		{"home/user/.keep", nil, 0o644},
		{"root/.keep", nil, 0o644},
		{"inside-marker", nil, 0o644},
	} {
		path := filepath.Join(w.Lower, f.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, f.mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Join(w.Lower, "home/user"), 1000, 1000); err != nil {
		t.Fatal(err)
	}
}

// Spec makes a spec with directories of its own.
func (w *World) Spec(t testing.TB) dayfly.InstanceSpec {
	t.Helper()
	id := dayfly.NewID(dayfly.PrefixSandbox)
	run, disk := filepath.Join(w.Dir, "run", id), filepath.Join(w.Dir, "disk", id)
	for _, dir := range []string{run + "/in", disk + "/u", disk + "/w"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	grant := strconv.Itoa(int(grantTest.Seconds()))
	if err := os.WriteFile(run+"/in/grant", []byte(grant), 0o644); err != nil {
		t.Fatal(err)
	}
	return dayfly.InstanceSpec{
		ID:      id,
		Limits:  dayfly.Limits{VCPU: 2, MemoryBytes: memoryTest},
		UIDBase: uidBaseFirst + (uidBases.Add(1)-1)*dayfly.IDCount,
		Root:    dayfly.RootFS{Lower: []string{w.Lower}, Upper: disk},
		RunDir:  run,
		User:    w.User,
		Granted: grantTest,
	}
}

// Residue lists what the installation has on the host: cgroups, processes, mounts, descriptors, sockets.
func (w *World) Residue(t *testing.T) []string {
	t.Helper()
	host, err := cgroup.Detect("/")
	if err != nil {
		t.Fatal(err)
	}
	ids, err := host.List(w.Installation)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{fmt.Sprint("cgroups ", ids)}
	out = append(out, w.processes(t)...)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, w.Dir) {
			out = append(out, "mount "+strings.TrimSpace(line))
		}
	}
	sockets, err := filepath.Glob(w.Dir + "/run/*/sock")
	if err != nil {
		t.Fatal(err)
	}
	return append(append(out, sockets...), Descriptors(t)...)
}

// processes lists those of the tests' uid range that are in no other installation's control group: other tests may use the
// same ids at the same time.
func (w *World) processes(t *testing.T) (out []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, _ := os.ReadFile(f) // it may have ended
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, "Uid:"); ok {
				uid, err := strconv.ParseUint(strings.Fields(rest)[0], 10, 32)
				if err == nil && uid >= uint64(uidBaseFirst) && uid < uint64(uidBaseFirst)+uint64(uidBases.Load())*dayfly.IDCount && !w.others(f) {
					out = append(out, f)
				}
			}
		}
	}
	return out
}

// others tells whether a process, named by its status file, is in another installation's control group.
func (w *World) others(statusFile string) bool {
	pid, err := strconv.Atoi(filepath.Base(filepath.Dir(statusFile)))
	if err != nil {
		return false
	}
	group := groupOf(pid)
	return strings.Contains(group, "/dayfly-") && !strings.Contains(group, "/dayfly-"+w.Installation+"/")
}

// Descriptors lists this process's own, by what they are: numbers are used again.
func Descriptors(t testing.TB) []string {
	t.Helper()
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, e := range dir {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil {
			continue // that of the directory itself
		}
		kind, _, _ := strings.Cut(target, "[") // socket:[123], pipe:[123]
		count[kind]++
	}
	var out []string
	for kind, n := range count {
		out = append(out, fmt.Sprintf("descriptors %s %d", kind, n))
	}
	slices.Sort(out)
	return out
}
