package agent

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestResolveOpen compares the walk with the kernel's own resolution, on a tree with links of every kind.
func TestResolveOpen(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"a/b/c", "other"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(root+"/a/file", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{
		"a/up": "..", "a/b/abs": root + "/a/file", "rel": "a/b", "chain": "rel/../file", "loop": "loop", "dangling": "nowhere/x",
		"slash": "a/", "self": "/proc/self/fd", "deep": "a/b/abs",
	} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	for _, name := range []string{
		"", ".", "..", "a", "a/", "a//b///c", "a/file", "a/file/", "a/file/x", "a/up/other", "a/b/abs", "rel", "rel/", "rel/c", "chain", "loop", "loop/x",
		"dangling", "dangling/y", "slash", "slash/b", "deep", "missing", "missing/x", root, root + "/a/b", "/", "//", "/proc/self/status", "self",
		"a/./b/../b", "/proc/mounts", "/proc/self/exe", "/proc/self/cwd/x", "self/0",
	} {
		for _, flags := range []int{unix.O_PATH, unix.O_PATH | unix.O_NOFOLLOW, unix.O_RDONLY, unix.O_PATH | unix.O_DIRECTORY} {
			got, gotErr := resolveOpen(dir, name, flags, 0)
			want, wantErr := openHow(dir, name, flags, 0, unix.RESOLVE_NO_MAGICLINKS)
			if gotErr != wantErr {
				t.Errorf("%q, flags %#x: %v, the kernel says %v", name, flags, gotErr, wantErr)
			}
			if gotErr == nil && wantErr == nil && !same(t, got, want) {
				t.Errorf("%q, flags %#x: another file", name, flags)
			}
			for _, fd := range []int{got, want} {
				if fd >= 0 {
					_ = unix.Close(fd)
				}
			}
		}
	}
}

func same(t *testing.T, a, b int) bool {
	t.Helper()
	var sa, sb unix.Stat_t
	if err := unix.Fstat(a, &sa); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fstat(b, &sb); err != nil {
		t.Fatal(err)
	}
	return sa.Dev == sb.Dev && sa.Ino == sb.Ino
}

// TestResolveFollowsNoMagicLink: a descriptor that only /proc shows is not reached, whatever its link says.
func TestResolveFollowsNoMagicLink(t *testing.T) {
	secret, err := os.CreateTemp(t.TempDir(), "secret")
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	if err := os.Remove(secret.Name()); err != nil {
		t.Fatal(err)
	}
	name := fdPath(secret)
	if fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		t.Fatalf("the control: %v", err)
	} else {
		_ = unix.Close(fd)
	}
	if fd, err := resolveOpen(unix.AT_FDCWD, name, unix.O_RDONLY, 0); err != unix.ELOOP {
		t.Errorf("opened %d, %v", fd, err)
	}
}

func TestResolveMakes(t *testing.T) {
	dir := t.TempDir()
	fd, err := resolveOpen(unix.AT_FDCWD, dir+"/new", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	if _, err := os.Lstat(dir + "/new"); err != nil {
		t.Error(err)
	}
}
