package agent

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Limits of archives unpacked here.
const (
	entriesMax   = 2 << 20
	entryMax     = 1 << 40  // bytes of one file
	dirsTimedMax = 64 << 10 // directories that get mode and time of the archive after everything in them
	holeBlock    = 4 << 10  // zeros of a sparse file that become a hole
)

// WriteArchive implements agentwire.Machine. Nothing is ever reached through a link below the directory, and an existing
// file is replaced by a new one, so nothing outside the directory is written, whatever the archive or the sandbox holds.
func (a *Agent) WriteArchive(ctx context.Context, name string, r io.Reader) error {
	abs, err := absolute(a.cfg.User.Home, name)
	if err != nil {
		return err
	}
	var unpackErr error
	err = a.threads.long(ctx, a.fileRights(), func() {
		var root int
		if root, unpackErr = makeDirs(strings.TrimRight(abs, "/") + "/"); unpackErr != nil {
			return
		}
		defer unix.Close(root)
		u := &unpacker{ctx: ctx, root: root, buf: make([]byte, archiveBuf), parent: -1}
		defer u.close()
		unpackErr = u.all(r)
	})
	a.children.settle() // what was unpacked can be executed from now on
	if err == nil {
		err = fileError(name, unpackErr)
	}
	return err
}

// unpacker unpacks one archive.
type unpacker struct {
	ctx    context.Context
	root   int
	buf    []byte
	parent int    // the directory that was used last, or -1
	within string // its path below the root
	dirs   []madeDir
}

// madeDir is a directory whose mode and time are still to be set.
type madeDir struct {
	rel  string
	mode uint32
	time time.Time
}

func (u *unpacker) close() {
	if u.parent >= 0 {
		_ = unix.Close(u.parent)
	}
}

// refused is the error of an entry that no honest archive holds.
func refused(h *tar.Header, why string) error {
	return dayfly.Errorf(dayfly.CodeInvalid, "archive entry %q %s", h.Name, why).WithDetail("entry", h.Name)
}

// all unpacks every entry and then reads to the end, so that a complete upload is told from one that broke off.
func (u *unpacker) all(r io.Reader) error {
	tr := tar.NewReader(r)
	for count := 0; ; count++ {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = u.ctx.Err()
		}
		if err != nil {
			return badArchive(err)
		}
		if count == entriesMax {
			return dayfly.Errorf(dayfly.CodeTooLarge, "the archive has more than %d entries", entriesMax)
		}
		if err := u.entry(h, tr); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return badArchive(err)
	}
	for i := len(u.dirs) - 1; i >= 0; i-- { // inner ones first
		if err := u.finishDir(u.dirs[i]); err != nil {
			return err
		}
	}
	return nil
}

// badArchive tells an archive that is no tar from one that did not arrive whole.
func badArchive(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrInsecurePath) || errors.Is(err, tar.ErrFieldTooLong) || err == io.ErrUnexpectedEOF {
		return dayfly.Errorf(dayfly.CodeInvalid, "the archive is not a complete tar file").WithCause(err)
	}
	return err
}

// entry unpacks one entry.
func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeGNUSparse:
	case tar.TypeXGlobalHeader:
		return nil
	default:
		return refused(h, "is neither a file, a directory nor a link")
	}
	rel, ok := local(h.Name)
	if !ok {
		return refused(h, "has a name outside the directory")
	}
	if h.Typeflag == tar.TypeDir {
		return u.explain(h, u.makeDir(h, rel))
	}
	if rel == "." {
		return refused(h, "replaces the directory itself")
	}
	dir, err := u.enter(path.Dir(rel))
	if err != nil {
		return u.explain(h, err)
	}
	name := path.Base(rel)
	switch h.Typeflag {
	case tar.TypeSymlink:
		err = u.symlink(dir, name, h)
	case tar.TypeLink:
		err = u.hardlink(dir, name, h)
	default:
		err = u.file(dir, name, h, content)
	}
	return u.explain(h, err)
}

