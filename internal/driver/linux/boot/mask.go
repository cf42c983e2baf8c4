package boot

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/driver/beneath"
	"dayfly.dev/dayfly/internal/driver/channel"
	"dayfly.dev/dayfly/internal/driver/fsmount"
)

// maskPaths hides and write-protects parts of /proc and /sys. Both are mounts of our own by now, so no path in them was
// chosen by the image. A path that this kernel does not have is skipped.
func (b *boot) maskPaths() error {
	null, err := beneath.Open(b.fds[fdDev], "null", unix.O_PATH, 0, beneath.Strict)
	if err != nil {
		return fmt.Errorf("open null device: %w", err)
	}
	defer unix.Close(null)
	for _, p := range b.cfg.ReadOnly {
		if err := b.overmount(p, b.readOnlyOf); err != nil {
			return fmt.Errorf("protect %s: %w", p, err)
		}
	}
	for _, p := range b.cfg.Masked {
		hide := func(target int) (int, error) {
			var st unix.Stat_t
			if err := unix.Fstat(target, &st); err != nil {
				return -1, err
			}
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				return b.emptyDir()
			}
			return unix.OpenTree(null, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
		}
		if err := b.overmount(p, hide); err != nil {
			return fmt.Errorf("mask %s: %w", p, err)
		}
	}
	return nil
}

// overmount mounts what cover makes onto an absolute path below /proc or /sys.
func (b *boot) overmount(p string, cover func(target int) (int, error)) error {
	target, err := b.openPseudo(p)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(target)
	mount, err := cover(target)
	if err != nil {
		return err
	}
	defer unix.Close(mount)
	return fsmount.Attach(mount, target)
}

func (b *boot) openPseudo(p string) (int, error) {
	if name, ok := strings.CutPrefix(p, "/proc/"); ok {
		return beneath.Open(b.mounts.proc, name, unix.O_PATH, 0, beneath.Strict)
	}
	if name, ok := strings.CutPrefix(p, "/sys/"); ok {
		return beneath.Open(b.mounts.sys, name, unix.O_PATH, 0, beneath.Strict)
	}
	return -1, errors.New("neither in /proc nor in /sys")
}

// readOnlyOf gives a read-only mount of what target already shows.
func (b *boot) readOnlyOf(target int) (int, error) {
	mount, err := unix.OpenTree(target, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("clone: %w", err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | fsmount.Plain}
	if err := unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		_ = unix.Close(mount)
		return -1, fmt.Errorf("make read-only: %w", err)
	}
	return mount, nil
}

// emptyDir gives a mount of an empty read-only directory. All masked directories share one file system: its first mount is
// used as it is, and once that is attached the kernel lets it be cloned.
func (b *boot) emptyDir() (int, error) {
	if !b.emptyUsed {
		b.emptyUsed = true
		return unix.FcntlInt(uintptr(b.mounts.empty), unix.F_DUPFD_CLOEXEC, channel.FD+1)
	}
	return unix.OpenTree(b.mounts.empty, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
}
