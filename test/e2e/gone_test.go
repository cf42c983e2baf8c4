package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// markerMiB is how much a sandbox writes full of markers.
const markerMiB = 128

// ownPool gives a server with a btrfs pool in a small file of its own, or skips.
func ownPool(t *testing.T, discard bool) (*host.Server, *sdk.Client) {
	t.Helper()
	s, c := own(t, "--config", writeFile(t, "config.yaml", fmt.Sprintf("disk: {size_gb: 2, discard: %v}\n", discard)))
	if _, err := os.Stat(filepath.Join(s.Data, "pool.img")); err != nil {
		t.Skip("the pool is no btrfs in a file: ", err)
	}
	return s, c
}

// mark has a sandbox write a new marker: once into a small file, and many times into a large one.
func mark(t *testing.T, s *host.Server, b *sdk.Sandbox) (marker string) {
	t.Helper()
	marker = "mark-" + dayfly.NewID(dayfly.PrefixProcess)
	sh(t, b, fmt.Sprintf("printf %%s %s > small; yes %s | head -c %dM > large; sync", marker, marker, markerMiB))
	syncPool(t, s)
	return marker
}

func syncPool(t *testing.T, s *host.Server) {
	t.Helper()
	f, err := os.Open(filepath.Join(s.Data, "pool"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
}

// freeBytes is what statfs says of the pool.
func freeBytes(t *testing.T, s *host.Server) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Join(s.Data, "pool"), &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bfree) * st.Bsize
}

func TestTheDiskOfADeletedSandboxIsGone(t *testing.T) {
	t.Parallel()
	s, c := ownPool(t, false)
	free := freeBytes(t, s)
	b := box(t, c, sdk.CreateOptions{DiskMB: 1024})
	marker := mark(t, s, b)
	if used := free - freeBytes(t, s); used < markerMiB<<20*9/10 {
		t.Fatalf("%d MiB were written and %d are used", markerMiB, used>>20)
	}
	if got := search(t, s, b, marker); !strings.Contains(got, "/large") || !strings.Contains(got, "/small") {
		t.Fatalf("the search does not find what is there: %q", got)
	}
	if _, found := rawSearch(t, s, marker); !found {
		t.Fatal("the pool's file does not have what was written")
	}
	if err := b.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(s.Data, "pool", "disks", b.ID)); !os.IsNotExist(err) {
		t.Errorf("the disk is there after its DELETE answered (%v)", err)
	}
	began := time.Now()
	const overhead = 8 << 20 // of the pool's own trees
	within(t, reclaimMax, "bug 112: the space comes back", func() (bool, string) {
		missing := free - freeBytes(t, s)
		return missing <= overhead, fmt.Sprint(missing>>20, " MiB are missing")
	})
	within(t, reclaimMax-time.Since(began), "audit says so", func() (bool, string) {
		for _, o := range audit(t, s).Objects {
			if o.State == "reclaiming" {
				return false, o.Kind
			}
		}
		return true, ""
	})
	t.Logf("the space was back after %s", time.Since(began))

	const later, parallel = 20, 4
	var g errgroup.Group
	g.SetLimit(parallel)
	for range later {
		g.Go(func() error {
			b, err := c.Create(t.Context(), sdk.CreateOptions{DiskMB: 256})
			if err != nil {
				return err
			}
			if got := search(t, s, b, marker); got != "" {
				t.Errorf("%s finds what another one wrote: %.2000s", b.ID, got)
			}
			return b.Delete(t.Context())
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// search has root inside a sandbox look for the marker: in every file, in new files that nothing was written to, and on every
// block device that there is or that it can make, the pool's own among them. It gives where the marker is.
func search(t *testing.T, s *host.Server, b *sdk.Sandbox, marker string) string {
	t.Helper()
	half := len(marker) / 2 // so that the command itself is no find
	return sh(t, b, fmt.Sprintf(`
		m=%s; m=${m}%s
		fallocate -l 64M /tmp/new; truncate -s 64M /tmp/holes
		sudo grep -rlsaF --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr --devices=skip "$m" /
		%s
		for d in $(find /dev -type b) /tmp/device; do
			[ -e $d ] && sudo timeout 20 grep -laF "$m" $d 2>/dev/null
		done
		rm -f /tmp/new /tmp/holes
		true`, marker[:half], marker[half:], makeDevice(s)))
}

// makeDevice is a command that tries to make the device of the pool.
func makeDevice(s *host.Server) string {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		backing, _ := os.ReadFile(f)
		if strings.HasPrefix(string(backing), s.Data) {
			number, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "..", "dev"))
			return "sudo mknod /tmp/device b " + strings.ReplaceAll(strings.TrimSpace(string(number)), ":", " ") + " 2>/dev/null"
		}
	}
	return "true"
}

// rawSearch looks for the marker in the pool's file on the host, and tells how often it is there.
func rawSearch(t *testing.T, s *host.Server, marker string) (count int, found bool) {
	t.Helper()
	f, err := os.Open(filepath.Join(s.Data, "pool.img"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 4<<20)
	for at := int64(0); ; {
		start, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // only holes follow
			return count, count > 0
		}
		if err != nil {
			t.Fatal(err)
		}
		n, err := f.ReadAt(buf, start)
		if n == 0 {
			if errors.Is(err, io.EOF) {
				return count, count > 0
			}
			t.Fatal(err)
		}
		count += bytes.Count(buf[:n], []byte(marker))
		at = start + int64(n)
		if n == len(buf) {
			at -= int64(len(marker)) // it may lie across
		}
	}
}

func TestWithDiscardTheDataOfADeletedSandboxIsGoneFromTheHostsFile(t *testing.T) {
	t.Parallel()
	s, c := ownPool(t, true)
	const goneMax = 20 * time.Second
	b := box(t, c, sdk.CreateOptions{DiskMB: 1024})
	marker := mark(t, s, b)
	if _, found := rawSearch(t, s, marker); !found {
		t.Fatal("the pool's file does not have what was written")
	}
	if err := b.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	within(t, goneMax, "the marker is gone from the file", func() (bool, string) {
		count, found := rawSearch(t, s, marker)
		return !found, fmt.Sprint(count, " are there")
	})
	t.Logf("gone %s after the DELETE", time.Since(began))
}
