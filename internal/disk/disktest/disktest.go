// Package disktest is the conformance suite of dayfly.Pool: what every pool technology must do, tried on real file systems.
// It holds nothing that is special to one technology; such tests sit beside it.
//
// To add a promise to dayfly.Pool, add a subtest here first.
package disktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Fixture is one pool, empty at first.
type Fixture struct {
	// Open opens the pool, also again after it was closed. The suite closes what it opens.
	Open func(t *testing.T) dayfly.Pool
	// RemoveMax is how long removing a disk of 20,000 files may take, or 0 for any time.
	RemoveMax time.Duration
}

const (
	reclaimWait = 5 * time.Second // what the product promises
	reclaimPoll = 50 * time.Millisecond
	mib         = 1 << 20
)

// Main runs a package's tests under an odd umask, which must not show. Call it from TestMain.
func Main(m *testing.M) {
	unix.Umask(0o077)
	os.Exit(m.Run())
}

// Run checks the pools that fixture makes, one for each subtest, in parallel. Fixture cleans up by t.Cleanup.
func Run(t *testing.T, fixture func(t *testing.T) Fixture) {
	for _, tt := range []struct {
		name string
		run  func(*testing.T, Fixture)
	}{
		{"create", create},
		{"conflict", conflict},
		{"ids", ids},
		{"ended context", endedContext},
		{"remove", remove},
		{"remove while open", removeWhileOpen},
		{"remove a hostile tree", removeHostile},
		{"nothing survives", nothingSurvives},
		{"list and reopen", reopen},
		{"usage", usage},
		{"limit", limit},
		{"no limit", noLimit},
		{"parallel", parallel},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.run(t, fixture(t))
		})
	}
}

func open(t *testing.T, f Fixture) dayfly.Pool {
	t.Helper()
	p := f.Open(t)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

func create(t *testing.T, f Fixture) {
	p := open(t, f)
	if p.Kind() == "" {
		t.Error("the pool has no kind")
	}
	if enforced, why := p.Limits(); !enforced && why == "" {
		t.Error("the pool does not say why limits are off")
	}
	dir := mustCreate(t, p, dayfly.NewID(dayfly.PrefixSandbox), 64*mib)
	for _, sub := range []string{"", "u", "w"} {
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(dir, sub), &st))
		if st.Mode != unix.S_IFDIR|0o755 || st.Uid != 0 || st.Gid != 0 {
			t.Errorf("%q: mode %o owner %d:%d", sub, st.Mode, st.Uid, st.Gid)
		}
	}
	entries, err := os.ReadDir(dir)
	must(t, err)
	if len(entries) != 2 {
		t.Errorf("a new disk holds %v", entries)
	}
	var outer unix.Stat_t
	must(t, unix.Lstat(filepath.Dir(dir), &outer))
	if outer.Mode&0o077 != 0 {
		t.Errorf("others on the host may look into the pool: mode %o", outer.Mode)
	}
}

