package dayfly

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
)

// unpackEntriesMax bounds how many entries one download may have: the sandbox writes the archive.
const unpackEntriesMax = 10_000_000

// unpacker writes a hostile tar stream below a root that os.Root never lets it leave.
type unpacker struct {
	root  *os.Root
	in    *tar.Reader
	real  map[string]bool // directories that were seen to be no links
	dirs  []dirMode       // set at the end, so that a read-only directory can be filled
	fresh bool            // the folder itself was made here
	moved Transfer
}

type dirMode struct {
	name string
	mode fs.FileMode
	time time.Time
}

func unpackFolder(in *tar.Reader, local string) (Transfer, error) {
	_, err := os.Lstat(local)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(local, 0o755); err != nil {
		return Transfer{}, localError("make the folder to download into", err)
	}
	root, err := os.OpenRoot(local)
	if err != nil {
		return Transfer{}, localError("open the folder to download into", err)
	}
	defer root.Close()
	u := &unpacker{root: root, in: in, real: map[string]bool{".": true}, fresh: fresh}
	if err := u.all(); err != nil {
		_ = u.finish() // the first failure tells more
		return u.moved, err
	}
	return u.moved, u.finish()
}

func (u *unpacker) all() error {
	for range unpackEntriesMax {
		h, err := u.in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := u.entry(h); err != nil {
			return err
		}
	}
	return &Error{Code: CodeTooLarge, Message: fmt.Sprintf("the folder has more than %d entries", unpackEntriesMax)}
}

func (u *unpacker) entry(h *tar.Header) error {
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	if err := u.parents(path.Dir(name)); err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode).Perm()
	switch h.Typeflag {
	case tar.TypeDir:
		return u.dir(name, mode, h.ModTime)
	case tar.TypeReg:
		if isSparse(h) {
			return &Error{Code: CodeBadAnswer, Message: fmt.Sprintf("the archive holds %q as a sparse file, of any size that it claims", name)}
		}
		return u.file(name, mode, h.ModTime)
	case tar.TypeSymlink:
		u.moved.Files++
		return u.place(name, func() error { return u.root.Symlink(h.Linkname, name) })
	case tar.TypeLink:
		old, err := entryName(h.Linkname)
		if err != nil {
			return err
		}
		if err := u.parents(path.Dir(old)); err != nil {
			return err
		}
		u.moved.Files++
		return u.place(name, func() error { return u.root.Link(old, name) })
	}
	u.moved.skip(name)
	return nil
}

// isSparse tells a file whose size costs the archive nothing: unpacking would fill a disk with zeros.
func isSparse(h *tar.Header) bool {
	for name := range h.PAXRecords {
		if strings.HasPrefix(name, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// parents makes dir and sees that no part of it is a link.
func (u *unpacker) parents(dir string) error {
	if u.real[dir] {
		return nil
	}
	if err := u.parents(path.Dir(dir)); err != nil {
		return err
	}
	err := u.root.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		var info fs.FileInfo
		if info, err = u.root.Lstat(dir); err == nil && !info.IsDir() {
			return &Error{Code: CodeLocal, Message: fmt.Sprintf("%q is in the way: it is no folder here", dir),
				Hint: "download into an empty folder"}
		}
	}
	if err != nil {
		return localError("make a downloaded folder", err)
	}
	u.real[dir] = true
	return nil
}

func (u *unpacker) dir(name string, mode fs.FileMode, at time.Time) error {
	if err := u.parents(name); err != nil {
		return err
	}
	u.dirs = append(u.dirs, dirMode{name: name, mode: mode, time: at})
	return nil
}

// file writes a new file, never into one that exists: that might be a link to another.
func (u *unpacker) file(name string, mode fs.FileMode, at time.Time) error {
	var f *os.File
	err := u.place(name, func() (err error) {
		f, err = u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := copyTo(f, u.in)
	if err != nil {
		return err
	}
	u.moved.Files++
	u.moved.Bytes += n
	if err := errors.Join(f.Chmod(mode), f.Close(), u.root.Chtimes(name, at, at)); err != nil {
		return localError("finish a downloaded file", err)
	}
	return nil
}

// place makes a new entry in place of a file or link that is there.
func (u *unpacker) place(name string, make func() error) error {
	err := make()
	if errors.Is(err, fs.ErrExist) {
		if err = u.root.Remove(name); err == nil {
			delete(u.real, name)
			err = make()
		}
	}
	if err != nil {
		return localError("write a downloaded file", err)
	}
	return nil
}

// finish gives the directories their modes and times, deepest last made first.
func (u *unpacker) finish() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := u.dirs[i]
		if !u.real[d.name] || (d.name == "." && !u.fresh) {
			continue // replaced by a later entry, or a folder of the caller's
		}
		if err := errors.Join(u.root.Chtimes(d.name, d.time, d.time), u.root.Chmod(d.name, d.mode)); err != nil {
			return localError("finish a downloaded folder", err)
		}
	}
	return nil
}

// entryName cleans an archive's name and refuses what would leave the folder.
func entryName(name string) (string, error) {
	clean := path.Clean(name)
	if name == "" || path.IsAbs(name) || clean == ".." || strings.HasPrefix(clean, "../") || strings.Contains(name, "\x00") {
		return "", &Error{Code: CodeBadAnswer, Message: fmt.Sprintf("the archive names %q, which is outside of the folder", name)}
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", &Error{Code: CodeBadAnswer, Message: fmt.Sprintf("the archive names %q, which is outside of the folder", name)}
		}
	}
	return clean, nil
}
