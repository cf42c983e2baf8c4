// Package fsmount makes file systems and mounts that have no path: each is a descriptor until it is attached somewhere, so
// nothing of a machine ever enters the host's mount table. It decides nothing: kinds, options and places are the caller's.
//
// To mount another kind of file system, call New with its name and options.
package fsmount

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Plain are the attributes of a mount that holds data only.
const Plain = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC

// Option is one key=value of a file system.
type Option struct{ Key, Value string }

// New makes a file system and a detached mount of it with attributes (MOUNT_ATTR_…). The caller closes the descriptor, which
// is close-on-exec; a mount that was not attached ends with it.
func New(kind string, attrs int, options ...Option) (int, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", kind, err)
	}
	defer unix.Close(fs)
	for _, o := range options {
		if err := unix.FsconfigSetString(fs, o.Key, o.Value); err != nil {
			return -1, fmt.Errorf("set %s of %s: %w", o.Key, kind, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("create %s: %w", kind, err)
	}
	m, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return -1, fmt.Errorf("mount %s: %w", kind, err)
	}
	return m, nil
}

// Clone gives a detached mount of the file or directory path, without what is mounted below it. The caller closes it.
func Clone(path string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	return fd, nil
}

// Restrict adds attributes to a mount that is not attached yet.
func Restrict(mount int, attrs uint64) error {
	return unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attrs})
}

// Attach puts a detached mount onto the open directory or file target.
func Attach(mount, target int) error {
	return unix.MoveMount(mount, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// AttachAt puts a detached mount onto a path.
func AttachAt(mount int, path string) error {
	return unix.MoveMount(mount, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// EnterRoot makes the mount root, which is attached over the old root directory or anywhere else, this mount namespace's root
// and lets go of everything that was visible before.
func EnterRoot(root int) error {
	if err := unix.Fchdir(root); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("drop the old root: %w", err)
	}
	return unix.Chdir("/")
}