func conflict(t *testing.T, f Fixture) {
	p := open(t, f)
	dir := mustCreate(t, p, "one", mib*64)
	must(t, os.WriteFile(filepath.Join(dir, "u", "kept"), []byte("x"), 0o600))
	if _, err := p.Create(t.Context(), "one", 0); dayfly.ErrorCode(err) != dayfly.CodeConflict {
		t.Errorf("second Create: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "u", "kept")); err != nil {
		t.Errorf("the refused Create touched the disk: %v", err)
	}
}

func ids(t *testing.T, f Fixture) {
	p := open(t, f)
	victim := mustCreate(t, p, "victim", 0)
	for _, id := range []string{"", ".", "..", "../x", "a/b", "/etc", "victim/u", "A", "a.b", "a b", "a\x00", "ä", string(bytes.Repeat([]byte("a"), 64))} {
		if _, err := p.Create(t.Context(), id, 0); dayfly.ErrorCode(err) != dayfly.CodeInvalid {
			t.Errorf("Create(%q): %v", id, err)
		}
		if err := p.Remove(t.Context(), id); dayfly.ErrorCode(err) != dayfly.CodeInvalid {
			t.Errorf("Remove(%q): %v", id, err)
		}
	}
	if _, err := p.Create(t.Context(), "negative", -1); dayfly.ErrorCode(err) != dayfly.CodeInvalid {
		t.Errorf("Create with a negative limit: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(victim, "u")); err != nil {
		t.Error(err)
	}
	wantList(t, p, "victim")
}

func endedContext(t *testing.T, f Fixture) {
	p := open(t, f)
	mustCreate(t, p, "kept", 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Create(ctx, "new", 0); !errors.Is(err, context.Canceled) {
		t.Errorf("Create: %v", err)
	}
	if err := p.Remove(ctx, "kept"); !errors.Is(err, context.Canceled) {
		t.Errorf("Remove: %v", err)
	}
	if _, err := p.List(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("List: %v", err)
	}
	if _, err := p.Reclaiming(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Reclaiming: %v", err)
	}
	if _, _, err := p.Usage(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Usage: %v", err)
	}
	wantList(t, p, "kept")
}

func remove(t *testing.T, f Fixture) {
	p := open(t, f)
	dir := mustCreate(t, p, "one", 64*mib)
	mustCreate(t, p, "two", 64*mib)
	must(t, os.WriteFile(filepath.Join(dir, "u", "f"), make([]byte, mib), 0o600))
	must(t, p.Remove(t.Context(), "one"))
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Remove: %v", err)
	}
	wantList(t, p, "two")
	must(t, p.Remove(t.Context(), "one"))
	must(t, p.Remove(t.Context(), "never"))
	mustCreate(t, p, "one", 64*mib) // the name is free again at once
	wantReclaimed(t, p)
	wantList(t, p, "one", "two")
}

func removeWhileOpen(t *testing.T, f Fixture) {
	p := open(t, f)
	dir := mustCreate(t, p, "one", 64*mib)
	file, err := os.Create(filepath.Join(dir, "u", "f"))
	must(t, err)
	defer file.Close()
	must(t, p.Remove(t.Context(), "one"))
	wantList(t, p)
	must(t, file.Close())
	wantReclaimed(t, p)
}

// removeHostile removes what a program could have made to hinder it.
func removeHostile(t *testing.T, f Fixture) {
	const files, levels = 20_000, 2000
	p := open(t, f)
	dir := mustCreate(t, p, "one", 0)
	upper := filepath.Join(dir, "u")
	must(t, os.Mkdir(filepath.Join(upper, "many"), 0o700))
	for i := range files {
		must(t, os.WriteFile(filepath.Join(upper, "many", fmt.Sprint(i)), nil, 0o600))
	}
	fd, err := unix.Open(upper, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range levels {
		must(t, unix.Mkdirat(fd, "deeper", 0o700))
		next, err := unix.Openat(fd, "deeper", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		must(t, unix.Close(fd))
		fd = next
	}
	must(t, unix.Close(fd))
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.WriteFile(outside, []byte("x"), 0o600))
	must(t, os.Symlink(filepath.Dir(outside), filepath.Join(upper, "link")))
	must(t, unix.Mknod(filepath.Join(upper, "whiteout"), unix.S_IFCHR, 0))
	must(t, os.Mkdir(filepath.Join(upper, "closed"), 0))
	start := time.Now()
	must(t, p.Remove(t.Context(), "one"))
	if took := time.Since(start); f.RemoveMax > 0 && took > f.RemoveMax {
		t.Errorf("Remove of %d files took %s, at most %s", files, took, f.RemoveMax)
	}
	wantReclaimed(t, p)
	if _, err := os.Lstat(outside); err != nil {
		t.Errorf("Remove left the disk: %v", err)
	}
}

// nothingSurvives looks for one disk's bytes in the next one of the same name.
func nothingSurvives(t *testing.T, f Fixture) {
	p := open(t, f)
	marker := []byte("marker of the disk before")
	for range 3 {
		dir := mustCreate(t, p, "one", 64*mib)
		must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			t.Errorf("a new disk holds %s", path)
			return nil
		}))
		file, err := os.Create(filepath.Join(dir, "u", "hole"))
		must(t, err)
		must(t, file.Truncate(mib))
		b := make([]byte, mib)
		_, err = file.ReadAt(b, 0)
		must(t, err)
		if bytes.Contains(b, marker) {
			t.Error("a hole shows an earlier disk's bytes")
		}
		_, err = file.WriteAt(bytes.Repeat(marker, 1000), 0)
		must(t, errors.Join(err, file.Sync(), file.Close()))
		must(t, p.Remove(t.Context(), "one"))
	}
	wantReclaimed(t, p)
}

func reopen(t *testing.T, f Fixture) {
	p := f.Open(t)
	dir := mustCreate(t, p, "kept", 64*mib)
	mustCreate(t, p, "gone", 64*mib)
	must(t, os.WriteFile(filepath.Join(dir, "u", "f"), []byte("x"), 0o600))
	held, err := os.Open(filepath.Join(dir, "u", "f")) // a machine that runs on
	must(t, err)
	defer held.Close()
	must(t, p.Remove(t.Context(), "gone"))
	must(t, p.Close())
	must(t, p.Close()) // again is fine
	p = open(t, f)
	wantList(t, p, "kept")
	if b, err := os.ReadFile(filepath.Join(dir, "u", "f")); err != nil || string(b) != "x" {
		t.Errorf("after reopening: %q, %v", b, err)
	}
	wantReclaimed(t, p)
	must(t, held.Close())
}

func usage(t *testing.T, f Fixture) {
	p := open(t, f)
	total, free, err := p.Usage(t.Context())
	must(t, err)
	if total <= 0 || free <= 0 || free > total {
		t.Errorf("total %d free %d", total, free)
	}
}

