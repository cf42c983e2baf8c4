package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

const (
	copyBytes     = 256 << 10
	modeBits      = 0o7777
	capabilityKey = "SCHILY.xattr.security.capability"
)

// unpacker writes the entries of a tar stream below root. It reaches every path from root's descriptor and refuses to pass
// through a symbolic link, so nothing outside is touched whatever the archive holds.
type unpacker struct {
	root   *os.File
	in     *input
	limits Limits
	report func(Progress)

	files    int64
	bytes    int64
	reported int64 // in.read at the last report
	dirs     []dirMeta
	parent   openDir // the directory of the last entry, kept open
	buf      []byte
}

// dirMeta is what a directory gets once everything in it is written.
type dirMeta struct {
	name string
	hdr  *tar.Header
}

type openDir struct {
	name string
	fd   int // -1 means none
}

func newUnpacker(root string, in *input, o ImportOptions) (*unpacker, error) {
	d, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	return &unpacker{
		root: d, in: in, limits: o.Limits.withDefaults(), report: o.Progress,
		parent: openDir{fd: -1}, buf: make([]byte, copyBytes),
	}, nil
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	for _, f := range []struct{ have, def *int64 }{
		{&l.Files, &d.Files}, {&l.TotalBytes, &d.TotalBytes}, {&l.FileBytes, &d.FileBytes},
		{&l.Ratio, &d.Ratio}, {&l.RatioFreeBytes, &d.RatioFreeBytes},
	} {
		if *f.have == 0 {
			*f.have = *f.def
		}
	}
	for _, f := range []struct{ have, def *int }{
		{&l.NameBytes, &d.NameBytes}, {&l.PathBytes, &d.PathBytes}, {&l.Depth, &d.Depth},
	} {
		if *f.have == 0 {
			*f.have = *f.def
		}
	}
	return l
}

func (u *unpacker) close() {
	u.closeParent()
	_ = u.root.Close()
}

// run unpacks everything and reads the input to its end.
func (u *unpacker) run() error {
	stream, done, err := decompress(u.in)
	if err != nil {
		return err
	}
	defer done()
	limited := &bounded{r: stream, in: u.in, limits: u.limits, entries: func() int64 { return u.files }}
	if err := u.entries(tar.NewReader(limited)); err != nil {
		return err
	}
	// What follows the archive's end mark decides whether the compressed file was whole.
	if _, err := io.Copy(io.Discard, limited); err != nil {
		return archiveError(err)
	}
	if _, err := io.Copy(io.Discard, u.in); err != nil {
		return err
	}
	if u.files == 0 {
		return dayfly.Errorf(dayfly.CodeInvalid, "the archive holds no files")
	}
	if err := u.finishDirs(); err != nil {
		return err
	}
	return u.refuseLayers()
}

func (u *unpacker) entries(t *tar.Reader) error {
	for {
		hdr, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // insecure paths are judged below, with a better text
			return archiveError(err)
		}
		if hdr.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if u.files++; u.files > u.limits.Files {
			return tooLarge("the archive holds more than %d entries", u.limits.Files)
		}
		if err := u.entry(hdr, t); err != nil {
			return err
		}
		u.progress()
	}
}

func (u *unpacker) progress() {
	if u.report != nil && u.in.read.Load()-u.reported >= progressBytes {
		u.reported = u.in.read.Load()
		u.report(Progress{ReadBytes: u.reported, UnpackedBytes: u.bytes, Files: u.files})
	}
}

// archiveError sorts what reading a tar stream gave: a limit of ours, or a damaged archive.
func archiveError(err error) error {
	var e *dayfly.Error
	if errors.As(err, &e) {
		return err
	}
	return broken(err)
}

