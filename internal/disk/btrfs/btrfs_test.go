package btrfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/disk/btrfs"
	"dayfly.dev/dayfly/internal/disk/disktest"
)

const (
	removeMax = 50 * time.Millisecond // idle: below 1
	roomWait  = 30 * time.Second      // until room is back; the product promises 5, on a machine that is not overloaded
)

func TestMain(m *testing.M) { disktest.Main(m) }

func TestPoolSimple(t *testing.T)  { conform(t, btrfs.QuotaSimple) }
func TestPoolClassic(t *testing.T) { conform(t, btrfs.QuotaClassic) }
func TestPoolOff(t *testing.T)     { conform(t, btrfs.QuotaOff) }

func conform(t *testing.T, quota btrfs.Quota) {
	t.Parallel()
	disktest.Run(t, func(t *testing.T) disktest.Fixture {
		dir := dataDir(t)
		return disktest.Fixture{
			Open:      func(t *testing.T) dayfly.Pool { return open(t, dir, quota) },
			RemoveMax: removeMax,
		}
	})
}

// TestPoolHosted runs on a data directory that is on btrfs itself: the disk pool of another installation plays the host.
func TestPoolHosted(t *testing.T) {
	t.Parallel()
	disktest.Run(t, func(t *testing.T) disktest.Fixture {
		dir := hostedDir(t)
		return disktest.Fixture{
			Open:      func(t *testing.T) dayfly.Pool { return open(t, dir, btrfs.QuotaAuto) },
			RemoveMax: removeMax,
		}
	})
}

// dataDir makes a data directory whose pool is destroyed at the end, and looks for what is left.
func dataDir(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	if r := btrfs.Probe(dir); !r.Works {
		t.Skipf("no btrfs here: %v", r.Reasons)
	}
	t.Cleanup(func() {
		if err := btrfs.Destroy(context.Background(), dir); err != nil {
			t.Errorf("Destroy: %v", err)
		}
		wantNothing(t, dir)
	})
	return dir
}

// hostedDir makes a data directory on a btrfs without quotas.
func hostedDir(t *testing.T) string {
	t.Helper()
	host := dataDir(t)
	must(t, open(t, host, btrfs.QuotaOff).Close())
	dir := filepath.Join(host, "pool", "data")
	must(t, os.Mkdir(dir, 0o700))
	t.Cleanup(func() {
		if err := btrfs.Destroy(context.Background(), dir); err != nil {
			t.Errorf("Destroy: %v", err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) > 0 {
			t.Errorf("after Destroy: %v, %v", entries, err)
		}
	})
	return dir
}

func open(t *testing.T, dir string, quota btrfs.Quota) *btrfs.Pool {
	t.Helper()
	p, err := btrfs.Open(t.Context(), btrfs.Options{DataDir: dir, Quota: quota, SizeBytes: 1 << 30, Discard: true})
	if err != nil {
		if dayfly.ErrorCode(err) == dayfly.CodeUnavailable && quota == btrfs.QuotaSimple {
			t.Skipf("no simple quotas here: %v", err)
		}
		t.Fatal(err)
	}
	return p
}

// wantNothing checks that no mount, loop device or file of the data directory is left.
func wantNothing(t *testing.T, dir string) {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if strings.Contains(string(table), dir) {
		t.Errorf("a mount is left below %s", dir)
	}
	if loops := loopsOf(t, dir); len(loops) > 0 {
		t.Errorf("loop devices are left: %v", loops)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		t.Errorf("files are left: %v, %v", entries, err)
	}
}

func loopsOf(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	must(t, err)
	var found []string
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), dir) {
			found = append(found, f)
		}
	}
	return found
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMount(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	p := open(t, dir, btrfs.QuotaAuto)
	defer p.Close()
	if len(loopsOf(t, dir)) != 1 {
		t.Errorf("loop devices: %v", loopsOf(t, dir))
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(table)) {
		if !strings.Contains(line, " "+filepath.Join(dir, "pool")+" ") {
			continue
		}
		for _, want := range []string{"nosuid", "nodev", "noatime", "discard=async"} {
			if !strings.Contains(line, want) {
				t.Errorf("the mount lacks %s: %s", want, line)
			}
		}
		if strings.Contains(line, "shared:") {
			t.Errorf("the mount is shared: %s", line)
		}
	}
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(dir, "pool"), &st))
	if st.Mode&0o777 != 0o700 {
		t.Errorf("mode %o", st.Mode)
	}
	must(t, unix.Stat(filepath.Join(dir, "pool.img"), &st))
	if st.Mode&0o777 != 0o600 || st.Blocks*512 > 64<<20 {
		t.Errorf("the file has mode %o and takes %d bytes", st.Mode, st.Blocks*512)
	}
}

