package faults_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/test/host"
)

var figures = flag.Int("figures", 0, "measure with this many sandboxes; 0: not at all")

// How the figures are taken.
const (
	figureWindow = 10                    // seconds in which all leases end
	figureMakers = 8                     // creates at once
	figureEach   = 60 * time.Millisecond // that one create may take on average
)

// TestFigures prints how late sandboxes die while their enforcers are well, stopped or dead, and how long a restart takes.
func TestFigures(t *testing.T) {
	if *figures == 0 {
		t.Skip("-figures N measures; it takes minutes, and a quiet host")
	}
	for _, tt := range []struct {
		name   string
		hinder func(t *testing.T, s *host.Server)
		goal   string
	}{
		{"server up", func(*testing.T, *host.Server) {}, "p99 ≤ 100 ms, max ≤ 500 ms"},
		{"server stopped by SIGSTOP", func(t *testing.T, s *host.Server) { _ = s.Stop() }, "p99 ≤ 100 ms, max ≤ 500 ms"},
		{"server killed", crash, "p99 ≤ 100 ms, max ≤ 500 ms"},
		{"server and warden killed", down, "max ≤ 3 s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			late := w.lateness(t, *figures, func() { tt.hinder(t, w.s) })
			t.Logf("FIGURE lateness, %s: %s (goal: %s)", tt.name, spread(late), tt.goal)
			_ = w.s.Continue()
		})
	}
	t.Run("restart", func(t *testing.T) {
		w := newWorld(t)
		w.crowd(t, 200, func(int) int { return 600 })
		var took []time.Duration
		for range 5 {
			crash(t, w.s)
			began := time.Now()
			restart(t, w.s)
			if a := w.do("GET", "/readyz", "", nil); a.status != 200 {
				t.Errorf("not ready: %s", a)
			}
			took = append(took, time.Since(began))
		}
		t.Logf("FIGURE kill -9 and `dayfly up` to ready, 200 sandboxes: %s (goal: ≤ 2 s)", spread(took))
	})
}

// spread describes a sample.
func spread(d []time.Duration) string {
	if len(d) == 0 {
		return "n=0"
	}
	slices.Sort(d)
	at := func(p int) time.Duration { return d[min(len(d)-1, len(d)*p/100)].Round(100 * time.Microsecond) }
	return fmt.Sprintf("n=%d min %s p50 %s p95 %s p99 %s max %s", len(d), d[0].Round(100*time.Microsecond), at(50), at(95), at(99), at(100))
}

// crowd makes n sandboxes; seconds gives the lease of each.
func (w *world) crowd(t *testing.T, n int, seconds func(i int) int) []record {
	t.Helper()
	all := make([]record, n)
	var g errgroup.Group
	g.SetLimit(figureMakers)
	for i := range n {
		g.Go(func() error {
			a := w.do("POST", "/v1/sandboxes", "", map[string]any{"timeout_seconds": seconds(i), "memory_mb": 128, "disk_mb": 256})
			if a.status != 201 {
				return fmt.Errorf("create %d: %s", i, a)
			}
			return a.into(&all[i])
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return all
}

// lateness makes n sandboxes that are due within one window, hinders, and measures from each deadline to its last death.
func (w *world) lateness(t *testing.T, n int, hinder func()) []time.Duration {
	t.Helper()
	due := time.Now().Add(time.Duration(n)*figureEach + 8*time.Second)
	all := w.crowd(t, n, func(i int) int {
		left := time.Until(due.Add(time.Duration(i) * figureWindow * time.Second / time.Duration(n)))
		return max(5, int(left/time.Second))
	})
	watch, err := newDeaths(w.s, all)
	if err != nil {
		t.Fatal(err)
	}
	defer watch.close()
	hinder()
	deaths, err := watch.wait(time.Until(due) + (figureWindow+30)*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var late []time.Duration
	for _, r := range all {
		at, ok := deaths[r.ID]
		if !ok {
			t.Errorf("%s, due %s, lives", r.ID, clock(r.ExpiresAt))
			continue
		}
		late = append(late, at.Sub(r.ExpiresAt))
	}
	return late
}

// deaths waits on the control groups of many sandboxes at once.
type deaths struct {
	epoll int
	files map[int32]*os.File
	ids   map[int32]string
	once  sync.Once
}

func newDeaths(s *host.Server, all []record) (*deaths, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	d := &deaths{epoll: epoll, files: map[int32]*os.File{}, ids: map[int32]string{}}
	for _, r := range all {
		paths, _ := filepath.Glob("/sys/fs/cgroup/*/dayfly-" + s.Installation + "/" + r.ID + "/cgroup.events")
		pure, _ := filepath.Glob("/sys/fs/cgroup/dayfly-" + s.Installation + "/" + r.ID + "/cgroup.events")
		if paths = append(paths, pure...); len(paths) != 1 {
			return d, fmt.Errorf("%s has %d control groups to watch", r.ID, len(paths))
		}
		f, err := os.Open(paths[0])
		if err != nil {
			return d, err
		}
		fd := int32(f.Fd())
		d.files[fd], d.ids[fd] = f, r.ID
		if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{Events: unix.EPOLLPRI, Fd: fd}); err != nil {
			return d, err
		}
	}
	return d, nil
}

func (d *deaths) close() {
	d.once.Do(func() {
		for _, f := range d.files {
			_ = f.Close()
		}
		_ = unix.Close(d.epoll)
	})
}

// wait gives when each of them had no process any more.
func (d *deaths) wait(limit time.Duration) (map[string]time.Time, error) {
	dead := map[string]time.Time{}
	look := func(fd int32, at time.Time) {
		b := make([]byte, 256)
		n, _ := d.files[fd].ReadAt(b, 0) // fails once the group is gone
		if id := d.ids[fd]; dead[id].IsZero() && !strings.Contains(string(b[:n]), "populated 1") {
			dead[id] = at
			_ = unix.EpollCtl(d.epoll, unix.EPOLL_CTL_DEL, int(fd), nil)
		}
	}
	for deadline := time.Now().Add(limit); len(dead) < len(d.ids) && time.Now().Before(deadline); {
		events := make([]unix.EpollEvent, 64)
		n, err := unix.EpollWait(d.epoll, events, 100 /* ms */)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return dead, err
		}
		now := time.Now()
		for _, ev := range events[:n] {
			look(ev.Fd, now)
		}
	}
	return dead, nil
}