// entry writes one entry.
func (u *unpacker) entry(hdr *tar.Header, content io.Reader) error {
	name, err := u.cleanName(hdr.Name, "name")
	if err != nil {
		return refuse(hdr, "%s", err)
	}
	if hdr.Uid < 0 || hdr.Uid >= dayfly.IDCount || hdr.Gid < 0 || hdr.Gid >= dayfly.IDCount {
		return refuse(hdr, "its owner %d:%d is outside 0 to %d", hdr.Uid, hdr.Gid, dayfly.IDCount-1)
	}
	if name == "." {
		if hdr.Typeflag != tar.TypeDir {
			return refuse(hdr, "the root is not a directory")
		}
		u.dirs = append(u.dirs, dirMeta{name, hdr})
		return nil
	}
	dir, base := path.Split(name)
	parent, err := u.openParent(path.Clean(dir))
	if err != nil {
		return u.writeError(hdr, err)
	}
	switch hdr.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		return u.writeFile(parent, base, hdr, content)
	case tar.TypeDir:
		return u.writeDir(parent, name, base, hdr)
	case tar.TypeSymlink:
		return u.writeSymlink(parent, base, hdr)
	case tar.TypeLink:
		return u.writeHardLink(parent, base, hdr)
	case tar.TypeFifo:
		return u.writeFIFO(parent, base, hdr)
	case tar.TypeChar, tar.TypeBlock:
		return refuse(hdr, "it is a device node, which a machine gets from its driver").
			WithHint("make the archive without device nodes, for example with tar --exclude='./dev/*'")
	}
	return refuse(hdr, "its type %q is not known", hdr.Typeflag)
}

// cleanName checks a path of the archive and returns it relative to the root, "." for the root itself.
func (u *unpacker) cleanName(name, what string) (string, error) {
	switch {
	case name == "":
		return "", fmt.Errorf("its %s is empty", what)
	case len(name) > u.limits.PathBytes:
		return "", fmt.Errorf("its %s is longer than %d bytes", what, u.limits.PathBytes)
	case strings.HasPrefix(name, "/"):
		return "", fmt.Errorf("its %s %q is absolute", what, short(name))
	case strings.ContainsRune(name, 0):
		return "", fmt.Errorf("its %s holds a NUL byte", what)
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return "", fmt.Errorf("its %s %q leads out of the directory by '..'", what, short(name))
		case len(part) > u.limits.NameBytes:
			return "", fmt.Errorf("a part of its %s is longer than %d bytes", what, u.limits.NameBytes)
		case part != "" && part != ".":
			depth++
		}
	}
	if depth > u.limits.Depth {
		return "", fmt.Errorf("its %s is deeper than %d directories", what, u.limits.Depth)
	}
	return path.Clean(name), nil
}

