package agent

import (
	"context"
	"io/fs"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Chmod implements agentwire.Machine. What fails below a directory is told, the first of it, when everything else is done.
func (a *Agent) Chmod(ctx context.Context, name string, mode fs.FileMode, recursive bool) (info dayfly.FileInfo, err error) {
	abs, err := absolute(a.cfg.User.Home, name)
	if err != nil {
		return info, err
	}
	run := a.threads.quick
	if recursive {
		run = a.threads.long
	}
	var chErr error
	err = run(ctx, a.fileRights(), func() {
		var fd int
		if fd, chErr = open(unix.AT_FDCWD, abs, unix.O_PATH, 0); chErr != nil {
			return
		}
		defer unix.Close(fd)
		c := &chmodder{ctx: ctx, mode: rawMode(mode), root: abs}
		if chErr = c.one(fd, "", recursive, treeDepthMax); chErr == nil {
			chErr = c.first
		}
		if chErr == nil {
			info, chErr = describe(fd, abs)
		}
	})
	if err == nil {
		err = fileError(name, chErr)
	}
	return info, err
}

// chmodder changes the modes of a tree.
type chmodder struct {
	ctx   context.Context
	mode  uint32
	root  string
	first error // the first that could not be changed below the root, or nil
}

// one changes what is open at fd, an O_PATH descriptor, and with tree what is below it. A directory is entered with the mode
// it has and gets the new one last, since that may forbid the way in; unless the way in is what the new mode gives.
func (c *chmodder) one(fd int, rel string, tree bool, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if !tree || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return chmodOpen(fd, c.mode)
	}
	if depth == 0 {
		return dayfly.Errorf(dayfly.CodeFileConflict, "the tree is deeper than %d directories", treeDepthMax)
	}
	dir, err := c.enter(fd)
	if err == unix.EACCES {
		if err = chmodOpen(fd, c.mode); err != nil {
			return err
		}
		if dir, err = c.enter(fd); err == unix.EACCES {
			return dayfly.Errorf(dayfly.CodeFilePermission, "%s: the directory may not be entered, so what is in it keeps its mode", c.name(rel)).WithCause(err)
		}
	}
	if err != nil {
		return err
	}
	err = c.names(dir, rel, depth)
	_ = unix.Close(dir)
	if err != nil {
		return err
	}
	return chmodOpen(fd, c.mode)
}

// enter opens a directory that may be both read and searched.
func (c *chmodder) enter(fd int) (int, error) {
	return open(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// names changes everything in an open directory. Only the end of ctx ends it early.
func (c *chmodder) names(dir int, rel string, depth int) error {
	d := dirents{fd: dir}
	for {
		name, kind, err := d.next()
		if err != nil {
			c.note(rel, err)
		}
		if name == nil {
			return nil
		}
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if kind == unix.DT_LNK {
			continue
		}
		sub := string(name)
		if rel != "" {
			sub = rel + "/" + sub
		}
		if err := c.child(dir, string(name), sub, depth); err != nil {
			if c.ctx.Err() != nil {
				return c.ctx.Err()
			}
			c.note(sub, err)
		}
	}
}

// child changes one name of a directory, unless it is a link or vanished.
func (c *chmodder) child(dir int, name, rel string, depth int) error {
	fd, err := open(dir, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return err
	}
	return c.one(fd, rel, true /* with all below */, depth-1)
}

func (c *chmodder) name(rel string) string {
	if rel == "" {
		return c.root
	}
	return below(c.root, rel)
}

// note keeps the first failure.
func (c *chmodder) note(rel string, err error) {
	if c.first == nil {
		c.first = fileError(c.name(rel), err)
	}
}

// chmodOpen changes the mode of what an O_PATH descriptor of anything but a link stands for.
func chmodOpen(fd int, mode uint32) error {
	return unix.Fchmodat(unix.AT_FDCWD, "/proc/self/fd/"+itoa(fd), mode, 0)
}
