package faults_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/test/host"
)

// crash kills the server, which leaves its warden and its sandboxes.
func crash(t *testing.T, s *host.Server) {
	t.Helper()
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
}

// alive fails the test unless the sandbox lives and answers.
func (w *world) alive(t *testing.T, b *box) {
	t.Helper()
	if lives, err := w.s.Lives(b.id); err != nil || !lives {
		t.Fatalf("%s does not live (%v)\n\t%s", b.id, err, b.history())
	}
	a := w.do("POST", "/v1/sandboxes/"+b.id+"/exec", "", map[string]any{"command": "echo ok"})
	if a.status != 200 || !bytes.Contains(a.body, []byte(`"ok\n"`)) {
		t.Fatalf("exec in %s: %s", b.id, a)
	}
}

// refused starts the server, which must say why it does not, with all words in the text.
func refused(t *testing.T, s *host.Server, words ...string) {
	t.Helper()
	err := s.Up(t.Context())
	if err == nil {
		t.Fatal("it started")
	}
	t.Logf("refused: %v", err)
	for _, word := range append(words, "hint:") {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the reason does not say %q: %v", word, err)
		}
	}
}

func (w *world) agrees(t *testing.T) {
	t.Helper()
	if err := w.agree(); err != nil {
		t.Error(err)
	}
}