func (u *unpacker) writeFile(parent int, base string, hdr *tar.Header, content io.Reader) error {
	if hdr.Size > u.limits.FileBytes {
		return tooLarge("entry %q is larger than %d bytes", short(hdr.Name), u.limits.FileBytes)
	}
	if u.bytes += hdr.Size; u.bytes > u.limits.TotalBytes {
		return tooLarge("the archive unpacks to more than %d bytes at entry %q", u.limits.TotalBytes, short(hdr.Name))
	}
	if u.limits.exceedsRatio(u.bytes, u.in) { // the holes of sparse files come from no stream
		return u.limits.ratioError()
	}
	fd, err := u.createAt(parent, base)
	if err != nil {
		return u.writeError(hdr, err)
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	if err := copySparse(f, content, hdr.Size, u.buf); err != nil {
		return u.writeError(hdr, err)
	}
	if err := setMeta(fd, hdr); err != nil {
		return u.writeError(hdr, err)
	}
	return nil
}

// createAt makes a new file, in place of one that an earlier entry made.
func (u *unpacker) createAt(parent int, base string) (int, error) {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(parent, base, flags, 0o600)
	if errors.Is(err, unix.EEXIST) {
		if err := unix.Unlinkat(parent, base, 0); err != nil {
			return -1, err
		}
		fd, err = unix.Openat(parent, base, flags, 0o600)
	}
	return fd, err
}

func (u *unpacker) writeDir(parent int, name, base string, hdr *tar.Header) error {
	err := unix.Mkdirat(parent, base, 0o700)
	if errors.Is(err, unix.EEXIST) {
		var st unix.Stat_t
		if err := unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return u.writeError(hdr, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return refuse(hdr, "an earlier entry of that name is no directory")
		}
		err = nil
	}
	if err != nil {
		return u.writeError(hdr, err)
	}
	u.dirs = append(u.dirs, dirMeta{name, hdr})
	return nil
}

func (u *unpacker) writeSymlink(parent int, base string, hdr *tar.Header) error {
	if hdr.Linkname == "" || len(hdr.Linkname) > u.limits.PathBytes || strings.ContainsRune(hdr.Linkname, 0) {
		return refuse(hdr, "its link target is empty, longer than %d bytes, or holds a NUL byte", u.limits.PathBytes)
	}
	return u.place(parent, base, hdr, func() error { return unix.Symlinkat(hdr.Linkname, parent, base) })
}

func (u *unpacker) writeFIFO(parent int, base string, hdr *tar.Header) error {
	return u.place(parent, base, hdr, func() error { return unix.Mknodat(parent, base, unix.S_IFIFO|0o600, 0) })
}

// place makes an entry that is neither file nor directory, in place of what an earlier entry made, and sets its metadata.
func (u *unpacker) place(parent int, base string, hdr *tar.Header, mk func() error) error {
	err := mk()
	if errors.Is(err, unix.EEXIST) {
		if err = unix.Unlinkat(parent, base, 0); err == nil {
			err = mk()
		}
	}
	if err == nil {
		err = unix.Fchownat(parent, base, hdr.Uid, hdr.Gid, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil && hdr.Typeflag == tar.TypeFifo {
		err = unix.Fchmodat(parent, base, uint32(hdr.Mode&modeBits), 0) // just made by us: no link to follow
	}
	if err == nil {
		err = unix.UtimesNanoAt(parent, base, times(hdr), unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return u.writeError(hdr, err)
	}
	return nil
}

func (u *unpacker) writeHardLink(parent int, base string, hdr *tar.Header) error {
	target, err := u.cleanName(hdr.Linkname, "link target")
	if err != nil {
		return refuse(hdr, "%s", err)
	}
	dir, targetBase := path.Split(target)
	from, err := u.openBeneath(path.Clean(dir), unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		defer unix.Close(from)
		var st unix.Stat_t
		if err = unix.Fstatat(from, targetBase, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return refuse(hdr, "it is a hard link to a directory")
		}
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return refuse(hdr, "it is a hard link to %q, which no earlier entry made", short(hdr.Linkname))
	}
	if err == nil {
		err = unix.Linkat(from, targetBase, parent, base, 0)
	}
	if errors.Is(err, unix.EEXIST) {
		if target == path.Clean(hdr.Name) {
			return nil
		}
		if err = unix.Unlinkat(parent, base, 0); err == nil {
			err = unix.Linkat(from, targetBase, parent, base, 0)
		}
	}
	if err != nil {
		return u.writeError(hdr, err)
	}
	return nil
}

// openParent opens the directory dir, making what is missing of it, and keeps it open for the next entry.
func (u *unpacker) openParent(dir string) (int, error) {
	if u.parent.fd >= 0 && u.parent.name == dir {
		return u.parent.fd, nil
	}
	fd, err := u.openBeneath(dir, unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		fd, err = u.makeDirs(dir)
	}
	if err != nil {
		return -1, err
	}
	u.closeParent()
	u.parent = openDir{dir, fd}
	return fd, nil
}

func (u *unpacker) closeParent() {
	if u.parent.fd >= 0 {
		_ = unix.Close(u.parent.fd)
	}
	u.parent = openDir{fd: -1}
}

// makeDirs makes dir and its parents as root's, mode 0755. Each counts as an entry.
func (u *unpacker) makeDirs(dir string) (int, error) {
	at, err := unix.Dup(int(u.root.Fd()))
	if err != nil {
		return -1, err
	}
	for part := range strings.SplitSeq(dir, "/") {
		err := unix.Mkdirat(at, part, 0o755)
		if err == nil {
			u.files++
		} else if !errors.Is(err, unix.EEXIST) {
			_ = unix.Close(at)
			return -1, err
		}
		next, err := openat2(at, part, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, beneath)
		_ = unix.Close(at)
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}

const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

func (u *unpacker) openBeneath(name string, flags uint64) (int, error) {
	return openat2(int(u.root.Fd()), name, flags, beneath)
}

// finishDirs gives the directories their owner, mode and times, the deepest last entries first.
func (u *unpacker) finishDirs() error {
	u.closeParent()
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := u.dirs[i]
		fd, err := u.openBeneath(d.name, unix.O_RDONLY|unix.O_DIRECTORY)
		if err == nil {
			err = setMeta(fd, d.hdr)
			_ = unix.Close(fd)
		}
		if err != nil {
			return u.writeError(d.hdr, err)
		}
	}
	return nil
}

// refuseLayers tells an archive of layers, as "docker save" makes it, from a root file system.
func (u *unpacker) refuseLayers() error {
	var st unix.Stat_t
	has := func(name string) bool {
		return unix.Fstatat(int(u.root.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
	}
	if (has("manifest.json") || has("oci-layout")) && !has("usr") && !has("bin") && !has("etc") {
		return dayfly.Errorf(dayfly.CodeInvalid, "the archive holds the layers of an image, not a root file system").
			WithHint("export one: docker create --name tmp IMAGE && docker export tmp --output rootfs.tar")
	}
	return nil
}

// setMeta sets owner, mode, capability and times, in the order in which none undoes another.
func setMeta(fd int, hdr *tar.Header) error {
	if err := unix.Fchown(fd, hdr.Uid, hdr.Gid); err != nil {
		return fmt.Errorf("set owner: %w", err)
	}
	if err := unix.Fchmod(fd, uint32(hdr.Mode&modeBits)); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	if c, ok := hdr.PAXRecords[capabilityKey]; ok && hdr.Typeflag != tar.TypeDir {
		if err := unix.Fsetxattr(fd, "security.capability", []byte(c), 0); err != nil {
			return fmt.Errorf("set capability: %w", err)
		}
	}
	t := times(hdr)
	if err := unix.UtimesNanoAt(fd, "", t, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("set time: %w", err)
	}
	return nil
}

// times gives access and modification time, both the latter: an image has no history of reads.
func times(hdr *tar.Header) []unix.Timespec {
	sec := min(max(hdr.ModTime.Unix(), 0), int64(timeMax/time.Second))
	ts := unix.Timespec{Sec: sec, Nsec: int64(hdr.ModTime.Nanosecond())}
	return []unix.Timespec{ts, ts}
}

// timeMax is the latest modification time since 1970 that is kept: the year 2262.
const timeMax = time.Duration(1<<63 - 1)

// copySparse writes size bytes of r into f and leaves holes where whole buffers are zero.
func copySparse(f *os.File, r io.Reader, size int64, buf []byte) error {
	var written int64 // up to here the file has its content
	for at := int64(0); at < size; {
		n, err := io.ReadFull(r, buf[:min(int64(len(buf)), size-at)])
		if err != nil {
			return archiveError(err)
		}
		if !allZero(buf[:n]) {
			if _, err := f.WriteAt(buf[:n], at); err != nil {
				return err
			}
			written = at + int64(n)
		}
		at += int64(n)
	}
	if written < size {
		return f.Truncate(size)
	}
	return nil
}

func allZero(b []byte) bool {
	for len(b) > 0 && b[0] == 0 {
		b = b[1:]
	}
	return len(b) == 0
}

// writeError sorts a failure to write an entry: the archive's fault, or the host's.
func (u *unpacker) writeError(hdr *tar.Header, err error) error {
	var e *dayfly.Error
	switch {
	case errors.As(err, &e):
		return err
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return refuse(hdr, "its path leads through a symbolic link of the archive")
	case errors.Is(err, unix.ENOTDIR):
		return refuse(hdr, "a part of its path, or an earlier entry of its name, is no directory")
	case errors.Is(err, unix.EISDIR), errors.Is(err, fs.ErrExist):
		return refuse(hdr, "an earlier entry of that name is a directory")
	case errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EMLINK), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EFBIG):
		return refuse(hdr, "the host's file system cannot hold it: %s", err)
	}
	return fmt.Errorf("write entry %q: %w", short(hdr.Name), err)
}

func refuse(hdr *tar.Header, format string, args ...any) *dayfly.Error {
	return dayfly.Errorf(dayfly.CodeInvalid, "entry %q is refused: %s", short(hdr.Name), fmt.Sprintf(format, args...)).
		WithDetail("entry", short(hdr.Name))
}

// short cuts a hostile name to what fits a message.
func short(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