func TestReopenAfterUnmount(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	p := open(t, dir, btrfs.QuotaAuto)
	disk, err := p.Create(t.Context(), "one", 64<<20)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(disk, "u", "f"), []byte("x"), 0o600))
	must(t, p.Close())
	must(t, unix.Unmount(filepath.Join(dir, "pool"), 0)) // as after a reboot
	p = open(t, dir, btrfs.QuotaAuto)
	defer p.Close()
	if b, err := os.ReadFile(filepath.Join(disk, "u", "f")); err != nil || string(b) != "x" {
		t.Errorf("after mounting again: %q, %v", b, err)
	}
	if enforced, _ := p.Limits(); !enforced {
		t.Error("limits are off after mounting again")
	}
}

// TestReopenFindsLoopDevice has the device attached and mounted elsewhere, as another mount namespace may hold it.
func TestReopenFindsLoopDevice(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	must(t, open(t, dir, btrfs.QuotaAuto).Close())
	elsewhere := t.TempDir()
	must(t, unix.Mount(filepath.Join(dir, "pool"), elsewhere, "", unix.MS_BIND, ""))
	must(t, unix.Unmount(filepath.Join(dir, "pool"), 0))
	p := open(t, dir, btrfs.QuotaAuto)
	if loops := loopsOf(t, dir); len(loops) != 1 {
		t.Errorf("loop devices: %v", loops)
	}
	must(t, unix.Unmount(elsewhere, 0))
	must(t, p.Close())
}