func limit(t *testing.T, f Fixture) {
	p := open(t, f)
	if enforced, why := p.Limits(); !enforced {
		t.Skipf("limits are off: %s", why)
	}
	const most = 32 * mib
	dir := mustCreate(t, p, "one", most)
	other := mustCreate(t, p, "two", most)
	name := filepath.Join(dir, "u", "f")
	for round := range 2 { // the second shows that deleting at the limit makes room again
		n, err := fill(name, 2*most)
		if !errors.Is(err, unix.EDQUOT) {
			t.Fatalf("round %d: wrote %d bytes over a limit of %d: %v", round, n, most, err)
		}
		if n < most/2 || n > most+mib {
			t.Errorf("round %d: wrote %d bytes, limit %d", round, n, most)
		}
		if _, err := fill(filepath.Join(dir, "u", "g"), 4*mib); !errors.Is(err, unix.EDQUOT) {
			t.Errorf("round %d: a second file at the limit: %v", round, err)
		}
		_ = os.Remove(filepath.Join(dir, "u", "g"))
		if err := os.Remove(name); err != nil {
			t.Fatalf("round %d: delete at the limit: %v", round, err)
		}
		wantRoom(t, dir, most/2)
	}
	if n, err := fill(filepath.Join(other, "u", "f"), most/2); err != nil {
		t.Errorf("the neighbour could write %d bytes only: %v", n, err)
	}
	_, _ = fill(name, 2*most)
	must(t, p.Remove(t.Context(), "one")) // a full disk goes like any other
	dir = mustCreate(t, p, "one", most)
	if n, err := fill(filepath.Join(dir, "u", "f"), most/2); err != nil {
		t.Errorf("the next disk of that name could write %d bytes only: %v", n, err)
	}
	wantReclaimed(t, p)
}

func noLimit(t *testing.T, f Fixture) {
	p := open(t, f)
	dir := mustCreate(t, p, "one", 0)
	if n, err := fill(filepath.Join(dir, "u", "f"), 64*mib); err != nil {
		t.Errorf("wrote %d bytes without a limit: %v", n, err)
	}
}

func parallel(t *testing.T, f Fixture) {
	const disks = 50
	p := open(t, f)
	want := make([]string, disks)
	var wg sync.WaitGroup
	for i := range disks {
		want[i] = dayfly.NewID(dayfly.PrefixSandbox)
		wg.Go(func() {
			dir, err := p.Create(t.Context(), want[i], 64*mib)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "u", "id"), []byte(want[i]), 0o600)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	var wins sync.Map
	for i := range disks { // and all fight for one name
		wg.Go(func() {
			_, err := p.Create(t.Context(), "contested", 0)
			switch {
			case err == nil:
				wins.Store(i, true)
			case dayfly.ErrorCode(err) != dayfly.CodeConflict:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n := 0
	wins.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d of %d got the same disk", n, disks)
	}
	wantList(t, p, append(want, "contested")...)
	for _, id := range append(want, "contested") {
		wg.Go(func() {
			if err := p.Remove(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantList(t, p)
	wantReclaimed(t, p)
}

// fill writes up to size bytes to a new file and returns how many the disk took.
func fill(name string, size int64) (int64, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	block := bytes.Repeat([]byte("0123456789abcdef"), mib/16/4)
	var n int64
	for n < size && err == nil {
		var m int
		m, err = f.Write(block)
		n += int64(m)
	}
	if err == nil {
		err = f.Sync()
	}
	return n, errors.Join(err, f.Close())
}

// wantRoom waits until size bytes can be written: accounting may follow a deletion with the next commit.
func wantRoom(t *testing.T, dir string, size int64) {
	t.Helper()
	name := filepath.Join(dir, "u", "probe")
	deadline := time.Now().Add(reclaimWait)
	for {
		n, err := fill(name, size)
		_ = os.Remove(name)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after deleting at the limit only %d bytes can be written: %v", n, err)
		}
		time.Sleep(reclaimPoll) // the kernel tells nobody when accounting is done
	}
}

// wantReclaimed waits until the space of removed disks is back.
func wantReclaimed(t *testing.T, p dayfly.Pool) {
	t.Helper()
	deadline := time.Now().Add(reclaimWait)
	for {
		n, err := p.Reclaiming(t.Context())
		must(t, err)
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d removed disks are still there after %s", n, reclaimWait)
		}
		time.Sleep(reclaimPoll) // a Pool gives no event for this
	}
}

func wantList(t *testing.T, p dayfly.Pool, want ...string) {
	t.Helper()
	got, err := p.List(t.Context())
	must(t, err)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("List = %q, want %q", got, want)
	}
}

func mustCreate(t *testing.T, p dayfly.Pool, id string, limitBytes int64) string {
	t.Helper()
	dir, err := p.Create(t.Context(), id, limitBytes)
	must(t, err)
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
