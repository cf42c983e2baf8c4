package linux_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/drivertest"
)

// withTools gives a harness whose machines have a distribution's programs, read-only below everything that is their own: the
// host's, if the machines' directories are on another file system than those (a layer must not hold the one above it).
func withTools(t *testing.T) drivertest.Harness {
	t.Helper()
	w := newWorld(t)
	root := "/"
	if device(t, root) == device(t, w.dir) {
		root = w.distribution(t)
	}
	for _, program := range []string{"/bin/bash", "/usr/bin/seq", "/usr/bin/pkill"} {
		if _, err := os.Stat(filepath.Join(root, program)); err != nil {
			t.Skipf("the programs of %s, which the machines show, lack %s", root, program)
		}
	}
	w.underLinks(t, root)
	return drivertest.Harness{
		Open: func(t *testing.T) dayfly.Driver { return w.open(t) },
		Spec: func(t *testing.T) dayfly.InstanceSpec {
			spec := w.spec(t)
			spec.Root.Lower = append(spec.Root.Lower, root)
			return spec
		},
		Connect:  connect,
		Inside:   "/bin/inside",
		Residue:  w.residue,
		Isolated: true,
	}
}

// underLinks moves the world's own programs to where /bin leads in the root below: a directory above a link would hide it,
// and with it the shell.
func (w *world) underLinks(t *testing.T, root string) {
	t.Helper()
	if info, err := os.Lstat(filepath.Join(root, "bin")); err != nil {
		t.Fatal(err)
	} else if info.Mode()&os.ModeSymlink == 0 {
		return
	}
	if err := os.Mkdir(filepath.Join(w.lower, "usr"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(w.lower, "bin"), filepath.Join(w.lower, "usr/bin")); err != nil {
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

func TestCommands(t *testing.T) { drivertest.RunExec(t, withTools(t)) }

func TestFiles(t *testing.T) { drivertest.RunFiles(t, withTools(t)) }
