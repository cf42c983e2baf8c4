package gvisor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/drivertest"
	"dayfly.dev/dayfly/internal/driver/gvisor"
)

// probe makes a driver and gives what it says of itself. The agent is never run where the driver is unfit.
func probe(t *testing.T, o gvisor.Options) dayfly.Capability {
	t.Helper()
	d, err := gvisor.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c := d.Probe(t.Context())
	if !c.Works {
		if _, err := d.Start(t.Context(), dayfly.InstanceSpec{}); err == nil {
			t.Error("an unfit driver starts machines")
		}
		if ids, err := d.List(t.Context()); err != nil || len(ids) > 0 { // what it can tell it tells: a node without gVisor starts
			t.Errorf("List = %v, %v", ids, err)
		}
	}
	return c
}

// tmpfs mounts a file system in memory for the test.
func tmpfs(t *testing.T, flags uintptr, options string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("dayfly-test", dir, "tmpfs", flags, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func program(t *testing.T, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runsc")
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUnfitHelpersAreToldAsSuch(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		options    func(t *testing.T) gvisor.Options
	}{
		{"full disk", "no space left", func(t *testing.T) gvisor.Options { return gvisor.Options{Dir: tmpfs(t, 0, "size=1m")} }},
		{"noexec", "noexec", func(t *testing.T) gvisor.Options { return gvisor.Options{Dir: tmpfs(t, unix.MS_NOEXEC, "size=200m")} }},
		{"read-only", "read-only", func(t *testing.T) gvisor.Options { return gvisor.Options{Dir: tmpfs(t, unix.MS_RDONLY, "size=200m")} }},
		{"no directory", "no such file", func(*testing.T) gvisor.Options { return gvisor.Options{Dir: "/missing"} }},
		{"runsc missing", "does not exist", func(*testing.T) gvisor.Options { return gvisor.Options{Runsc: "/missing/runsc"} }},
		{"runsc relative", "no absolute path", func(*testing.T) gvisor.Options { return gvisor.Options{Runsc: "runsc"} }},
		{"runsc not executable", "no program", func(t *testing.T) gvisor.Options { return gvisor.Options{Runsc: program(t, "x", 0o644)} }},
		{"runsc damaged", "does not run", func(t *testing.T) gvisor.Options { return gvisor.Options{Runsc: program(t, "\x7fELF damaged", 0o755)} }},
		{"runsc that fails", "does not run", func(t *testing.T) gvisor.Options {
			return gvisor.Options{Runsc: program(t, "#!/bin/sh\nexit 3\n", 0o755)}
		}},
		{"runsc of another machine", "exec format error", func(t *testing.T) gvisor.Options {
			return gvisor.Options{Runsc: otherMachine(t)}
		}},
		{"runsc that hangs", "does not answer", func(t *testing.T) gvisor.Options {
			return gvisor.Options{Runsc: program(t, "#!/bin/sh\n/bin/sleep 1000\n", 0o755)}
		}},
		{"runsc that talks without end", "talks without end", func(t *testing.T) gvisor.Options {
			return gvisor.Options{Runsc: program(t, "#!/bin/sh\nwhile :; do echo garbage; done\n", 0o755)}
		}},
		{"runsc too old", "flag provided but not defined", func(t *testing.T) gvisor.Options {
			return gvisor.Options{Runsc: program(t, "#!/bin/sh\necho 'flag provided but not defined: -allow-suid' >&2\nexit 2\n", 0o755)}
		}},
		{"something else", "is no runsc", func(t *testing.T) gvisor.Options {
			return gvisor.Options{Runsc: program(t, "#!/bin/sh\necho hello\n", 0o755)}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := tt.options(t)
			o.Installation = dayfly.NewInstallation()
			o.Agent = func() ([]byte, error) { return []byte("an agent"), nil }
			c := probe(t, o)
			if c.Works || !strings.Contains(strings.Join(c.Reasons, "\n"), tt.want) || len(c.Install) == 0 {
				t.Errorf("Probe = %+v, want %q among the reasons, and what to do", c, tt.want)
			}
		})
	}
}

// TestDamagedHelperIsReplaced: the content is checked once for each start of the node, not only the name.
func TestDamagedHelperIsReplaced(t *testing.T) {
	w := drivertest.NewWorld(t)
	d := open(t, w)
	inst := start(t, d, w.Spec(t))
	helpers, err := filepath.Glob(w.Dir + "/dayfly-gvisor-*")
	if err != nil || len(helpers) != 1 {
		t.Fatalf("helpers: %v, %v", helpers, err)
	}
	for name, damage := range map[string]func() error{
		"a byte": func() error {
			whole, err := os.ReadFile(helpers[0])
			if err != nil {
				return err
			}
			whole[len(whole)/2] ^= 1
			if err := os.Remove(helpers[0]); err != nil { // a file that runs cannot be written
				return err
			}
			return os.WriteFile(helpers[0], whole, 0o755)
		},
		"cut": func() error {
			if err := os.Remove(helpers[0]); err != nil {
				return err
			}
			return os.WriteFile(helpers[0], []byte("\x7fELF"), 0o755)
		},
		"gone": func() error { return os.Remove(helpers[0]) },
		"a link": func() error {
			if err := os.Rename(helpers[0], helpers[0]+".moved"); err != nil {
				return err
			}
			return os.Symlink(helpers[0]+".moved", helpers[0])
		},
		"mode": func() error { return os.Chmod(helpers[0], 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			again := open(t, w)
			m := start(t, again, w.Spec(t))
			if exit, out := run(t, shell(t, m), "", "true"); exit.Code != 0 {
				t.Errorf("exit %+v: %s", exit, out)
			}
			if info, err := os.Lstat(helpers[0]); err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o755 {
				t.Errorf("the helper is %v, %v", info, err)
			}
		})
	}
	if exit, out := run(t, shell(t, inst), "", "true"); exit.Code != 0 { // the old file's machine goes on
		t.Errorf("exit %+v: %s", exit, out)
	}
}