// local cleans an entry's name. It must stay below the directory in every spelling.
func local(name string) (string, bool) {
	if name == "" || len(name) > pathMax || path.IsAbs(name) || strings.ContainsRune(name, 0) {
		return "", false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", false
		}
	}
	return path.Clean(name), true
}

// explain names the entry in an error.
func (u *unpacker) explain(h *tar.Header, err error) error {
	switch {
	case err == nil:
		return nil
	case err == unix.ELOOP, err == unix.EXDEV:
		return refused(h, "goes through a link")
	}
	return fileError(h.Name, err)
}

// enter opens a directory below the root, and makes it if it is missing. The one used last is kept open.
func (u *unpacker) enter(rel string) (int, error) {
	if u.parent >= 0 && u.within == rel {
		return u.parent, nil
	}
	fd, err := u.openBelow(rel)
	if err == unix.ENOENT {
		fd, err = u.makeBelow(rel)
	}
	if err != nil {
		return -1, err
	}
	u.close()
	u.parent, u.within = fd, rel
	return fd, nil
}

// belowFlags open a directory only to reach what is in it.
const belowFlags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW

// openBelow opens a directory below the root without following any link.
func (u *unpacker) openBelow(rel string) (int, error) {
	fd, err := openHow(u.root, rel, belowFlags, 0, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
	if err == unix.ENOSYS {
		return u.walkBelow(rel)
	}
	return fd, linkOrFile(u.root, rel, err)
}

// walkBelow is openBelow one name at a time.
func (u *unpacker) walkBelow(rel string) (int, error) {
	fd, err := unix.Openat(u.root, ".", belowFlags|unix.O_CLOEXEC, 0)
	for part := range strings.SplitSeq(rel, "/") {
		if err != nil {
			return -1, err
		}
		var next int
		next, err = unix.Openat(fd, part, belowFlags|unix.O_CLOEXEC, 0)
		err = linkOrFile(fd, part, err)
		_ = unix.Close(fd)
		fd = next
	}
	return fd, err
}

// linkOrFile makes ELOOP of the ENOTDIR that a link at the end gives.
func linkOrFile(dir int, rel string, err error) error {
	var st unix.Stat_t
	if err == unix.ENOTDIR && unix.Fstatat(dir, rel, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.ELOOP
	}
	return err
}

// makeBelow makes a directory and its parents below the root and opens it.
func (u *unpacker) makeBelow(rel string) (int, error) {
	made := ""
	for part := range strings.SplitSeq(rel, "/") {
		up, err := u.openBelow(path.Clean(made))
		if err != nil {
			return -1, err
		}
		err = unix.Mkdirat(up, part, dirPerm)
		_ = unix.Close(up)
		if err != nil && err != unix.EEXIST {
			return -1, err
		}
		made = path.Join(made, part)
	}
	return u.openBelow(rel)
}

// makeDir unpacks a directory. Its mode and time are set at the end, when nothing more goes into it.
func (u *unpacker) makeDir(h *tar.Header, rel string) error {
	fd, err := u.enter(rel)
	if err != nil {
		return err
	}
	if len(u.dirs) < dirsTimedMax {
		u.dirs = append(u.dirs, madeDir{rel, mode(h), h.ModTime})
		return nil
	}
	return chmodOpen(fd, mode(h)|0o700) // so that it can be filled; its time is not kept
}

func (u *unpacker) finishDir(d madeDir) error {
	h := &tar.Header{Name: d.rel}
	fd, err := u.openBelow(d.rel)
	if err != nil {
		return u.explain(h, err)
	}
	defer unix.Close(fd)
	f, err := reopen(fd, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return u.explain(h, err)
	}
	defer f.Close()
	err = unix.Fchmod(int(f.Fd()), d.mode)
	if err == unix.EPERM && d.rel == "." {
		return nil // the directory itself may be somebody else's
	}
	if err == nil {
		err = setTime(int(f.Fd()), d.time)
	}
	return u.explain(h, err)
}

func mode(h *tar.Header) uint32 {
	return rawMode(h.FileInfo().Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky))
}

