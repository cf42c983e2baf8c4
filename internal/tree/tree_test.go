package tree_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/tree"
)

func TestRemoveAll(t *testing.T) {
	for _, tt := range []struct {
		name  string
		build func(t *testing.T, dir string)
	}{
		{"missing", func(t *testing.T, dir string) { must(t, os.Remove(dir)) }},
		{"empty", func(t *testing.T, dir string) {}},
		{"wide", func(t *testing.T, dir string) {
			for i := range 5000 {
				must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
			}
		}},
		{"bushy", bushy},
		{"deeper than a path may be long", deep},
		{"no permission bits", func(t *testing.T, dir string) {
			must(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700))
			must(t, os.Chmod(filepath.Join(dir, "a"), 0))
		}},
		{"links out of the tree", func(t *testing.T, dir string) {
			must(t, os.Symlink("/", filepath.Join(dir, "root")))
			must(t, os.Symlink(filepath.Dir(dir), filepath.Join(dir, ".lifted-0")))
		}},
		{"names of lifted directories taken", func(t *testing.T, dir string) {
			for i := range 3 {
				must(t, os.MkdirAll(filepath.Join(dir, fmt.Sprintf(".lifted-%d", i), "x", fmt.Sprintf(".lifted-%d", i), "y"), 0o700))
			}
			must(t, os.WriteFile(filepath.Join(dir, ".lifted-4"), nil, 0o600))
			must(t, os.MkdirAll(filepath.Join(dir, "z", "y", "x"), 0o700))
		}},
		{"immutable and append-only", immutable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "tree")
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.WriteFile(filepath.Join(parent, "neighbour"), nil, 0o600))
			tt.build(t, dir)
			must(t, tree.RemoveAll(t.Context(), dir))
			if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("after RemoveAll: %v", err)
			}
			if _, err := os.Lstat(filepath.Join(parent, "neighbour")); err != nil {
				t.Errorf("the neighbour went too: %v", err)
			}
		})
	}
}

func TestRemoveAllStaysOutOfMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	parent := t.TempDir()
	other, dir := filepath.Join(parent, "other"), filepath.Join(parent, "tree")
	must(t, os.MkdirAll(filepath.Join(other, "kept"), 0o700))
	must(t, os.MkdirAll(filepath.Join(dir, "a", "mount"), 0o700))
	must(t, unix.Mount(other, filepath.Join(dir, "a", "mount"), "", unix.MS_BIND, ""))
	mounted := true
	t.Cleanup(func() {
		if mounted {
			_ = unix.Unmount(filepath.Join(dir, "a", "mount"), unix.MNT_DETACH)
			_ = unix.Unmount(filepath.Join(dir, ".lifted-0", "mount"), unix.MNT_DETACH)
		}
	})
	if err := tree.RemoveAll(t.Context(), dir); err == nil {
		t.Error("RemoveAll says nothing of the mount inside")
	}
	if _, err := os.Lstat(filepath.Join(other, "kept")); err != nil {
		t.Errorf("what the mount shows was removed: %v", err)
	}
	must(t, unix.Unmount(filepath.Join(dir, ".lifted-0", "mount"), unix.MNT_DETACH))
	mounted = false
	must(t, tree.RemoveAll(t.Context(), dir))
}

func TestRemoveAllObeysContext(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	must(t, os.MkdirAll(filepath.Join(dir, "a"), 0o700))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tree.RemoveAll(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want context.Canceled", err)
	}
}

func bushy(t *testing.T, dir string) {
	for i := range 12 {
		for j := range 12 {
			p := filepath.Join(dir, fmt.Sprint(i), fmt.Sprint(j), "c")
			must(t, os.MkdirAll(p, 0o700))
			must(t, os.WriteFile(filepath.Join(p, "f"), nil, 0o600))
		}
	}
}

// deep nests directories until neither a path nor a descriptor for each level could reach the end.
func deep(t *testing.T, dir string) {
	const levels = 30_000
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range levels {
		must(t, unix.Mkdirat(fd, "d", 0o700))
		next, err := unix.Openat(fd, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		must(t, unix.Close(fd))
		fd = next
	}
	must(t, unix.Close(fd))
}

func immutable(t *testing.T, dir string) {
	if os.Geteuid() != 0 {
		t.Skip("immutable marks need root")
	}
	sub := filepath.Join(dir, "sub")
	must(t, os.Mkdir(sub, 0o700))
	must(t, os.WriteFile(filepath.Join(sub, "f"), nil, 0o600))
	for _, p := range []string{filepath.Join(sub, "f"), sub} {
		f, err := os.Open(p)
		must(t, err)
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, unix.STATX_ATTR_IMMUTABLE)
		must(t, f.Close())
		if err != nil {
			t.Skipf("this file system has no immutable mark: %v", err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