func TestALeaseDirectoryFullOfGarbageFreesNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	good, hurt, gone := w.one(t, 14), w.one(t, 14), w.one(t, 14)
	dir := filepath.Join(w.s.Data, "leases")
	id := func(i int) string { return fmt.Sprintf("sb%020d", i) }
	for i := range 300 {
		var err error
		path := filepath.Join(dir, id(i))
		switch i % 6 {
		case 0:
			err = os.WriteFile(path, nil, 0o600)
		case 1:
			err = os.WriteFile(path, bytes.Repeat([]byte{0xff}, 1<<16), 0o600)
		case 2:
			err = os.Symlink("/dev/zero", path)
		case 3:
			err = unix.Mkfifo(path, 0o600)
		case 4:
			err = os.WriteFile(path+".end", []byte(`{"boot_id":"x"}`), 0o600)
		case 5:
			err = os.WriteFile(filepath.Join(dir, fmt.Sprint("README-", i)), []byte("mine"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, hurt.id), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, gone.id)); err != nil {
		t.Fatal(err)
	}
	w.alive(t, good)
	w.alive(t, hurt)
	crash(t, w.s)
	for _, b := range []*box{good, hurt, gone} {
		err := within(boxMax, func() error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.death.IsZero() {
				return errNotYet
			}
			if late := b.death.Sub(b.hi); late < -stamp || late > lateMax {
				t.Errorf("%s died %s after its deadline", b.id, late)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	restart(t, w.s)
	for _, b := range []*box{good, hurt, gone} {
		w.settledEnd(t, b)
	}
	w.agrees(t)
	if b, err := os.ReadFile(filepath.Join(dir, "README-5")); err != nil || string(b) != "mine" {
		t.Errorf("somebody else's file: %q, %v", b, err)
	}
}

func TestADamagedDatabaseRefusesAndLeasesAreEnforced(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		damage func(path string) error
		repair func(path string) error
	}{
		{"cut to half", func(p string) error { return truncate(p, 2) }, nil},
		{"cut to nothing", func(p string) error { return os.Truncate(p, 0) }, nil},
		{"cut within the head", func(p string) error { return os.Truncate(p, 60) }, nil},
		{"another file", func(p string) error { return os.WriteFile(p, []byte("a letter to somebody\n"), 0o600) }, nil},
		{"a directory", func(p string) error {
			if err := os.Remove(p); err != nil {
				return err
			}
			return os.Mkdir(p, 0o700)
		}, os.Remove},
		{"read-only", func(p string) error { return exec.Command("chattr", "+i", p).Run() },
			func(p string) error { return exec.Command("chattr", "-i", p).Run() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			kept, due := w.one(t, 120), w.one(t, 10)
			if out := w.s.Dayfly(t.Context(), "down"); out.Code != 0 {
				t.Fatal(out.Stderr)
			}
			path := filepath.Join(w.s.Data, "dayfly.db")
			copied, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.damage(path); err != nil {
				t.Skip("cannot damage it so: ", err)
			}
			t.Cleanup(func() {
				if tt.repair != nil {
					_ = tt.repair(path)
				}
			})
			refused(t, w.s, path)
			err = within(boxMax, func() error {
				due.mu.Lock()
				defer due.mu.Unlock()
				if due.death.IsZero() {
					return errNotYet
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if late := due.death.Sub(due.hi); late < -stamp || late > lateMax {
				t.Errorf("without a server it died %s after its deadline", late)
			}
			if tt.repair != nil {
				if err := tt.repair(path); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(path, copied, 0o600); err != nil {
				t.Fatal(err)
			}
			restart(t, w.s)
			w.alive(t, kept)
			w.settledEnd(t, due)
			w.agrees(t)
		})
	}
}

func truncate(path string, parts int64) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.Truncate(path, info.Size()/parts)
}

func TestAnOlderDatabaseLosesToTheHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	early, lost := w.one(t, 60), w.one(t, 60)
	if out := w.s.Dayfly(t.Context(), "down"); out.Code != 0 {
		t.Fatal(out.Stderr)
	}
	path := filepath.Join(w.s.Data, "dayfly.db")
	older, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	restart(t, w.s)
	if _, err := (&extendOp{b: early, key: "later", seconds: 60}).run(w); err != nil {
		t.Fatal(err)
	}
	if _, err := (&deleteOp{lost}).run(w); err != nil {
		t.Fatal(err)
	}
	late := w.one(t, 60)
	if out := w.s.Dayfly(t.Context(), "down"); out.Code != 0 {
		t.Fatal(out.Stderr)
	}
	for _, side := range []string{"-wal", "-shm"} {
		_ = os.Remove(path + side)
	}
	if err := os.WriteFile(path, older, 0o600); err != nil {
		t.Fatal(err)
	}
	restart(t, w.s)
	w.alive(t, early)
	w.alive(t, late)
	for _, b := range []*box{early, late} {
		r, err := w.sandbox(b.id)
		if err != nil || r.Status != "running" || r.ExpiresAt.Sub(b.hi).Abs() > slack || r.Labels["key"] != b.label {
			t.Errorf("%s is on record as %+v (%v), want running until %s", b.id, r, err, clock(b.hi))
		}
	}
	r, err := w.sandbox(lost.id)
	if err != nil || !r.ended() {
		t.Errorf("what was deleted since is on record as %+v (%v)", r, err)
	}
	w.agrees(t)
}

func TestAMovedDataDirectoryKeepsEverything(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.one(t, 20)
	if out := w.s.Dayfly(t.Context(), "down"); out.Code != 0 {
		t.Fatal(out.Stderr)
	}
	moved := w.s.Data + "-moved"
	if err := os.Rename(w.s.Data, moved); err != nil {
		t.Fatal(err)
	}
	w.s.Data = moved
	restart(t, w.s)
	w.alive(t, before)
	if w.s.Warden() == 0 {
		t.Error("no warden watches the new place")
	}
	after := w.one(t, 8)
	w.alive(t, after)
	w.agrees(t)
	crash(t, w.s)
	err := within(boxMax, func() error {
		after.mu.Lock()
		defer after.mu.Unlock()
		if after.death.IsZero() {
			return errNotYet
		}
		if late := after.death.Sub(after.hi); late < -stamp || late > lateMax {
			t.Errorf("in the new place it died %s after its deadline, by its warden alone", late)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	restart(t, w.s)
	w.settledEnd(t, after)
	w.settledEnd(t, before)
	w.agrees(t)
}

func TestAControlGroupThatSomebodyRemovedIsACrash(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b, other := w.one(t, 60), w.one(t, 60)
	b.mu.Lock()
	b.hurt = time.Now()
	b.mu.Unlock()
	if err := removeGroups(w.s, b.id); err != nil {
		t.Fatal(err)
	}
	err := within(3*time.Second, func() error {
		r, err := w.sandbox(b.id)
		if err == nil && !r.ended() {
			err = errNotYet
		}
		return err
	})
	if err != nil {
		t.Errorf("the server did not notice: %v", err)
	}
	w.settledEnd(t, b)
	a := w.do("POST", "/v1/sandboxes/"+b.id+"/exec", "", map[string]any{"command": "echo ok"})
	if a.status != 410 {
		t.Errorf("exec in it: %s", a)
	}
	w.alive(t, other)
	w.agrees(t)
}

// removeGroups kills a sandbox from outside and removes its control groups of every hierarchy.
func removeGroups(s *host.Server, id string) error {
	groups, err := filepath.Glob("/sys/fs/cgroup/*/dayfly-" + s.Installation + "/" + id)
	if err != nil {
		return err
	}
	pure, err := filepath.Glob("/sys/fs/cgroup/dayfly-" + s.Installation + "/" + id)
	if err != nil {
		return err
	}
	groups = append(groups, pure...)
	for _, g := range groups {
		_ = os.WriteFile(filepath.Join(g, "cgroup.kill"), []byte("1"), 0)
	}
	return within(settleMax, func() error {
		var left error
		for _, g := range groups {
			below, _ := filepath.Glob(g + "/*/")
			slices.Reverse(below)
			for _, dir := range append(below, g) {
				if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
					left = err
				}
			}
		}
		return left
	})
}

// stuckMax is how long a step that was stuck may take to be tried again.
const stuckMax = 40 * time.Second

func TestAForeignMountBelowOursHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, below string }{
		{"in the run directory", "/run/dayfly/%[2]s/%[3]s/in"},
		{"on the disk", "%[1]s/pool/disks/%[3]s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			b, other := w.one(t, 120), w.one(t, 120)
			point := filepath.Join(fmt.Sprintf(tt.below, w.s.Data, w.s.Installation, b.id), "foreign")
			if err := os.Mkdir(point, 0o700); err != nil {
				t.Skip("no such place: ", err)
			}
			if err := unix.Mount("none", point, "tmpfs", 0, "size=64k"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(point, unix.MNT_DETACH) })
			if err := os.WriteFile(filepath.Join(point, "mine"), []byte("mine"), 0o600); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if _, err := (&deleteOp{b}).run(w); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 12*time.Second {
				t.Errorf("the delete was answered after %s", took)
			}
			if lives, err := w.s.Lives(b.id); lives || err != nil {
				t.Errorf("it lives (%v)", err)
			}
			w.alive(t, other)
			third := w.one(t, 60)
			w.alive(t, third)
			if got, err := os.ReadFile(filepath.Join(point, "mine")); err == nil && string(got) != "mine" {
				t.Errorf("the foreign file says %q", got)
			}
			_ = unix.Unmount(point, 0)
			err := within(stuckMax, func() error {
				r, err := w.sandbox(b.id)
				if err == nil && !r.ended() {
					err = errNotYet
				}
				return err
			})
			if err != nil {
				t.Errorf("after the foreign mount went: %v", err)
			}
			w.settledEnd(t, b)
			if err := within(stuckMax, w.agree); err != nil { // the record is closed while the rest is tried again, ever more rarely
				t.Error(err)
			}
		})
	}
}