// clearWay removes what has the entry's name, unless it is a directory.
func clearWay(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err == unix.EISDIR || err == unix.EPERM {
		var st unix.Stat_t
		if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return unix.EISDIR
		}
	}
	return err
}

func (u *unpacker) symlink(dir int, name string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) > pathMax || strings.ContainsRune(h.Linkname, 0) {
		return refused(h, "is a link to nothing")
	}
	if err := clearWay(dir, name); err != nil {
		return err
	}
	return unix.Symlinkat(h.Linkname, dir, name)
}

// hardlink makes a second name for a file that is below the directory, and never for what a link names.
func (u *unpacker) hardlink(dir int, name string, h *tar.Header) error {
	to, ok := local(h.Linkname)
	if !ok || to == "." {
		return refused(h, "is a hard link to outside the directory")
	}
	from, err := u.openBelow(path.Dir(to))
	if err != nil {
		return err
	}
	defer unix.Close(from)
	var st, old unix.Stat_t
	if err := unix.Fstatat(from, path.Base(to), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG && st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return refused(h, "is a hard link to something that is no file")
	}
	if unix.Fstatat(dir, name, &old, unix.AT_SYMLINK_NOFOLLOW) == nil && old.Ino == st.Ino && old.Dev == st.Dev {
		return nil
	}
	if err := clearWay(dir, name); err != nil {
		return err
	}
	return unix.Linkat(from, path.Base(to), dir, name, 0)
}

// file unpacks a regular file. Zeros of a sparse one become holes.
func (u *unpacker) file(dir int, name string, h *tar.Header, content io.Reader) error {
	if h.Size > entryMax {
		return dayfly.Errorf(dayfly.CodeTooLarge, "archive entry %q has more than %d bytes", h.Name, int64(entryMax))
	}
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW
	perm := mode(h)
	fd, err := open(dir, name, flags, perm&0o777)
	if err == unix.EEXIST {
		if err = clearWay(dir, name); err == nil {
			fd, err = open(dir, name, flags, perm&0o777)
		}
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := u.content(fd, h, content); err != nil {
		return err
	}
	if perm&^(0o777&^maskOfOthers) != 0 { // not what it was made with
		if err := unix.Fchmod(fd, perm); err != nil {
			return err
		}
	}
	return setTime(fd, h.ModTime)
}

// content writes a file's content.
func (u *unpacker) content(fd int, h *tar.Header, content io.Reader) error {
	sparse := h.Typeflag == tar.TypeGNUSparse || h.PAXRecords["GNU.sparse.major"] != "" || h.PAXRecords["GNU.sparse.map"] != ""
	for {
		n, err := content.Read(u.buf)
		if n > 0 {
			write := writeAll
			if sparse {
				write = writeHoles
			}
			if err := write(fd, u.buf[:n]); err != nil {
				return err
			}
		}
		if err == nil {
			err = u.ctx.Err()
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return badArchive(err)
		}
	}
	if sparse {
		return unix.Ftruncate(fd, h.Size)
	}
	return nil
}

// writeAll writes all of b.
func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// writeHoles writes b and makes holes of its blocks of zeros.
func writeHoles(fd int, b []byte) error {
	for len(b) > 0 {
		n := min(len(b), holeBlock)
		hole := isZero(b[:n])
		for n < len(b) && isZero(b[n:min(len(b), n+holeBlock)]) == hole {
			n = min(len(b), n+holeBlock)
		}
		var err error
		if hole {
			_, err = unix.Seek(fd, int64(n), unix.SEEK_CUR)
		} else {
			err = writeAll(fd, b[:n])
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// isZero tells whether b, at most a block, holds nothing else.
func isZero(b []byte) bool {
	var none [holeBlock]byte
	return bytes.Equal(b, none[:len(b)])
}
