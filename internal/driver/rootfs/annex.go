package rootfs

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/driver/fsmount"
	"dayfly.dev/dayfly/internal/driver/trial"
)

// Names in the annex's root directory.
const (
	annexUpper = "/upper"
	annexInode = "256" // inodes of its root directory

	detachedMajor = 6 // first kernel whose overlays take layers that are mounted nowhere
	detachedMinor = 15
)

// annex is a thread in a mount namespace that nothing else is in, with an empty root directory. Before kernel 6.15 an overlay
// takes only layers that are mounted in the namespace of whoever makes it: they are mounted here for that moment, so they
// never enter the host's mount table and nothing of the host is kept busy.
type annex struct {
	work   chan func()
	gone   chan struct{} // closed when the thread has ended
	spoilt bool          // the thread could not be put back and does no more; it alone reads and writes this
}

// openAnnex starts the thread.
func openAnnex() (*annex, error) {
	a := &annex{work: make(chan func()), gone: make(chan struct{})}
	ready := make(chan error, 1)
	go a.run(ready)
	if err := <-ready; err != nil {
		<-a.gone
		return nil, fmt.Errorf("make a mount namespace: %w", err)
	}
	return a, nil
}

// run is the thread's life. The thread ends with it: it is never unlocked.
func (a *annex) run(ready chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() { // the process's first thread never ends
		go a.run(ready) // on another one, because this one is taken until then
		<-a.gone
		runtime.UnlockOSThread()
		return
	}
	defer close(a.gone)
	err := enterAnnex()
	ready <- err
	if err != nil {
		return
	}
	for f := range a.work {
		f()
	}
}

// close ends the thread and, with it, the namespace. do must not be called afterwards.
func (a *annex) close() {
	close(a.work)
	<-a.gone
}

// do runs f on the thread, one at a time.
func (a *annex) do(f func() error) error {
	done := make(chan error, 1)
	a.work <- func() {
		if a.spoilt {
			done <- errSpoilt
			return
		}
		done <- f()
	}
	return <-done
}

// needsAnnex tells whether this kernel refuses layers that are mounted nowhere. An old one is not tried, because it would
// complain in the kernel's log; on a newer one, what else may be wrong shows when a machine is made.
func needsAnnex() bool {
	if !trial.KernelAtLeast(detachedMajor, detachedMinor) {
		return true
	}
	fd, err := emptyTmpfs()
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	for _, dir := range []string{"u", "w", "l"} {
		if err := unix.Mkdirat(fd, dir, dirMode); err != nil {
			return false
		}
	}
	root, err := overlay(layerPaths{upper: fdPath(fd), lower: []string{fdPath(fd) + "/l"}})
	if err == nil {
		_ = unix.Close(root)
	}
	return errors.Is(err, unix.EINVAL)
}

// enterAnnex takes the calling thread into its namespace.
func enterAnnex() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("leave the host's: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cut it off from the host's: %w", err)
	}
	root, err := emptyTmpfs()
	if err != nil {
		return err
	}
	defer unix.Close(root)
	if err := fsmount.AttachAt(root, "/"); err != nil {
		return fmt.Errorf("mount its root: %w", err)
	}
	if err := fsmount.EnterRoot(root); err != nil {
		return err
	}
	for i := range lowerMax {
		if err := unix.Mkdir(annexLower(i), dirMode); err != nil {
			return fmt.Errorf("fill its root: %w", err)
		}
	}
	return unix.Mkdir(annexUpper, dirMode)
}

func annexLower(i int) string { return "/" + strconv.Itoa(i) }

func emptyTmpfs() (int, error) {
	return fsmount.New("tmpfs", fsmount.Plain, fsmount.Option{Key: "mode", Value: "0755"}, fsmount.Option{Key: "nr_inodes", Value: annexInode})
}

// overlay makes an overlay of layers on behalf of base, the machine's root.
func (a *annex) overlay(l layers, base uint32) (root int, err error) {
	root = -1
	err = a.do(func() (err error) {
		paths := layerPaths{upper: annexUpper}
		mounted := []string{}
		defer func() {
			for _, path := range mounted { // the overlay has its own copies
				err = errors.Join(err, unix.Unmount(path, unix.MNT_DETACH))
			}
		}()
		for i, fd := range l.lower {
			paths.lower = append(paths.lower, annexLower(i))
			if err := mountAt(fd, annexLower(i)); err != nil {
				return err
			}
			mounted = append(mounted, annexLower(i))
		}
		if err := mountAt(l.upper, annexUpper); err != nil {
			return err
		}
		mounted = append(mounted, annexUpper)
		sound, err := owning(base, func() (err error) {
			root, err = overlay(paths)
			return err
		})
		if !sound {
			a.spoilt = true
		}
		return err
	})
	return root, err
}

func mountAt(fd int, path string) error {
	if err := fsmount.AttachAt(fd, path); err != nil {
		return fmt.Errorf("mount a layer: %w", err)
	}
	return nil
}
