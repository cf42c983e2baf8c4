package agent

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Limits of copying.
const (
	copyChunk = 128 << 10
	xattrsMax = 64 << 10 // bytes of the names, and of one value, of a file's extended attributes
)

// copier copies a tree to another file system: contents with their holes, modes, times, links, names that are one file, owners
// as far as the user may give them away, and the user's own extended attributes.
type copier struct {
	ctx    context.Context
	top    int              // the directory that the copy is in
	linked map[inode]string // where the copy of a file with several names is, below top
	buf    []byte
}

func (c *copier) close() { c.buf = nil }

// copy copies one name, with all below it. rel is the copy's path below top.
func (c *copier) copy(from int, name string, to int, as, rel string, depth int) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if depth == 0 {
		return dayfly.Errorf(dayfly.CodeFileConflict, "the tree is deeper than %d directories", treeDepthMax)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fileError(name, err)
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && st.Nlink > 1 {
		key := inode{uint64(st.Dev), st.Ino}
		if first, ok := c.linked[key]; ok {
			return fileError(name, unix.Linkat(c.top, first, to, as, 0))
		}
		if len(c.linked) < linkedMax {
			c.linked[key] = rel
		}
	}
	var err error
	switch kind {
	case unix.S_IFDIR:
		err = c.dir(from, name, to, as, rel, depth)
	case unix.S_IFREG:
		err = c.file(from, name, to, as)
	case unix.S_IFLNK:
		err = c.link(from, name, to, as, &st)
	default: // a FIFO or a socket; the user can make no device
		if err = unix.Mknodat(to, as, kind|0o600, int(st.Rdev)); err == nil {
			err = c.node(to, as, &st)
		}
	}
	return fileError(name, err)
}

// dir copies a directory. Its own mode and times come last.
func (c *copier) dir(from int, name string, to int, as, rel string, depth int) error {
	src, err := open(from, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return err
	}
	if err := unix.Mkdirat(to, as, 0o700); err != nil {
		return err
	}
	dst, err := open(to, as, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	d := dirents{fd: src}
	for {
		sub, _, err := d.next()
		if err != nil {
			return err
		}
		if sub == nil {
			break
		}
		if err := c.copy(src, string(sub), dst, string(sub), rel+"/"+string(sub), depth-1); err != nil {
			return err
		}
	}
	return c.dress(src, dst, &st)
}

// file copies a regular file.
func (c *copier) file(from int, name string, to int, as string) error {
	src, err := openIn(from, name, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return dayfly.Errorf(dayfly.CodeFileConflict, "%s changed while it was moved", name)
	}
	fd, err := open(to, as, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	dst := os.NewFile(uintptr(fd), as)
	defer dst.Close()
	if err := c.content(src, dst, st.Size); err != nil {
		return err
	}
	return c.dress(int(src.Fd()), fd, &st)
}

// content copies what is in a file, and leaves out its holes.
func (c *copier) content(src, dst *os.File, size int64) error {
	if c.buf == nil {
		c.buf = make([]byte, copyChunk)
	}
	for at := int64(0); ; {
		data, end, err := nextData(int(src.Fd()), at)
		if err == io.EOF {
			return dst.Truncate(max(size, at))
		}
		if err != nil {
			return err
		}
		for at = data; at < end; {
			n, err := src.ReadAt(c.buf[:min(int64(len(c.buf)), end-at)], at)
			if n == 0 {
				if err == io.EOF { // it became shorter
					return dst.Truncate(at)
				}
				return err
			}
			if _, err := dst.WriteAt(c.buf[:n], at); err != nil {
				return err
			}
			at += int64(n)
			if err := c.ctx.Err(); err != nil {
				return err
			}
		}
	}
}

// nextData finds the next part of a file that is no hole. io.EOF: there is none.
func nextData(fd int, at int64) (start, end int64, err error) {
	start, err = unix.Seek(fd, at, unix.SEEK_DATA)
	if err == unix.ENXIO {
		return 0, 0, io.EOF
	}
	if err == nil {
		end, err = unix.Seek(fd, start, unix.SEEK_HOLE)
	}
	return start, end, err
}

// link copies a symbolic link.
func (c *copier) link(from int, name string, to int, as string, st *unix.Stat_t) error {
	target, err := readlink(from, name)
	if err != nil {
		return err
	}
	if err := unix.Symlinkat(target, to, as); err != nil {
		return err
	}
	return c.node(to, as, st)
}

// node gives owner, mode and times to a copy that is not opened.
func (c *copier) node(dir int, name string, st *unix.Stat_t) error {
	_ = unix.Fchownat(dir, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW) // as far as the user may
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(dir, name, st.Mode&0o777, 0); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// dress gives a copy what its original has beside its content. Whoever does not own it anew gets no rights of its owner.
func (c *copier) dress(src, dst int, st *unix.Stat_t) error {
	mode := st.Mode & 0o7777
	var now unix.Stat_t
	if err := unix.Fstat(dst, &now); err != nil {
		return err
	}
	if now.Uid != st.Uid || now.Gid != st.Gid {
		if unix.Fchown(dst, int(st.Uid), int(st.Gid)) != nil {
			_ = unix.Fchown(dst, -1, int(st.Gid))
			mode &^= unix.S_ISUID | unix.S_ISGID
		}
	}
	if err := copyAttributes(src, dst); err != nil {
		return err
	}
	if err := unix.Fchmod(dst, mode); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	return setTimes(dst, st.Atim, st.Mtim)
}

// copyAttributes copies the extended attributes in the user's own namespace, where the other file system has such.
func copyAttributes(src, dst int) error {
	names := make([]byte, xattrsMax)
	n, err := unix.Flistxattr(src, names)
	if err != nil || n == 0 {
		return nil // none, or none that could be told
	}
	value := make([]byte, xattrsMax)
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if !strings.HasPrefix(name, "user.") {
			continue
		}
		n, err := unix.Fgetxattr(src, name, value)
		if err != nil {
			return fmt.Errorf("read attribute %s: %w", name, err)
		}
		if err := unix.Fsetxattr(dst, name, value[:n], 0); err != nil && err != unix.EOPNOTSUPP {
			return fmt.Errorf("set attribute %s: %w", name, err)
		}
	}
	return nil
}
