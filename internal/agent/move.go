package agent

import (
	"context"
	"crypto/rand"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Move implements agentwire.Machine. To another file system it copies to a hidden name beside the target first, so that the
// target appears whole, in one step, or not at all; until then everything is undone when something fails.
func (a *Agent) Move(ctx context.Context, from, to string, overwrite bool) (info dayfly.FileInfo, err error) {
	absFrom, err := absolute(a.cfg.User.Home, from)
	if err != nil {
		return info, err
	}
	absTo, err := absolute(a.cfg.User.Home, to)
	if err != nil {
		return info, err
	}
	m := &move{ctx: ctx, overwrite: overwrite, from: place{dir: -1, asked: from}, to: place{dir: -1, asked: to}}
	var moveErr error
	err = a.threads.quick(ctx, a.fileRights(), func() {
		defer m.close()
		info, moveErr = m.rename(absFrom, absTo)
	})
	if err == nil && moveErr == unix.EXDEV {
		err = a.threads.long(ctx, a.fileRights(), func() {
			defer m.close()
			info, moveErr = m.across(absFrom, absTo)
		})
	}
	if err == nil {
		err = fileError(from, moveErr)
	}
	return info, err
}

// move is one file or directory on its way.
type move struct {
	ctx       context.Context
	overwrite bool
	from, to  place
}

// place is a name in an open directory.
type place struct {
	asked string // as the caller spelled the path
	dir   int    // or -1
	name  string
}

// find opens the directory that a path's last name is in.
func (p *place) find(abs string) (err error) {
	above, name := lastName(abs)
	if name == "" {
		return dayfly.Errorf(dayfly.CodeFileConflict, "%s has no name of its own that could be moved", p.asked)
	}
	p.name = name
	if p.dir, err = open(unix.AT_FDCWD, above, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		p.dir = -1
		return fileError(p.asked, err)
	}
	return nil
}

func (p *place) stat() (st unix.Stat_t, err error) {
	err = unix.Fstatat(p.dir, p.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

func (m *move) close() {
	for _, p := range []*place{&m.from, &m.to} {
		if p.dir >= 0 {
			_ = unix.Close(p.dir)
			p.dir = -1
		}
	}
}

// find looks up both places and what is to be moved.
func (m *move) find(absFrom, absTo string) (unix.Stat_t, error) {
	if err := m.from.find(absFrom); err != nil {
		return unix.Stat_t{}, err
	}
	st, err := m.from.stat()
	if err != nil {
		return st, fileError(m.from.asked, err)
	}
	if err := m.to.find(absTo); err != nil {
		return st, err
	}
	if strings.HasSuffix(absTo, "/") && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return st, dayfly.Errorf(dayfly.CodeFileConflict, "%s names a directory, and what is moved is none", m.to.asked).
			WithHint("give the whole new path, with the file's name")
	}
	return st, nil
}

// rename moves within a file system. unix.EXDEV: there are two.
func (m *move) rename(absFrom, absTo string) (dayfly.FileInfo, error) {
	st, err := m.find(absFrom, absTo)
	if err == nil {
		err = m.put(m.from.dir, m.from.name, &st)
	}
	if err != nil {
		return dayfly.FileInfo{}, err
	}
	if m.overwrite {
		m.dropTwin(&st)
	}
	return m.arrived(absTo)
}

// put gives a name beside or far from the target the target's name.
func (m *move) put(dir int, name string, st *unix.Stat_t) error {
	if m.overwrite {
		return m.explain(unix.Renameat(dir, name, m.to.dir, m.to.name), st)
	}
	err := unix.Renameat2(dir, name, m.to.dir, m.to.name, unix.RENAME_NOREPLACE)
	if err != unix.ENOSYS && err != unix.EINVAL || st.Mode&unix.S_IFMT == unix.S_IFDIR && m.intoItself(st) {
		return m.explain(err, st)
	}
	// The file system knows no such rename. A new name of a file is exclusive too; for a directory a look must do.
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if err = unix.Linkat(dir, name, m.to.dir, m.to.name, 0); err == nil {
			return unix.Unlinkat(dir, name, 0)
		}
		if err == unix.EEXIST || err == unix.EXDEV {
			return m.explain(err, st)
		}
	}
	if _, err := m.to.stat(); err != unix.ENOENT {
		if err == nil {
			err = unix.EEXIST
		}
		return m.explain(err, st)
	}
	return m.explain(unix.Renameat(dir, name, m.to.dir, m.to.name), st)
}

// explain names what stood in the way.
func (m *move) explain(err error, st *unix.Stat_t) error {
	switch {
	case err == nil || err == unix.EXDEV:
		return err
	case err == unix.EINVAL && m.intoItself(st):
		return dayfly.Errorf(dayfly.CodeInvalid, "%s cannot be moved into itself, to %s", m.from.asked, m.to.asked).WithCause(err)
	case err == unix.EEXIST && !m.overwrite:
		return dayfly.Errorf(dayfly.CodeFileConflict, "%s exists", m.to.asked).WithHint("ask for overwrite to replace it").WithCause(err)
	}
	return fileError(m.from.asked+" to "+m.to.asked, err)
}

// intoItself tells that the target is below the directory that is moved.
func (m *move) intoItself(st *unix.Stat_t) bool {
	dir, err := open(m.to.dir, ".", unix.O_PATH|unix.O_DIRECTORY, 0)
	for range pathMax {
		if err != nil {
			return false
		}
		var at, above unix.Stat_t
		if unix.Fstat(dir, &at) != nil || at.Dev == st.Dev && at.Ino == st.Ino {
			_ = unix.Close(dir)
			return at.Ino == st.Ino
		}
		var up int
		up, err = open(dir, "..", unix.O_PATH|unix.O_DIRECTORY, 0)
		_ = unix.Close(dir)
		if err == nil && unix.Fstat(up, &above) == nil && above.Dev == at.Dev && above.Ino == at.Ino {
			_ = unix.Close(up)
			return false // the root
		}
		dir = up
	}
	return false
}

// dropTwin removes the old name when it is still there because the kernel leaves two names of one file as they are.
func (m *move) dropTwin(st *unix.Stat_t) {
	var a, b unix.Stat_t
	if st.Nlink < 2 || st.Mode&unix.S_IFMT == unix.S_IFDIR || unix.Fstat(m.from.dir, &a) != nil || unix.Fstat(m.to.dir, &b) != nil {
		return
	}
	if a.Dev == b.Dev && a.Ino == b.Ino && m.from.name == m.to.name {
		return // moved to where it is
	}
	now, err := m.from.stat()
	if err == nil && now.Dev == st.Dev && now.Ino == st.Ino {
		_ = unix.Unlinkat(m.from.dir, m.from.name, 0)
	}
}

// arrived describes what was moved at its new place.
func (m *move) arrived(absTo string) (dayfly.FileInfo, error) {
	fd, err := open(m.to.dir, m.to.name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return dayfly.FileInfo{}, fileError(m.to.asked, err)
	}
	defer unix.Close(fd)
	return describe(fd, path.Clean(absTo))
}

// across moves to another file system.
func (m *move) across(absFrom, absTo string) (dayfly.FileInfo, error) {
	st, err := m.find(absFrom, absTo)
	if err == nil {
		err = m.roomAt(&st)
	}
	if err != nil {
		return dayfly.FileInfo{}, err
	}
	temp := tempPrefix + rand.Text()
	c := &copier{ctx: m.ctx, linked: make(map[inode]string), top: m.to.dir}
	defer c.close()
	if err = c.copy(m.from.dir, m.from.name, m.to.dir, temp, temp, treeDepthMax); err == nil {
		err = m.ctx.Err()
	}
	if err == nil {
		err = m.swap(temp, &st)
	}
	if err != nil {
		m.discard(m.to.dir, temp)
		return dayfly.FileInfo{}, err
	}
	return m.arrived(absTo)
}

// roomAt refuses early what could not be put at the target.
func (m *move) roomAt(st *unix.Stat_t) error {
	old, err := m.to.stat()
	isDir := func(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }
	switch {
	case err == unix.ENOENT:
		return nil
	case err != nil:
		return fileError(m.to.asked, err)
	case !m.overwrite:
		return m.explain(unix.EEXIST, st)
	case isDir(&old) && !isDir(st):
		return m.explain(unix.EISDIR, st)
	case !isDir(&old) && isDir(st):
		return m.explain(unix.ENOTDIR, st)
	case isDir(&old) && !m.isEmpty():
		return m.explain(unix.ENOTEMPTY, st)
	}
	return nil
}

// isEmpty tells that the directory at the target holds nothing, or could not be looked into.
func (m *move) isEmpty() bool {
	fd, err := open(m.to.dir, m.to.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	d := dirents{fd: fd}
	name, _, _ := d.next()
	return name == nil
}

// swap puts the copy in the target's place and takes the source away. The source gets a hidden name first: that fails like its
// removal would, while nothing has happened yet, and nobody ever sees it half removed.
func (m *move) swap(temp string, st *unix.Stat_t) error {
	hidden := tempPrefix + rand.Text()
	if err := unix.Renameat(m.from.dir, m.from.name, m.from.dir, hidden); err != nil {
		return fileError(m.from.asked, err)
	}
	back := func() {
		_ = unix.Renameat2(m.from.dir, hidden, m.from.dir, m.from.name, unix.RENAME_NOREPLACE)
	}
	if err := m.put(m.to.dir, temp, st); err != nil {
		back()
		return err
	}
	if err := m.discard(m.from.dir, hidden); err != nil {
		back()
		return dayfly.Errorf(dayfly.CodeFilePermission, "%s is at %s as a whole; of what was moved not everything could be removed: %s",
			m.from.asked, m.to.asked, errnoText(err)).WithCause(err)
	}
	return nil
}

// discard removes a name with all below it, whether or not the caller is still there.
func (m *move) discard(dir int, name string) error {
	err := removeOne(dir, name)
	if isNotEmpty(err) {
		err = removeTree(context.WithoutCancel(m.ctx), dir, name, treeDepthMax)
	}
	return err
}
