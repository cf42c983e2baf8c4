package drivertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Tools gives machines a distribution's programs, read-only below everything that is their own: the host's, if the machines'
// directories are on another file system than those (a layer must not hold the one above it). It returns what makes their specs.
func (w *World) Tools(t *testing.T) func(t *testing.T) dayfly.InstanceSpec {
	t.Helper()
	root := "/"
	if device(t, root) == device(t, w.Dir) {
		root = w.Distribution(t)
	}
	for _, program := range []string{"/bin/bash", "/usr/bin/seq", "/usr/bin/pkill"} {
		if _, err := os.Stat(filepath.Join(root, program)); err != nil {
			t.Skipf("the programs of %s, which the machines show, lack %s", root, program)
		}
	}
	w.underLinks(t, root)
	return func(t *testing.T) dayfly.InstanceSpec {
		spec := w.Spec(t)
		spec.Root.Lower = append(spec.Root.Lower, root)
		return spec
	}
}

// underLinks moves the world's own programs to where /bin leads in the root below: a directory above a link would hide it,
// and with it the shell.
func (w *World) underLinks(t *testing.T, root string) {
	t.Helper()
	if info, err := os.Lstat(filepath.Join(root, "bin")); err != nil {
		t.Fatal(err)
	} else if info.Mode()&os.ModeSymlink == 0 {
		return
	}
	if err := os.Mkdir(filepath.Join(w.Lower, "usr"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(w.Lower, "bin"), filepath.Join(w.Lower, "usr/bin")); err != nil {
		t.Fatal(err)
	}
}

func device(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Dev
}

// Distribution gives the root file system of a whole distribution: DAYFLY_TEST_IMAGE is an unpacked one or a tar.zst.
func (w *World) Distribution(t *testing.T) string {
	t.Helper()
	image := os.Getenv("DAYFLY_TEST_IMAGE")
	if image == "" {
		t.Skip("DAYFLY_TEST_IMAGE names no image")
	}
	if info, err := os.Stat(image); err != nil {
		t.Fatal(err)
	} else if info.IsDir() {
		return image
	}
	dir := filepath.Join(w.Dir, "image")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("tar", "-C", dir, "-I", "zstd", "-xpf", image).CombinedOutput(); err != nil {
		t.Skipf("cannot unpack %s: %v: %s", image, err, out)
	}
	return dir
}
