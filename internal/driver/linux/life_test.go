package linux_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/driver/drivertest"
	"dayfly.dev/dayfly/internal/driver/linux"
)

const manyStarts = 100

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
	before, threads := drivertest.Descriptors(t), len(tasks(t))
	for range manyStarts {
		life()
	}
	if after := drivertest.Descriptors(t); !slices.Equal(before, after) {
		t.Errorf("after %d starts:\n%s\nbefore:\n%s", manyStarts, strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
	if after := len(tasks(t)); after > threads+8 {
		t.Errorf("threads grew from %d to %d", threads, after)
	}
}

func tasks(t *testing.T) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestFailedBootNamesItsStep(t *testing.T) {
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
		{"agent cannot serve", "start agent", func(s *dayfly.InstanceSpec) { s.User.Home = "relative" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := w.Residue(t)
			spec := w.Spec(t)
			tt.change(&spec)
			_, err := d.Start(t.Context(), spec)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Start = %v, want %q in it", err, tt.want)
			}
			if after := w.Residue(t); !slices.Equal(before, after) {
				t.Errorf("left behind: %v, before %v", after, before)
			}
		})
	}
}

// TestNoRoomForTheOverlay: a disk that has no room left, at any moment of a start, is told as a lack of room. The kernel mounts an
// overlay that finds none for its work directory read-only, without an error.
func TestNoRoomForTheOverlay(t *testing.T) {
	if !drivertest.MemoryMaps() {
		t.Skip("needs a kernel that can idmap a tmpfs (6.3)")
	}
	w := drivertest.NewWorld(t)
	d := open(t, w)
	const inodesMax = 40
	started, refused := false, 0
	for inodes := 0; inodes <= inodesMax && !started; inodes++ {
		spec := w.Spec(t)
		spec.Files = map[string][]byte{"/etc/hosts": []byte("127.0.0.1 localhost\n"), "/etc/resolv.conf": nil}
		disk := smallDisk(t, spec.Root.Upper, inodes)
		inst, err := d.Start(t.Context(), spec)
		switch {
		case err == nil:
			started = true
			if err := inst.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		case errors.Is(err, unix.ENOSPC):
			refused++
		default:
			t.Errorf("room for %d files: Start = %v, want ENOSPC", inodes, err)
		}
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		if ids, err := d.List(t.Context()); err != nil || len(ids) != 0 {
			t.Errorf("left behind: %v, %v", ids, err)
		}
	}
	if !started || refused == 0 {
		t.Errorf("%d starts were refused, and with enough room: %v", refused, started)
	}
}

// smallDisk mounts a file system on dir that has room for so many more files beside a disk's two directories.
func smallDisk(t *testing.T, dir string, inodes int) string {
	t.Helper()
	const own = 3 // the root, and the two directories
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=1m,mode=755,nr_inodes=%d", own+inodes)); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"u", "w"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A node that dies between the clone and the id maps leaves no child that waits for them: it would hold a copy of every mount
// of the host, so that no other installation could unmount its pool.
func TestHalfBornMachineHearsThatTheNodeDied(t *testing.T) {
	w := drivertest.NewWorld(t)
	d := open(t, w)
	host, err := cgroup.Detect("/")
	if err != nil {
		t.Fatal(err)
	}
	spec := w.Spec(t)
	group, err := host.Group(w.Installation, spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := group.Create(spec.Limits); err != nil {
		t.Fatal(err)
	}
	pid, free, err := d.SpawnAndHangUp(group, spec)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const wait = 10 * time.Second
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(wait.Milliseconds()))
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(wait.Milliseconds()))
	}
	if err != nil || n == 0 {
		t.Errorf("the child still waits after %s (%v)", wait, err)
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if _, err := unix.Wait4(pid, nil, 0, nil); err != nil {
		t.Error(err)
	}
	free()
	if err := group.Remove(); err != nil {
		t.Error(err)
	}
}