func TestOpenRefuses(t *testing.T) {
	t.Run("another mount in its place", func(t *testing.T) {
		dir := dataDir(t)
		must(t, open(t, dir, btrfs.QuotaAuto).Close())
		pool := filepath.Join(dir, "pool")
		must(t, unix.Mount("none", pool, "tmpfs", 0, ""))
		_, err := btrfs.Open(t.Context(), btrfs.Options{DataDir: dir})
		if dayfly.ErrorCode(err) != dayfly.CodeConflict {
			t.Errorf("err = %v", err)
		}
		if err := btrfs.Destroy(t.Context(), dir); dayfly.ErrorCode(err) != dayfly.CodeConflict {
			t.Errorf("Destroy: %v", err)
		}
		must(t, unix.Unmount(pool, 0))
	})
	t.Run("a damaged file", func(t *testing.T) {
		dir := dataDir(t)
		must(t, os.WriteFile(filepath.Join(dir, "pool.img"), make([]byte, 1<<20), 0o600))
		_, err := btrfs.Open(t.Context(), btrfs.Options{DataDir: dir})
		if dayfly.ErrorCode(err) != dayfly.CodeUnavailable {
			t.Errorf("err = %v", err)
		}
		for range 100 { // udev may have it open for a moment, and nothing tells when it closes it
			if len(loopsOf(t, dir)) == 0 {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Error("the loop device stays")
	})
	t.Run("an unknown quota", func(t *testing.T) {
		if _, err := btrfs.Open(t.Context(), btrfs.Options{DataDir: t.TempDir(), Quota: "x"}); dayfly.ErrorCode(err) != dayfly.CodeInvalid {
			t.Errorf("err = %v", err)
		}
	})
	t.Run("another quota under disks", func(t *testing.T) {
		dir := dataDir(t)
		p := open(t, dir, btrfs.QuotaClassic)
		_, err := p.Create(t.Context(), "one", 1<<20)
		must(t, errors.Join(err, p.Close()))
		if _, err := btrfs.Open(t.Context(), btrfs.Options{DataDir: dir, Quota: btrfs.QuotaSimple}); dayfly.ErrorCode(err) != dayfly.CodeConflict {
			t.Errorf("err = %v", err)
		}
		p = open(t, dir, btrfs.QuotaAuto)
		if p.Quota() != btrfs.QuotaClassic {
			t.Errorf("auto took %s", p.Quota())
		}
		must(t, errors.Join(p.Remove(t.Context(), "one"), p.Close()))
		p = open(t, dir, btrfs.QuotaSimple)
		if p.Quota() != btrfs.QuotaSimple {
			t.Errorf("an empty pool stays at %s", p.Quota())
		}
		must(t, p.Close())
	})
}

func TestDestroyWaitsForUsers(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	p := open(t, dir, btrfs.QuotaAuto)
	disk, err := p.Create(t.Context(), "one", 64<<20)
	must(t, errors.Join(err, p.Close()))
	held, err := os.Open(filepath.Join(disk, "u"))
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := btrfs.Destroy(ctx, dir); err == nil {
		t.Error("Destroy took a pool in use")
	}
	if _, err := os.Lstat(filepath.Join(dir, "pool.img")); err != nil {
		t.Error(err)
	}
	must(t, held.Close())
	must(t, btrfs.Destroy(t.Context(), dir))
	must(t, btrfs.Destroy(t.Context(), dir)) // again is fine
	must(t, btrfs.Destroy(t.Context(), filepath.Join(dir, "missing")))
}

// TestPlantedDisks: what bears a disk's name is removed like one, whatever it is; what bears another name is nobody's to remove.
func TestPlantedDisks(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	p := open(t, dir, btrfs.QuotaAuto)
	defer p.Close()
	disks, dying := filepath.Join(dir, "pool", "disks"), filepath.Join(dir, "pool", "dying")
	kept, err := p.Create(t.Context(), "kept", 0)
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(disks, "plain", "u", "deep"), 0o700))
	must(t, os.WriteFile(filepath.Join(disks, "plain", "u", "deep", "f"), []byte("x"), 0o600))
	must(t, os.Symlink(kept, filepath.Join(disks, "plain", "out")))
	must(t, os.WriteFile(filepath.Join(disks, "file"), []byte("x"), 0o600))
	must(t, os.Symlink(kept, filepath.Join(disks, "link")))
	foreign := []string{filepath.Join(dir, "pool", "trash", "notes"), filepath.Join(dying, "kept.old")}
	for _, f := range foreign {
		must(t, os.MkdirAll(filepath.Join(f, "sub"), 0o700))
	}
	for _, id := range []string{"plain", "file", "link"} {
		must(t, p.Remove(t.Context(), id))
	}
	wantReclaimed(t, p)
	if left, err := os.ReadDir(dying); err != nil || len(left) != 1 {
		t.Errorf("dying holds %v, %v", left, err)
	}
	for _, f := range append(foreign, kept) {
		if entries, err := os.ReadDir(f); err != nil || len(entries) == 0 {
			t.Errorf("%s was touched: %v, %v", f, entries, err)
		}
	}
	for _, f := range foreign {
		must(t, os.RemoveAll(f))
	}
}

// TestFullPool fills the pool itself, below every limit, and wants the room back after the disk is removed: with and without
// discarding, which commits at other times.
func TestFullPool(t *testing.T) {
	t.Parallel()
	for _, quota := range []btrfs.Quota{btrfs.QuotaAuto, btrfs.QuotaClassic} {
		for _, discard := range []bool{true, false} {
			t.Run(fmt.Sprintf("quota %s, discard %v", quota, discard), func(t *testing.T) {
				t.Parallel()
				fullPool(t, btrfs.Options{Quota: quota, Discard: discard})
			})
		}
	}
}

func fullPool(t *testing.T, o btrfs.Options) {
	o.DataDir, o.SizeBytes = dataDir(t), 1<<30
	o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	p, err := btrfs.Open(t.Context(), o)
	must(t, err)
	defer p.Close()
	disk, err := p.Create(t.Context(), "hog", 0)
	must(t, err)
	fillPool(t, filepath.Join(disk, "u", "f"))
	_, free, err := p.Usage(t.Context())
	if err != nil || free > 64<<20 {
		t.Errorf("a full pool has %d bytes free, %v", free, err)
	}
	if _, err := p.Create(t.Context(), "small", 1<<20); err != nil && dayfly.ErrorCode(err) != dayfly.CodeDiskFull {
		t.Errorf("Create in a full pool: %v", err)
	}
	began := time.Now()
	must(t, p.Remove(t.Context(), "hog"))
	if took := time.Since(began); took > 2*time.Second { // idle: below 10 ms
		t.Errorf("Remove in a full pool took %s", took)
	}
	wantReclaimed(t, p)
	for free < 512<<20 {
		if _, free, err = p.Usage(t.Context()); err != nil || time.Since(began) > roomWait {
			t.Fatalf("%s after Remove %d bytes are free, %v", time.Since(began), free, err)
		}
		time.Sleep(20 * time.Millisecond) // the kernel tells nobody that it gave the room back
	}
	t.Logf("the room was back after %s", time.Since(began).Round(10*time.Millisecond))
}

