package agent

import (
	"context"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Mkdir implements agentwire.Machine.
func (a *Agent) Mkdir(ctx context.Context, name string, mode *fs.FileMode, parents bool) (info dayfly.FileInfo, err error) {
	abs, err := absolute(a.cfg.User.Home, name)
	if err != nil {
		return info, err
	}
	var mkErr error
	err = a.threads.quick(ctx, a.fileRights(), func() { info, mkErr = mkdir(abs, mode, parents) })
	if err == nil {
		err = fileError(name, mkErr)
	}
	return info, err
}

func mkdir(abs string, mode *fs.FileMode, parents bool) (dayfly.FileInfo, error) {
	above, last := lastName(abs)
	if last == "" { // ".", ".." or the root: it can only be there already
		return madeBefore(abs, parents)
	}
	up, err := openParent(above, parents)
	if err == unix.ENOENT {
		return dayfly.FileInfo{}, dayfly.Errorf(dayfly.CodeFileConflict, "%s: there is no directory %s", abs, path.Clean(above)).
			WithHint("ask for parents to have it made").WithCause(err)
	}
	if err != nil {
		return dayfly.FileInfo{}, err
	}
	defer unix.Close(up)
	err = unix.Mkdirat(up, last, dirPerm)
	if err == unix.EEXIST {
		return madeBefore(abs, parents)
	}
	if err != nil {
		return dayfly.FileInfo{}, err
	}
	fd, err := open(up, last, belowFlags, 0)
	if err != nil {
		return dayfly.FileInfo{}, err
	}
	defer unix.Close(fd)
	if mode != nil {
		if err := chmodOpen(fd, rawMode(*mode)); err != nil {
			_ = unix.Unlinkat(up, last, unix.AT_REMOVEDIR)
			return dayfly.FileInfo{}, err
		}
	}
	return describe(fd, abs)
}

// lastName splits a path before its last name, which is empty when the path ends in none of its own.
func lastName(abs string) (above, last string) {
	above, last = path.Split(strings.TrimRight(abs, "/"))
	if last == "." || last == ".." {
		return above, ""
	}
	return above, last
}

// openParent opens a directory to do something in it, and with make makes it if it is missing.
func openParent(dir string, make bool) (int, error) {
	if make {
		return makeDirs(dir)
	}
	return open(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
}

// madeBefore answers for something that is there already: with parents a directory, or a link to one, is what was asked for.
func madeBefore(abs string, parents bool) (dayfly.FileInfo, error) {
	if !parents {
		return dayfly.FileInfo{}, unix.EEXIST
	}
	fd, err := open(unix.AT_FDCWD, abs, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == unix.ENOTDIR || err == unix.ENOENT { // a file, or a link to nothing
		err = unix.EEXIST
	}
	if err != nil {
		return dayfly.FileInfo{}, err
	}
	defer unix.Close(fd)
	return describe(fd, abs)
}
