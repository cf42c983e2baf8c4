package agent

import (
	"strings"

	"golang.org/x/sys/unix"
)

// resolveOpen is open for a kernel without openat2, as one in user space may be: it goes through the path name by name and follows
// links by what they say, as text, but for the magic ones of /proc, which it refuses.
func resolveOpen(dir int, name string, flags int, mode uint32) (int, error) {
	if name == "" {
		return -1, unix.ENOENT
	}
	w := resolution{at: dir, rest: name}
	defer w.close()
	for {
		last, err := w.step(flags)
		if err != nil {
			return -1, err
		}
		if !last {
			continue
		}
		fd, err := openPlain(w.at, w.name, flags|unix.O_NOFOLLOW, mode)
		return fd, err
	}
}

// resolution is a place in a path.
type resolution struct {
	at    int    // directory that has been reached
	owned bool   // at is to be closed
	name  string // in at: the name that step has looked at last
	rest  string // of the path behind it
	links int    // followed so far
}

func (w *resolution) close() {
	if w.owned {
		_ = unix.Close(w.at)
	}
	w.owned = false
}

// enter goes into a directory, which it owns from then on.
func (w *resolution) enter(fd int) {
	w.close()
	w.at, w.owned = fd, true
}

// step looks at the next name and goes into it when there is more behind it. last: w.name in w.at is what the path means, and
// no link that is to be followed.
func (w *resolution) step(flags int) (last bool, err error) {
	if strings.HasPrefix(w.rest, "/") {
		trimmed := strings.TrimLeft(w.rest, "/")
		if w.name == "" { // the path begins here, or a link led here
			root, err := openPlain(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY, 0)
			if err != nil {
				return false, err
			}
			w.enter(root)
		}
		w.rest = trimmed
	}
	part, behind, more := strings.Cut(w.rest, "/")
	if part == "" {
		w.name = "."
		return true, nil
	}
	w.name = part
	inner := strings.TrimLeft(behind, "/") != ""
	if !more && flags&unix.O_NOFOLLOW != 0 {
		return true, nil
	}
	fd, err := openPlain(w.at, part, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err == unix.ENOENT && !more {
		return true, nil // it may be to be made
	}
	if err != nil {
		return false, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return false, err
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFLNK {
		magic := isMagic(w.at, part)
		_ = unix.Close(fd)
		if magic {
			return false, unix.ELOOP
		}
		return false, w.follow(part, behind, more)
	}
	if !more {
		_ = unix.Close(fd)
		return true, nil
	}
	if kind != unix.S_IFDIR {
		_ = unix.Close(fd)
		return false, unix.ENOTDIR
	}
	w.enter(fd)
	w.rest = behind
	if !inner {
		w.rest = ""
	}
	return false, nil
}

// isMagic tells whether a link in an open directory is one of /proc's that lead somewhere else than they say.
func isMagic(dir int, name string) bool {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(dir, &fs); err != nil || fs.Type != unix.PROC_SUPER_MAGIC {
		return false
	}
	return name != "self" && name != "thread-self" && name != "mounts" && name != "net"
}

// follow puts what a link says in front of the rest of the path.
func (w *resolution) follow(part, behind string, more bool) error {
	if w.links++; w.links > linksMax {
		return unix.ELOOP
	}
	to, err := readlink(w.at, part)
	if err != nil {
		return err
	}
	if more {
		to += "/" + behind
	}
	if to == "" {
		return unix.ENOENT
	}
	if len(to) > pathMax {
		return unix.ENAMETOOLONG
	}
	w.rest, w.name = to, ""
	return nil
}

// openPlain is openat, tried again when a signal came.
func openPlain(dir int, name string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
		if err != unix.EINTR {
			return fd, err
		}
	}
}