// fillPool writes until nothing more fits.
func fillPool(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	must(t, err)
	defer f.Close()
	var at int64
	for step := int64(64 << 20); step >= 1<<20; {
		if err := unix.Fallocate(int(f.Fd()), 0, at, step); err == nil {
			at += step
		} else if errors.Is(err, unix.ENOSPC) {
			step /= 2
		} else {
			t.Fatalf("filling the pool: %v", err)
		}
	}
}

func wantReclaimed(t *testing.T, p *btrfs.Pool) {
	t.Helper()
	deadline := time.Now().Add(roomWait)
	for {
		n, err := p.Reclaiming(t.Context())
		must(t, err)
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d removed disks are still there", n)
		}
		time.Sleep(50 * time.Millisecond) // a Pool gives no event for this
	}
}

func TestNestedSubvolumesGoToo(t *testing.T) {
	t.Parallel()
	dir := hostedDir(t)
	p := open(t, dir, btrfs.QuotaAuto)
	disk, err := p.Create(t.Context(), "one", 0)
	must(t, errors.Join(err, p.Close()))
	for range 2 { // a pool in a disk of a pool: subvolumes in a subvolume
		disk = filepath.Join(disk, "u")
		inner := open(t, disk, btrfs.QuotaOff)
		disk, err = inner.Create(t.Context(), "inner", 0)
		must(t, errors.Join(err, inner.Close()))
	}
	p = open(t, dir, btrfs.QuotaAuto)
	defer p.Close()
	must(t, p.Remove(t.Context(), "one"))
	wantReclaimed(t, p)
}

func TestRoomComesBackToTheHost(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	p := open(t, dir, btrfs.QuotaAuto)
	defer p.Close()
	disk, err := p.Create(t.Context(), "one", 0)
	must(t, err)
	const size = 300 << 20
	f, err := os.Create(filepath.Join(disk, "u", "f"))
	must(t, err)
	block := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for range size >> 20 {
		_, err := f.Write(block)
		must(t, err)
	}
	must(t, errors.Join(f.Sync(), f.Close()))
	taken := func() int64 {
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(dir, "pool.img"), &st))
		return st.Blocks * 512
	}
	if taken() < size {
		t.Fatalf("the file takes %d bytes", taken())
	}
	must(t, p.Remove(t.Context(), "one"))
	deadline := time.Now().Add(30 * time.Second)
	for taken() > size/4 {
		if time.Now().After(deadline) {
			t.Fatalf("the file still takes %d MiB", taken()>>20)
		}
		time.Sleep(100 * time.Millisecond) // the kernel discards when it likes
	}
}

func BenchmarkCreate(b *testing.B) {
	dir := b.TempDir()
	if r := btrfs.Probe(dir); !r.Works || os.Geteuid() != 0 {
		b.Skipf("needs root and btrfs: %v", r.Reasons)
	}
	p, err := btrfs.Open(b.Context(), btrfs.Options{DataDir: dir, Discard: true})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := errors.Join(p.Close(), btrfs.Destroy(context.Background(), dir)); err != nil {
			b.Error(err)
		}
	}()
	var creating []time.Duration
	var removing time.Duration
	for b.Loop() {
		start := time.Now()
		if _, err := p.Create(b.Context(), "one", 64<<20); err != nil {
			b.Fatal(err)
		}
		created := time.Now()
		creating = append(creating, created.Sub(start))
		if err := p.Remove(b.Context(), "one"); err != nil {
			b.Fatal(err)
		}
		removing += time.Since(created)
	}
	slices.Sort(creating)
	for _, percent := range []int{50, 95, 99, 100} {
		b.ReportMetric(float64(creating[(len(creating)-1)*percent/100].Microseconds()), fmt.Sprintf("p%d-create-µs", percent))
	}
	b.ReportMetric(float64(removing.Microseconds())/float64(b.N), "remove-µs/op")
}
