package linux_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
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
	"dayfly.dev/dayfly/internal/agentwire"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/driver/drivertest"
	"dayfly.dev/dayfly/internal/driver/linux"
)

// world is one installation of the driver for tests, with a root file system that holds nothing but the inside program.
type world struct {
	installation string
	agent        string
	dir          string
	lower        string
	user         dayfly.User
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

func newWorld(t testing.TB) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	w := &world{
		installation: dayfly.NewInstallation(),
		agent:        drivertest.Build(t, drivertest.AgentPackage),
		dir:          scratch(t),
		user:         dayfly.User{Name: "user", UID: 1000, GID: 1000, Home: "/home/user"},
	}
	w.lower = filepath.Join(w.dir, "lower")
	w.fill(t, drivertest.Build(t, drivertest.InsidePackage))
	t.Cleanup(func() {
		host, err := cgroup.Detect("/")
		if err == nil {
			err = host.RemoveInstallation(w.installation)
		}
		if err != nil {
			t.Errorf("remove the test's cgroups: %v", err)
		}
	})
	return w
}

// scratch makes the directory of a world. In memory, if the host's kernel can map ids there (6.3 and newer): on a disk a run
// of tests measures the disk.
func scratch(t testing.TB) string {
	t.Helper()
	if !memoryMaps() {
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

// memoryMaps tells whether the kernel can idmap a tmpfs.
func memoryMaps() bool {
	var u unix.Utsname
	var major, minor int
	if err := unix.Uname(&u); err != nil {
		return false
	}
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return err == nil && (major > 6 || major == 6 && minor >= 3)
}

// fill makes the root file system.
func (w *world) fill(t testing.TB, inside string) {
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
		path := filepath.Join(w.lower, f.path)
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
	if err := os.Chown(filepath.Join(w.lower, "home/user"), 1000, 1000); err != nil {
		t.Fatal(err)
	}
}

// open makes a driver, which the test closes.
func (w *world) open(t testing.TB) *linux.Driver {
	t.Helper()
	d, err := linux.New(linux.Options{Installation: w.installation, Agent: w.agent, Scratch: w.dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// spec makes a spec with directories of its own.
func (w *world) spec(t testing.TB) dayfly.InstanceSpec {
	t.Helper()
	id := dayfly.NewID(dayfly.PrefixSandbox)
	run, disk := filepath.Join(w.dir, "run", id), filepath.Join(w.dir, "disk", id)
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
		Root:    dayfly.RootFS{Lower: []string{w.lower}, Upper: disk},
		RunDir:  run,
		User:    w.user,
		Granted: grantTest,
	}
}

func connect(ctx context.Context, conn net.Conn) (drivertest.Shell, error) {
	return agentwire.NewClient(ctx, conn)
}

// residue lists what the installation has on the host: cgroups, processes, mounts, descriptors, sockets.
func (w *world) residue(t *testing.T) []string {
	t.Helper()
	host, err := cgroup.Detect("/")
	if err != nil {
		t.Fatal(err)
	}
	ids, err := host.List(w.installation)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{fmt.Sprint("cgroups ", ids)}
	out = append(out, fmt.Sprint("probes ", probesLeft(t, host)))
	out = append(out, processes(t)...)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, w.dir) {
			out = append(out, "mount "+strings.TrimSpace(line))
		}
	}
	sockets, err := filepath.Glob(w.dir + "/run/*/sock")
	if err != nil {
		t.Fatal(err)
	}
	return append(append(out, sockets...), descriptors(t)...)
}

// probesLeft counts probes once those of other installations, which take milliseconds, have had their time.
func probesLeft(t *testing.T, host cgroup.Host) int {
	t.Helper()
	const patience, tick = 5 * time.Second, 10 * time.Millisecond
	for deadline := time.Now().Add(patience); ; <-time.After(tick) {
		probes, err := host.List("probes")
		if err != nil {
			t.Fatal(err)
		}
		if len(probes) == 0 || time.Now().After(deadline) {
			return len(probes)
		}
	}
}

// processes lists those of the tests' uid range.
func processes(t *testing.T) (out []string) {
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
				if err == nil && uid >= uint64(uidBaseFirst) && uid < uint64(uidBaseFirst)+uint64(uidBases.Load())*dayfly.IDCount {
					out = append(out, f)
				}
			}
		}
	}
	return out
}

// descriptors lists this process's own, by what they are: numbers are used again.
func descriptors(t testing.TB) []string {
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

func TestConformance(t *testing.T) {
	w := newWorld(t)
	drivertest.Run(t, drivertest.Harness{
		Open:     func(t *testing.T) dayfly.Driver { return w.open(t) },
		Spec:     func(t *testing.T) dayfly.InstanceSpec { return w.spec(t) },
		Connect:  connect,
		Inside:   "/bin/inside",
		Residue:  w.residue,
		Isolated: true,
	})
}
