// Package rootfs makes what a machine's root is made of, as mounts without a path: the overlay of its image and its own disk,
// with ids mapped to the machine's range, and its directory of devices. Ids on disk stay native, so a disk belongs to no range.
//
// It makes no disk, and mounts nothing anywhere: descriptors go to the machine, which attaches them. To give every machine
// another device, add it to devices.
package rootfs

import (
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/driver/fsmount"
)

const (
	devAttrs    = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC
	lowerMax    = 64 // layers of one root file system
	devTmpfs    = "256k"
	deviceMode  = 0o666
	dirMode     = 0o755
	errSpoilt   = spoilt("the thread's identity could not be put back")
	fsconfigMax = 255 // bytes of one option's value
)

// spoilt is an error after which the thread must not run anything else.
type spoilt string

func (e spoilt) Error() string { return string(e) }

// devices are the nodes of every machine's /dev: name, major, minor.
var devices = []struct {
	name         string
	major, minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
}

var deviceLinks = []struct{ name, target string }{
	{"ptmx", "pts/ptmx"}, {"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"},
	{"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"}, {"core", "/proc/kcore"},
}

var deviceDirs = []string{"pts", "shm", "mqueue"}

// Maker makes root file systems. Its methods may be called from several goroutines.
type Maker struct {
	annex *annex // where overlays are made, or nil: anywhere
}

