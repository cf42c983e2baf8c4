package agent

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// pathMax is the longest path in bytes that the kernel takes.
const pathMax = 4095

// absolute makes a path absolute: a relative one starts at home. It refuses what no path can be.
func absolute(home, name string) (string, error) {
	switch {
	case name == "":
		return "", dayfly.Errorf(dayfly.CodeInvalid, "the path is empty")
	case strings.ContainsRune(name, 0):
		return "", dayfly.Errorf(dayfly.CodeInvalid, "the path holds a NUL byte")
	}
	if name[0] != '/' {
		name = strings.TrimSuffix(home, "/") + "/" + name
	}
	if len(name) > pathMax {
		return "", dayfly.Errorf(dayfly.CodeInvalid, "the path has %d bytes; the limit is %d", len(name), pathMax)
	}
	return name, nil
}

// open opens a path without ever following a magic link, such as those in /proc that lead out of the file system's names.
func open(dir int, name string, flags int, mode uint32) (int, error) {
	return openHow(dir, name, flags, mode, unix.RESOLVE_NO_MAGICLINKS)
}

func openHow(dir int, name string, flags int, mode uint32, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Mode: uint64(mode), Resolve: resolve}
	for {
		fd, err := unix.Openat2(dir, name, &how)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != unix.ENOSYS {
			return fd, err
		}
		break
	}
	if resolve&^unix.RESOLVE_NO_MAGICLINKS != 0 {
		return -1, unix.ENOSYS // the caller has a way of its own
	}
	return resolveOpen(dir, name, flags, mode)
}

// fileError says what went wrong with a path, in the words of the API.
func fileError(name string, err error) error {
	if err == nil {
		return nil
	}
	var e *dayfly.Error
	if errors.As(err, &e) {
		return err
	}
	code := dayfly.CodeInternal
	switch {
	case errors.Is(err, unix.ENOENT):
		code = dayfly.CodeFileNotFound
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		code = dayfly.CodeFilePermission
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		code = dayfly.CodeDiskFull
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST),
		errors.Is(err, unix.ELOOP), errors.Is(err, unix.EBUSY), errors.Is(err, unix.ETXTBSY), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENXIO):
		code = dayfly.CodeFileConflict
	case errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EILSEQ):
		code = dayfly.CodeInvalid
	default:
		return err
	}
	return dayfly.Errorf(code, "%s: %s", name, errnoText(err)).WithCause(err)
}
