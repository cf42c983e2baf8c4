package agent

import (
	"context"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Limits of walking trees.
const (
	treeDepthMax = 512 // directories below each other; each holds a descriptor
	namesBatch   = 512 // names read from a directory at once
)

// Remove implements agentwire.Machine.
func (a *Agent) Remove(ctx context.Context, name string, recursive bool) error {
	abs, err := absolute(a.cfg.User.Home, name)
	if err != nil {
		return err
	}
	parent, base := path.Split(path.Clean(abs))
	if base == "" || base == "." || base == ".." {
		return dayfly.Errorf(dayfly.CodeFileConflict, "the root directory cannot be removed")
	}
	run := a.threads.quick
	if recursive {
		run = a.threads.long
	}
	var rmErr error
	err = run(ctx, a.fileRights(), func() {
		var dir int
		if dir, rmErr = open(unix.AT_FDCWD, parent, unix.O_PATH|unix.O_DIRECTORY, 0); rmErr != nil {
			return
		}
		defer unix.Close(dir)
		if rmErr = removeOne(dir, base); recursive && isNotEmpty(rmErr) {
			rmErr = removeTree(ctx, dir, base, treeDepthMax)
		}
	})
	if err == nil {
		err = fileError(name, rmErr)
	}
	return err
}

// removeOne removes a name that is not a directory with something in it.
func removeOne(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if err == unix.EISDIR || err == unix.EPERM {
		if dirErr := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); dirErr != unix.ENOTDIR {
			return dirErr
		}
	}
	return err
}

// isNotEmpty tells that a directory was not removed because of what is in it.
func isNotEmpty(err error) bool { return err == unix.ENOTEMPTY || err == unix.EEXIST }

// openSameDevice opens a directory for reading unless it is of another file system than the one it is in.
func openSameDevice(parent int, name string) (int, error) {
	fd, err := open(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, err
	}
	var in, here unix.Stat_t
	err = unix.Fstat(parent, &in)
	if err == nil {
		err = unix.Fstat(fd, &here)
	}
	if err == nil && in.Dev != here.Dev {
		err = unix.EXDEV
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// removeTree removes a directory with everything below it on its own file system. It never follows a link.
func removeTree(ctx context.Context, parent int, name string, depth int) error {
	if depth == 0 {
		return dayfly.Errorf(dayfly.CodeFileConflict, "the tree is deeper than %d directories", treeDepthMax)
	}
	fd, err := openHow(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_XDEV)
	if err == unix.ENOSYS {
		fd, err = openSameDevice(parent, name)
	}
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	for {
		names, readErr := dir.Readdirnames(namesBatch)
		for _, n := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			err := removeOne(fd, n)
			if isNotEmpty(err) {
				err = removeTree(ctx, fd, n, depth-1)
			}
			if err != nil && err != unix.ENOENT {
				return err
			}
		}
		if readErr == io.EOF {
			break
		}
		if readErr != nil {
			return readErr
		}
	}
	return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
}