// NewMaker finds out how this kernel wants overlays made. Close releases what the Maker holds; what it made lives on.
func NewMaker() (*Maker, error) {
	m := &Maker{}
	if needsAnnex() {
		if err := m.Attach(); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Attach has overlays made as kernels before 6.15 want it: of layers that are mounted somewhere.
func (m *Maker) Attach() (err error) {
	if m.annex == nil {
		m.annex, err = openAnnex()
	}
	return err
}

// Close ends the Maker's thread.
func (m *Maker) Close() {
	if m.annex != nil {
		m.annex.close()
	}
}

// Mounts are the detached mounts of one machine. They never enter the host's mount table; closing the last descriptor of
// one undoes it. -1 is one that is not there.
type Mounts struct {
	Root, Dev int
}

// Close closes both.
func (m Mounts) Close() {
	for _, fd := range []int{m.Root, m.Dev} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// Make makes the mounts of a machine whose user namespace is userns and whose ids begin at base. The caller closes them.
func (m *Maker) Make(root dayfly.RootFS, userns int, base uint32) (Mounts, error) {
	out := Mounts{Root: -1, Dev: -1}
	undo := cleanup.Make(func() { out.Close() })
	defer undo.Clean()
	l, err := openLayers(root, userns)
	defer l.close() // the overlay holds what it needs
	if err != nil {
		return out, fmt.Errorf("make root file system: %w", err)
	}
	done := make(chan error, 1)
	go asOwner(base, done, func() (err error) {
		if m.annex == nil {
			if out.Root, err = overlay(l.detached()); err != nil {
				return fmt.Errorf("make root file system: %w", err)
			}
		}
		if out.Dev, err = deviceTree(); err != nil {
			return fmt.Errorf("make devices: %w", err)
		}
		return nil
	})
	err = <-done
	if m.annex != nil && err == nil {
		if out.Root, err = m.annex.overlay(l, base); err != nil {
			err = fmt.Errorf("make root file system: %w", err)
		}
	}
	if err != nil {
		return out, err
	}
	undo.Release()
	return out, nil
}

// asOwner runs f on a thread of its own as owning does.
func asOwner(base uint32, done chan<- error, f func() error) {
	runtime.LockOSThread()
	sound, err := owning(base, f)
	if sound {
		runtime.UnlockOSThread()
	} // else the thread ends with this goroutine
	done <- err
}

// owning runs f on the calling thread, which must be locked, while its files belong to base, the machine's root, with all the
// capabilities of this process: an overlay keeps the identity of whoever made it, and the kernel refuses an idmapped upper
// directory to an identity that its mapping does not know. A thread that is not sound afterwards must run nothing else.
func owning(base uint32, f func() error) (sound bool, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all [2]unix.CapUserData
	if err := unix.Capget(&header, &all[0]); err != nil {
		return true, fmt.Errorf("read capabilities: %w", err)
	}
	err = func() error {
		_, _ = unix.SetfsgidRetGid(int(base))
		_, _ = unix.SetfsuidRetUid(int(base)) // takes the file capabilities out of the effective set
		if err := unix.Capset(&header, &all[0]); err != nil {
			return fmt.Errorf("keep capabilities: %w", err)
		}
		return f()
	}()
	return identity(&header, &all) == nil, err
}

// identity makes the thread root again.
func identity(header *unix.CapUserHeader, all *[2]unix.CapUserData) error {
	_, _ = unix.SetfsuidRetUid(0)
	_, _ = unix.SetfsgidRetGid(0)
	uid, _ := unix.SetfsuidRetUid(-1) // changes nothing and tells the present one
	gid, _ := unix.SetfsgidRetGid(-1)
	if uid != 0 || gid != 0 {
		return errSpoilt
	}
	return unix.Capset(header, &all[0])
}

// layers are detached idmapped mounts of what an overlay is made of. Ids on disk are native: lower and upper directories
// are mapped for the machine.
type layers struct {
	upper int // or -1
	lower []int
}

// layerPaths are where the layers can be reached by name.
type layerPaths struct {
	upper string // directory with u and w in it
	lower []string
}

// openLayers opens them. The caller closes them, after an error too.
func openLayers(root dayfly.RootFS, userns int) (l layers, err error) {
	l.upper = -1
	if len(root.Lower) == 0 || len(root.Lower) > lowerMax {
		return l, fmt.Errorf("%d lower directories", len(root.Lower))
	}
	if l.upper, err = idmapped(root.Upper, userns); err != nil {
		return l, err
	}
	for _, dir := range root.Lower {
		fd, err := idmapped(dir, userns)
		if err != nil {
			return l, err
		}
		l.lower = append(l.lower, fd)
	}
	return l, nil
}

func (l layers) close() {
	for _, fd := range append(l.lower, l.upper) {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// detached names the layers by their descriptors.
func (l layers) detached() layerPaths {
	p := layerPaths{upper: fdPath(l.upper)}
	for _, fd := range l.lower {
		p.lower = append(p.lower, fdPath(fd))
	}
	return p
}

// overlay makes the root file system.
func overlay(p layerPaths) (int, error) {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open overlay: %w", err)
	}
	defer unix.Close(fs)
	if err := setLower(fs, p.lower); err != nil {
		return -1, err
	}
	// xino: a file of the image keeps its inode number when it is first written or linked, though it moves to another file
	// system then. Without it, git refuses to clone a repository that the image holds.
	for _, o := range [][2]string{{"upperdir", p.upper + "/u"}, {"workdir", p.upper + "/w"}, {"xino", "on"}} {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return -1, fmt.Errorf("set %s: %w", o[0], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("create overlay of %d lower directories: %w", len(p.lower), err)
	}
	// setuid programs work; device nodes of the image do not.
	m, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return -1, fmt.Errorf("mount overlay: %w", err)
	}
	return m, nil
}

// setLower names the lower directories: in one option, which every kernel takes, or one by one (kernel 6.5 and newer) when
// they do not fit into it. An older kernel says nothing to an option that it does not know until the overlay is created.
func setLower(fs int, lower []string) error {
	if joined := strings.Join(lower, ":"); len(joined) <= fsconfigMax {
		if err := unix.FsconfigSetString(fs, "lowerdir", joined); err != nil {
			return fmt.Errorf("set lowerdir: %w", err)
		}
		return nil
	}
	for _, dir := range lower {
		if err := unix.FsconfigSetString(fs, "lowerdir+", dir); err != nil {
			return fmt.Errorf("set one of %d lower directories: %w", len(lower), err)
		}
	}
	return nil
}

// idmapped gives a detached mount of a directory in which ids are translated by userns.
func idmapped(dir string, userns int) (int, error) {
	fd, err := fsmount.Clone(dir)
	if err != nil {
		return -1, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns)}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("map ids of %s: %w", dir, err)
	}
	return fd, nil
}

func fdPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// deviceTree makes the machine's /dev. It runs as the machine's root, so the nodes are its own; making them takes the
// host's CAP_MKNOD, which nothing inside has.
func deviceTree() (int, error) {
	m, err := fsmount.New("tmpfs", devAttrs, fsmount.Option{Key: "mode", Value: "0755"},
		fsmount.Option{Key: "size", Value: devTmpfs}, fsmount.Option{Key: "nr_inodes", Value: "256"})
	if err != nil {
		return -1, err
	}
	undo := cleanup.Make(func() { _ = unix.Close(m) })
	defer undo.Clean()
	if err := fillDevices(m); err != nil {
		return -1, err
	}
	undo.Release()
	return m, nil
}

func fillDevices(dir int) error {
	for _, d := range devices {
		if err := unix.Mknodat(dir, d.name, unix.S_IFCHR|deviceMode, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("make %s: %w", d.name, err)
		}
		if err := unix.Fchmodat(dir, d.name, deviceMode, 0); err != nil { // whatever the node's umask is
			return fmt.Errorf("make %s usable: %w", d.name, err)
		}
	}
	for _, l := range deviceLinks {
		if err := unix.Symlinkat(l.target, dir, l.name); err != nil {
			return fmt.Errorf("link %s: %w", l.name, err)
		}
	}
	for _, d := range deviceDirs {
		if err := unix.Mkdirat(dir, d, dirMode); err != nil {
			return fmt.Errorf("make %s: %w", d, err)
		}
	}
	return nil
}
