// Package tree removes directory trees that hostile programs made: of any depth, with any mode and attribute, and never
// through a symbolic link or into another mount. It does not copy, list or walk for others.
package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// namesAtOnce is how many names of a directory are read in one go.
const namesAtOnce = 1024

const liftedPrefix = ".lifted-"

// RemoveAll removes the directory dir and everything in it; a missing dir is fine. It needs three descriptors whatever the
// depth, because it first lifts each directory that is not empty to the top. It blocks for as long as the tree is large and
// stops early when ctx ends. A mount inside is not entered: it is reported, and the rest is removed all the same.
func RemoveAll(ctx context.Context, dir string) error {
	top, err := openAt(unix.AT_FDCWD, dir)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer top.Close()
	r := remover{top: top}
	r.empty(ctx, top)
	for n := 0; n < r.lifted && ctx.Err() == nil; n++ {
		r.emptyLifted(ctx, liftedName(n))
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	if r.err != nil {
		return fmt.Errorf("remove %s: %w", dir, r.err)
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// remover removes what is below top.
type remover struct {
	top    *os.File
	lifted int   // directories renamed to top/liftedName(0…lifted-1), waiting to be emptied
	err    error // the first failure, or nil
}

// liftedName is not secret: where the tree has an entry of that name, lift takes the next number.
func liftedName(n int) string { return liftedPrefix + strconv.Itoa(n) }

func (r *remover) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *remover) emptyLifted(ctx context.Context, name string) {
	d, err := openAt(int(r.top.Fd()), name)
	if err != nil {
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
			r.fail(err)
		}
		return
	}
	defer d.Close()
	r.empty(ctx, d)
	if err := remove(int(r.top.Fd()), name, unix.AT_REMOVEDIR); err != nil && ctx.Err() == nil {
		r.fail(err)
	}
}

// empty removes or lifts everything in d. When d is top itself, what was lifted stays for later. Removing while reading makes
// some file systems skip names, so it passes over d until a pass removes nothing.
func (r *remover) empty(ctx context.Context, d *os.File) {
	for gone := 0; ctx.Err() == nil; {
		names, err := d.Readdirnames(namesAtOnce)
		for _, name := range names {
			if r.entry(int(d.Fd()), name) {
				gone++
			}
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			if gone == 0 {
				return
			}
			gone = 0
			_, err = d.Seek(0, io.SeekStart)
		}
		if err != nil {
			r.fail(err)
			return
		}
	}
}

// entry removes one name, or lifts it to the top when it is a directory with content. It tells whether the name is gone.
func (r *remover) entry(dir int, name string) bool {
	err := remove(dir, name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		if err = remove(dir, name, unix.AT_REMOVEDIR); errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			return r.lift(dir, name)
		}
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		r.fail(fmt.Errorf("%q: %w", name, err))
		return false
	}
	return true
}

// lift renames the directory to a new name directly below top.
func (r *remover) lift(dir int, name string) bool {
	top := int(r.top.Fd())
	if dir == top && isLifted(name, r.lifted) {
		return false
	}
	for {
		err := unix.Renameat2(dir, name, top, liftedName(r.lifted), unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EPERM) && unprotect(dir, name) == nil {
			err = unix.Renameat2(dir, name, top, liftedName(r.lifted), unix.RENAME_NOREPLACE)
		}
		if errors.Is(err, unix.EEXIST) { // the tree's own entry of that name; it is emptied like a lifted one
			r.lifted++
			continue
		}
		if err != nil {
			r.fail(fmt.Errorf("%q: %w", name, err))
			return false
		}
		r.lifted++
		return true
	}
}

func isLifted(name string, below int) bool {
	n, err := strconv.Atoi(strings.TrimPrefix(name, liftedPrefix))
	return err == nil && n >= 0 && n < below && liftedName(n) == name
}

// remove unlinks, taking the immutable and append-only marks off if they stand in the way.
func remove(dir int, name string, flags int) error {
	err := unix.Unlinkat(dir, name, flags)
	if !errors.Is(err, unix.EPERM) || unprotect(dir, name) != nil {
		return err
	}
	return unix.Unlinkat(dir, name, flags)
}

// unprotect clears the immutable and append-only marks of dir and of name in it. An error means that nothing was cleared.
func unprotect(dir int, name string) error {
	err := unprotectFD(dir)
	if fd, openErr := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); openErr == nil {
		if unprotectFD(fd) == nil {
			err = nil
		}
		_ = unix.Close(fd)
	}
	return err
}

func unprotectFD(fd int) error {
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	const marks = unix.STATX_ATTR_IMMUTABLE | unix.STATX_ATTR_APPEND // the same bits as FS_IMMUTABLE_FL and FS_APPEND_FL
	if flags&marks == 0 {
		return unix.EPERM
	}
	return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags&^marks))
}

// openAt opens a directory without following a final link and, below a descriptor, without entering a mount.
func openAt(dir int, name string) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC}
	if dir != unix.AT_FDCWD {
		how.Resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV
	}
	for {
		fd, err := unix.Openat2(dir, name, &how)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: name, Err: err}
		}
		return os.NewFile(uintptr(fd), name), nil
	}
}
