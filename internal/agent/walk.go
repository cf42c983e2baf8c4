package agent

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of a walk in order. A directory with more names than it may keep is read again for the next ones.
const (
	walkNames    = 16 << 10 // names kept at once, of all directories above each other
	walkNamesMin = 64       // of one directory, however many are kept above it
)

// errStop ends a walk early, without an error.
var errStop = errors.New("stop")

// walked is one name that a walk comes to.
type walked struct {
	dir   int    // the open directory that holds it
	name  string // in that directory
	rel   string // path below the walk's root
	kind  byte   // DT_…; DT_UNKNOWN when even lstat did not tell
	depth int    // 1 directly in the root
}

// walker visits everything below a directory in the order of a listing: by the bytes of the names, a directory before what is
// in it. It never follows a link.
type walker struct {
	ctx   context.Context
	after string // path below the root after which it begins, or empty
	// visit is called for each name but those at or before after. enter: go on into this directory. errStop ends the walk.
	visit func(w *walked) (enter bool, err error)
	// unread is called for each directory that could not be entered, or for the names of one that could not be read.
	unread func(rel string, err error)
	flat   bool // enters no directory, not even one that holds after
	kept   int  // names
}

// walk walks an open directory. It leaves fd open.
func (w *walker) walk(fd int) error {
	err := w.dir(fd, "", w.after, 1)
	if err == errStop {
		return nil
	}
	return err
}

// dir walks one directory from after, a path below it, on.
func (w *walker) dir(fd int, rel, after string, depth int) error {
	first, rest, _ := strings.Cut(after, "/")
	again := first != "" && !w.flat // the directory that holds after is entered once more
	d := dirents{fd: fd}
	for {
		names, more, err := d.smallest(w.ctx, first, again, max(walkNamesMin, walkNames-w.kept))
		if err != nil {
			if w.ctx.Err() == nil && depth > 1 {
				w.unread(rel, err)
				return nil
			}
			return err
		}
		w.kept += len(names)
		for _, e := range names {
			if err := w.name(fd, rel, e, again && e.name == first, rest, depth); err != nil {
				return err
			}
		}
		w.kept -= len(names)
		if !more {
			return nil
		}
		first, again = names[len(names)-1].name, false
		if err := d.rewind(); err != nil {
			return err
		}
	}
}

// name visits one name and what is below it. seen: it was visited before, up to rest within it.
func (w *walker) name(fd int, rel string, e dirent, seen bool, rest string, depth int) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	at := walked{dir: fd, name: e.name, rel: e.name, kind: e.kind, depth: depth}
	if rel != "" {
		at.rel = rel + "/" + e.name
	}
	if at.kind == unix.DT_UNKNOWN {
		at.kind = kindOf(fd, e.name)
	}
	enter := true
	if !seen {
		rest = ""
		var err error
		if enter, err = w.visit(&at); err != nil {
			return err
		}
	}
	if !enter || w.flat || at.kind != unix.DT_DIR {
		return nil
	}
	sub, err := openHow(fd, e.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0, unix.RESOLVE_NO_MAGICLINKS)
	if err == nil && depth >= treeDepthMax {
		_ = unix.Close(sub)
		err = unix.ENAMETOOLONG
	}
	if err != nil {
		if err != unix.ENOENT { // it did not vanish
			w.unread(at.rel, err)
		}
		return nil
	}
	defer unix.Close(sub)
	return w.dir(sub, at.rel, rest, depth+1)
}

// kindOf asks what a name is, for file systems that do not tell it with the name.
func kindOf(dir int, name string) byte {
	var st unix.Stat_t
	if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return unix.DT_UNKNOWN
	}
	return byte(st.Mode & unix.S_IFMT >> 12) // as the kernel makes DT_… of a mode
}
