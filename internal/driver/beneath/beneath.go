// Package beneath makes and opens what a machine needs in its root file system, before anything of the machine runs. That root
// comes from an image and is hostile: every path in it is opened beneath the root's descriptor, without magic links, and what
// stands in the way of a mount point is replaced.
//
// It knows no driver and mounts nothing. To put another thing into every machine's root, add a function here and call it where
// the drivers call WriteFiles.
package beneath

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// How a path is resolved.
const (
	Strict = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	Inside = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS // links are followed, but never out of the root

	fileMode = 0o644
	umask    = 0o022
	againMax = 64 // times that a resolution is tried again while the kernel says EAGAIN
	dupMin   = 4  // lowest number of a copied descriptor: those below are agreed upon with others
)

// File is one file to write into a root file system.
type File struct {
	Path    string `json:"path"` // absolute inside
	Content []byte `json:"content"`
}

// Open opens name beneath root. The kernel answers EAGAIN when a rename elsewhere on the host raced the resolution.
func Open(root int, name string, flags int, mode, resolve uint64) (fd int, err error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Mode: mode, Resolve: resolve}
	for range againMax {
		fd, err = unix.Openat2(root, name, &how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return fd, err
}

// OpenDir opens the directory name beneath root, for mounting on it. What is missing is made; what is there but no
// directory (an image may ship /proc as a link, /dev as a file) is removed first.
func OpenDir(root int, name string, mode uint32) (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY
	fd, err := Open(root, name, flags, 0, Strict)
	if err == nil {
		return fd, nil
	}
	at, err := unix.FcntlInt(uintptr(root), unix.F_DUPFD_CLOEXEC, dupMin)
	if err != nil {
		return -1, err
	}
	for part := range strings.SplitSeq(name, "/") {
		next, err := Open(at, part, flags, 0, Strict)
		if err != nil {
			next, err = replaceByDir(at, part, mode)
		}
		_ = unix.Close(at)
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}

// replaceByDir makes the directory name in the directory at, in place of whatever else has that name.
func replaceByDir(at int, name string, mode uint32) (int, error) {
	if err := unix.Unlinkat(at, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return -1, fmt.Errorf("remove %s, which is no directory: %w", name, err)
	}
	if err := unix.Mkdirat(at, name, mode); err != nil {
		return -1, fmt.Errorf("make directory %s: %w", name, err)
	}
	return Open(at, name, unix.O_PATH|unix.O_DIRECTORY, 0, Strict)
}

// WriteFiles writes the node's files and makes /tmp usable. It must run while nothing but the root file system itself can be
// reached through its descriptor: no /proc, no device. It leaves the usual umask, 022.
func WriteFiles(root int, files []File) error {
	unix.Umask(0)
	defer unix.Umask(umask)
	for _, f := range files {
		if err := writeFile(root, f); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return makeTmp(root)
}

// makeTmp makes /tmp a directory of the root file system itself, so that what is written there counts as disk.
func makeTmp(root int) error {
	var st unix.Stat_t
	fd, err := Open(root, "tmp", unix.O_PATH|unix.O_DIRECTORY, 0, Inside)
	if err != nil {
		if fd, err = OpenDir(root, "tmp", 0o1777); err != nil {
			return fmt.Errorf("make /tmp: %w", err)
		}
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("look at /tmp: %w", err)
	}
	if st.Mode&0o7777 == 0o1777 {
		return nil
	}
	dir, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /tmp: %w", err)
	}
	defer unix.Close(dir)
	if err := unix.Fchmod(dir, 0o1777); err != nil {
		return fmt.Errorf("let everybody write to /tmp: %w", err)
	}
	return nil
}

// writeFile writes one file, in place of whatever has that name. Links in the directory part are followed inside the root,
// as a program inside would follow them; the last one never is.
func writeFile(root int, f File) error {
	clean := path.Clean("/" + f.Path)
	if clean == "/" {
		return errors.New("no file name")
	}
	dir, err := parent(root, path.Dir(clean))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	name := path.Base(clean)
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW
	if err := unix.Unlinkat(dir, name, 0); errors.Is(err, unix.EISDIR) {
		if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err != nil {
			return fmt.Errorf("remove the directory of that name: %w", err)
		}
	} else if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the old one: %w", err)
	}
	fd, err := Open(dir, name, flags, fileMode, Strict)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	defer unix.Close(fd)
	for done := 0; done < len(f.Content); {
		n, err := unix.Write(fd, f.Content[done:])
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		done += n
	}
	return nil
}

// parent opens the directory that a file goes into and makes it when it is missing.
func parent(root int, dir string) (int, error) {
	name := "." + dir
	fd, err := Open(root, name, unix.O_PATH|unix.O_DIRECTORY, 0, Inside)
	if err == nil {
		return fd, nil
	}
	if fd, err = OpenDir(root, strings.Trim(dir, "/"), 0o755); err != nil {
		return -1, fmt.Errorf("make its directory: %w", err)
	}
	return fd, nil
}