func TestLowerDirectories(t *testing.T) {
	w := drivertest.NewWorld(t)
	for _, tt := range []struct {
		name     string
		n        int
		attached bool
	}{
		{"one", 1, false}, {"ten", 10, false}, {"forty", 40, false},
		{"one, attached", 1, true}, {"ten, attached", 10, true}, {"sixty-four, attached", 64, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := open(t, w)
			if tt.attached {
				if err := d.Attach(); err != nil {
					t.Fatal(err)
				}
			}
			before, threads := w.Residue(t), len(tasks(t))
			spec := w.Spec(t)
			for len(spec.Root.Lower) < tt.n {
				spec.Root.Lower = append([]string{t.TempDir()}, spec.Root.Lower...)
			}
			m, err := d.Start(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			shell := dialShell(t, m)
			runOnce(t, shell, []string{"/bin/inside", "true"})
			_ = shell.Close()
			if err := m.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
			if after := w.Residue(t); !slices.Equal(before, after) {
				t.Errorf("left behind: %v, before %v", after, before)
			}
			if after := len(tasks(t)); after > threads+8 {
				t.Errorf("threads grew from %d to %d", threads, after)
			}
		})
	}
}

func TestAgentThatCannotRun(t *testing.T) {
	w := drivertest.NewWorld(t)
	for _, tt := range []struct{ name, content string }{
		{"no program", "this is no program"},
		{"empty", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			agent := filepath.Join(t.TempDir(), "agent")
			if err := os.WriteFile(agent, []byte(tt.content), 0o755); err != nil {
				t.Fatal(err)
			}
			d, err := linux.New(linux.Options{Installation: w.Installation, Agent: agent, Scratch: w.Dir})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			before := w.Residue(t)
			if _, err := d.Start(t.Context(), w.Spec(t)); err == nil || !strings.Contains(err.Error(), "execute the agent") {
				t.Errorf("Start = %v, want the failing step", err)
			}
			if c := d.Probe(t.Context()); c.Works || len(c.Reasons) == 0 {
				t.Errorf("Probe = %+v, want a reason", c)
			}
			if after := w.Residue(t); !slices.Equal(before, after) {
				t.Errorf("left behind: %v, before %v", after, before)
			}
		})
	}
}

func TestDriverWithoutAgent(t *testing.T) {
	d, err := linux.New(linux.Options{Installation: dayfly.NewInstallation(), Agent: "/missing/agent"})
	if err == nil {
		_ = d.Close()
		t.Error("a named agent that is missing was accepted")
	}
	if _, err := linux.New(linux.Options{Installation: "../x"}); err == nil {
		t.Error("an installation with a path was accepted")
	}
}

// TestBaseImage runs what only a whole distribution has.
func TestBaseImage(t *testing.T) {
	w := drivertest.NewWorld(t)
	w.Lower = w.Distribution(t)
	d := open(t, w)
	inst, err := d.Start(t.Context(), w.Spec(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := inst.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	s := dialShell(t, inst)
	defer s.Close()
	for _, tt := range []struct{ command, want string }{
		{"id -un", "user"},
		{"sudo id -u", "0"},
		{"sudo -u nobody id -un", "nobody"},
		{"pwd", "/home/user"},
		{"python3 -c 'print(6*7)'", "42"},
		{"python3 -c 'import multiprocessing as m; print(m.Pool(2).map(abs, [-1, 2]))'", "[1, 2]"},
		{"echo x > /dev/shm/a && cat < /dev/shm/a", "x"},
		{"git init -q r && cd r && git -c user.name=a -c user.email=b commit -q --allow-empty -m x && git log --format=%s", "x"},
		{"sudo mount -t tmpfs x /mnt; echo $?", "32"},
		{"sudo chown nobody /home/user/.bashrc && stat -c %U /home/user/.bashrc", "nobody"},
		{"sudo hostname", inst.ID()},
		{"script -qc 'tty' /dev/null | tr -d '\\r'", "/dev/pts/0"},
		{"nproc", "2"},
	} {
		t.Run(tt.command, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r, err := s.Run(ctx, dayfly.ProcessSpec{ID: dayfly.NewID(dayfly.PrefixProcess), Command: tt.command}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(string(r.Stdout.Head)); got != tt.want {
				t.Errorf("says %q (exit %d, %s), want %q", got, r.Exit.Code, r.Stderr.Head, tt.want)
			}
		})
	}
}
