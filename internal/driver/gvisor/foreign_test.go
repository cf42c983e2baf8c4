package gvisor_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/drivertest"
	"dayfly.dev/dayfly/internal/driver/gvisor"
)

// envRunsc names runscs of releases to be tried too, separated by colons.
const envRunsc = "DAYFLY_TEST_RUNSC"

const (
	fakePackage = "dayfly.dev/dayfly/internal/driver/gvisor/testdata/runsc"
	fakeWait    = 3 * time.Second // for a machine whose runsc hangs
	elfMachine  = 18              // where an ELF file says what machine it is for
	elfNone     = 0xfe
)

// otherMachine is a program for a machine that this is not.
func otherMachine(t *testing.T) string {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	self[elfMachine], self[elfMachine+1] = elfNone, elfNone
	return program(t, string(self), 0o755)
}

// fakeRunsc builds a program that says it is a runsc, and then does something else.
func fakeRunsc(t *testing.T, mode string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "runsc")
	out, err := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -X main.mode="+mode, "-o", file, fakePackage).CombinedOutput()
	if err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return file
}

// foreign gives a driver of a foreign runsc, which the caller closes.
func foreign(t *testing.T, w *drivertest.World, runsc string) *gvisor.Driver {
	t.Helper()
	agent, err := os.ReadFile(w.Agent)
	if err != nil {
		t.Fatal(err)
	}
	d, err := gvisor.New(gvisor.Options{
		Installation: w.Installation, Dir: "/missing", Agent: func() ([]byte, error) { return agent, nil }, Scratch: w.Dir, Runsc: runsc,
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// closed closes a driver and checks that the host is as it was.
func closed(t *testing.T, w *drivertest.World, d *gvisor.Driver, before []string) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if after := w.Residue(t); !slices.Equal(before, after) {
		t.Errorf("left behind: %v, before %v", after, before)
	}
}

// ownRunsc is the built-in gVisor as an operator might have it: a file of its own, under another name.
func ownRunsc(t *testing.T, w *drivertest.World) string {
	t.Helper()
	if c := open(t, w).Probe(t.Context()); !c.Works {
		t.Fatalf("Probe = %+v", c)
	}
	helpers, err := filepath.Glob(w.Dir + "/dayfly-gvisor-*")
	if err != nil || len(helpers) != 1 {
		t.Fatalf("helpers: %v, %v", helpers, err)
	}
	path := filepath.Join(w.Dir, "runsc")
	if err := copyFile(path, helpers[0]); err != nil {
		t.Fatal(err)
	}
	return path
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// TestForeignRunsc: another runsc is used, shown, and its machines live like others.
func TestForeignRunsc(t *testing.T) {
	w := drivertest.NewWorld(t)
	runscs := map[string]string{"built-in as a file": ownRunsc(t, w)}
	for _, path := range filepath.SplitList(os.Getenv(envRunsc)) {
		runscs[path] = path
	}
	for name, path := range runscs {
		t.Run(name, func(t *testing.T) { liveOn(t, w, path) })
	}
	if len(runscs) == 1 {
		t.Run("of a release", func(t *testing.T) { t.Skipf("%s names none", envRunsc) })
	}
}

// liveOn has a machine of a foreign runsc live a short life.
func liveOn(t *testing.T, w *drivertest.World, path string) {
	before := w.Residue(t)
	d := foreign(t, w, path)
	defer closed(t, w, d, before)
	c := d.Probe(t.Context())
	if told := strings.Join(c.Reasons, "\n"); !c.Works || !strings.Contains(told, path+", version ") {
		t.Fatalf("Probe = %+v: want it to work and to name %s", c, path)
	}
	inst := start(t, d, w.Spec(t))
	shell := shell(t, inst)
	defer shell.Close()
	for path, code := range map[string]int{"/proc/version": 0, "/missing": 1} {
		if exit, out := run(t, shell, "", "cat", path); exit.Code != code {
			t.Errorf("%s: exit %+v: %s", path, exit, out)
		}
	}
	pauser := inst.(dayfly.Pauser)
	if err := errors.Join(pauser.Pause(t.Context()), pauser.Resume(t.Context())); err != nil {
		t.Error(err)
	}
	if exit, out := run(t, shell, "0", "ids"); exit.Code != 0 || out != "0 0 0" {
		t.Errorf("after a pause: exit %+v: %s", exit, out)
	}
	if err := inst.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestForeignRunscThatFails: one that starts no machine is told as such, and nothing is left of what it began.
func TestForeignRunscThatFails(t *testing.T) {
	w := drivertest.NewWorld(t)
	for _, tt := range []struct{ mode, want string }{
		{"hangs", context.DeadlineExceeded.Error()},
		{"talks", "garbage"},
		{"complains", "cannot do this"},
		{"dies", "exit status 3"},
		{"leaves", "ended while it started"},
	} {
		t.Run(tt.mode, func(t *testing.T) {
			before := w.Residue(t)
			d := foreign(t, w, fakeRunsc(t, tt.mode))
			defer closed(t, w, d, before)
			ctx, cancel := context.WithTimeout(t.Context(), fakeWait)
			defer cancel()
			c := d.Probe(ctx)
			if told := strings.Join(c.Reasons, "\n"); c.Works || !strings.Contains(told, tt.want) || !strings.Contains(told, "fake-"+tt.mode) || len(c.Install) == 0 {
				t.Errorf("Probe = %+v, want %q, which runsc it is, and what to do", c, tt.want)
			}
			ctx, cancel = context.WithTimeout(t.Context(), fakeWait)
			defer cancel()
			if _, err := d.Start(ctx, w.Spec(t)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Start = %v, want %q", err, tt.want)
			}
		})
	}
}

// TestForeignRunscIsReplaced: an operator puts other files in the place of one that is in use.
func TestForeignRunscIsReplaced(t *testing.T) {
	w := drivertest.NewWorld(t)
	path := ownRunsc(t, w)
	d := foreign(t, w, path)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	old := start(t, d, w.Spec(t))
	if err := os.Rename(path, path+".good"); err != nil {
		t.Fatal(err)
	}
	for name, place := range map[string]func() error{
		"missing":    func() error { return nil },
		"cut":        func() error { return errors.Join(copyFile(path, path+".good"), os.Truncate(path, 1<<20)) },
		"another":    func() error { return copyFile(path, "/proc/self/exe") },
		"plain file": func() error { return os.WriteFile(path, []byte("#!/bin/sh\n"), 0o644) },
		"directory":  func() error { return os.Mkdir(path, 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			before := w.Residue(t)
			if err := place(); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Start(t.Context(), w.Spec(t)); err == nil {
				t.Error("it starts machines")
			} else {
				t.Log(err)
			}
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if after := w.Residue(t); !slices.Equal(before, after) {
				t.Errorf("left behind: %v, before %v", after, before)
			}
		})
	}
	if err := os.Rename(path+".good", path); err != nil {
		t.Fatal(err)
	}
	for name, inst := range map[string]dayfly.Instance{"the old machine": old, "a new one": start(t, d, w.Spec(t))} {
		if exit, out := run(t, shell(t, inst), "", "true"); exit.Code != 0 {
			t.Errorf("%s: exit %+v: %s", name, exit, out)
		}
	}
}
