package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
)

// Limits of writing.
const (
	linksMax   = 40 // links followed at the end of a path, as the kernel does
	writeChunk = 64 << 10
	tempPrefix = ".dayfly-"
)

// target is a file to be written: a name in an open directory, and what is there now.
type target struct {
	dir   int    // open directory
	name  string // in it
	path  string // absolute, after all links
	old   *unix.Stat_t
	temp  string // the file that will take its place, or empty when it is written in place
	f     *os.File
	place bool     // written in place: the user may write the file but not replace it
	into  *os.File // the file in place, which gets its content when all of it is in f, or nil
}

// Write implements agentwire.Machine.
func (a *Agent) Write(ctx context.Context, name string, mode *fs.FileMode, r io.Reader) (info dayfly.FileInfo, err error) {
	abs, err := absolute(a.cfg.User.Home, name)
	if err != nil {
		return info, err
	}
	who := a.fileRights()
	var t *target
	var stepErr error
	err = a.threads.quick(ctx, who, func() { t, stepErr = openTarget(abs, who.uid, a.cfg.SwitchUser, a.cfg.User.Home) })
	if err == nil {
		err = fileError(name, stepErr)
	}
	if err != nil {
		return info, err
	}
	failpoint.Hit("agent.write.opened")
	err = a.fill(ctx, t.f, r)
	failpoint.Hit("agent.write.filled")
	// What is done from here on is done whether or not the client is still there.
	ctx = context.WithoutCancel(ctx)
	if err == nil {
		err = a.pour(ctx, t)
	}
	if err == nil {
		err = t.dress(who, mode)
	}
	runErr := a.threads.quick(ctx, who, func() {
		defer t.close()
		if err != nil {
			t.undo()
			return
		}
		info, stepErr = t.commit(a.children.settle)
	})
	if err == nil {
		err = runErr
	}
	if err == nil {
		err = stepErr
	}
	return info, fileError(name, err)
}

// openTarget finds the file that a path means, follows links as the user could, makes missing parents, and opens what the
// content goes into.
func openTarget(abs string, uid uint32, strict bool, home string) (*target, error) {
	t := &target{dir: -1, path: abs}
	for range linksMax {
		again, err := t.resolve()
		if err != nil {
			t.close()
			return nil, err
		}
		if !again {
			if err := t.open(uid, strict, home); err != nil {
				t.close()
				return nil, err
			}
			return t, nil
		}
	}
	t.close()
	return nil, unix.ELOOP
}

// resolve opens the parent directory of t.path and looks at its last name. again: it is a link, and t.path is what it names.
func (t *target) resolve() (again bool, err error) {
	parent, name := path.Split(t.path)
	if name == "" || name == "." || name == ".." {
		return false, unix.EISDIR
	}
	if t.dir >= 0 {
		_ = unix.Close(t.dir)
	}
	if t.dir, err = makeDirs(parent); err != nil {
		return false, err
	}
	t.name = name
	var st unix.Stat_t
	err = unix.Fstatat(t.dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == unix.ENOENT:
		t.old = nil
		return false, nil
	case err != nil:
		return false, err
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		to, err := readlink(t.dir, name)
		if err != nil {
			return false, err
		}
		if !path.IsAbs(to) {
			to = parent + to
		}
		if len(to) > pathMax {
			return false, unix.ENAMETOOLONG
		}
		t.path = to
		return true, nil
	}
	t.old = &st
	if kind := entry(t.path, &st).Type; kind != dayfly.FileRegular {
		return false, notRegular(t.path, kind)
	}
	return false, nil
}

// makeDirs opens a directory and makes it, with its parents, if it is missing.
func makeDirs(dir string) (int, error) {
	fd, err := open(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != unix.ENOENT {
		return fd, err
	}
	above, name := path.Split(strings.TrimRight(dir, "/"))
	if name == "" || above == "" {
		return -1, err
	}
	up, err := makeDirs(above)
	if err != nil {
		return -1, err
	}
	defer unix.Close(up)
	if err := unix.Mkdirat(up, name, dirPerm); err != nil && err != unix.EEXIST {
		return -1, err
	}
	return open(up, name, unix.O_PATH|unix.O_DIRECTORY, 0)
}

// open opens a new file beside the target, or the target itself where it can be written but not replaced.
func (t *target) open(uid uint32, strict bool, home string) error {
	if t.old != nil {
		fd, err := open(t.dir, t.name, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY, 0)
		if err != nil && err != unix.ETXTBSY { // a running program may be replaced
			return err
		}
		if err == nil {
			_ = unix.Close(fd)
		}
		t.place = strict && t.stuck(uid) || t.mounted()
	}
	if !t.place {
		t.temp = tempPrefix + rand.Text()
		fd, err := open(t.dir, t.temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if err == nil {
			t.f = os.NewFile(uintptr(fd), t.temp)
			return nil
		}
		t.temp = ""
		if t.old == nil || err != unix.EACCES && err != unix.EPERM {
			return err
		}
	}
	return t.inPlace(home)
}

// inPlace opens the target itself. Its new content is gathered elsewhere first, if there is a place for it, so that an upload
// that breaks off leaves the old one.
func (t *target) inPlace(home string) error {
	fd, err := open(t.dir, t.name, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	t.place = true
	t.into = os.NewFile(uintptr(fd), t.name)
	for _, dir := range []string{"/tmp", "/var/tmp", home} {
		name := dir + "/" + tempPrefix + rand.Text()
		fd, err := open(unix.AT_FDCWD, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if err == nil {
			_ = unix.Unlink(name) // it lives while it is open
			t.f = os.NewFile(uintptr(fd), name)
			return nil
		}
	}
	t.f, t.into = t.into, nil
	return t.f.Truncate(0)
}

// pour gives the file in place the content that was gathered for it. The room is taken first: what does not fit changes nothing.
func (a *Agent) pour(ctx context.Context, t *target) error {
	if t.into == nil {
		return nil
	}
	size, err := t.f.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = t.f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("gather content: %w", err)
	}
	if size > 0 {
		err = unix.Fallocate(int(t.into.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
		if err == unix.ENOSPC || err == unix.EDQUOT || err == unix.EFBIG {
			return err
		}
	}
	if err := a.fill(ctx, t.into, t.f); err != nil {
		return err
	}
	return t.into.Truncate(size)
}

// stuck tells that the target is another user's in a sticky directory such as /tmp, where nobody else may replace it.
func (t *target) stuck(uid uint32) bool {
	var dir unix.Stat_t
	return unix.Fstat(t.dir, &dir) == nil && dir.Mode&unix.S_ISVTX != 0 && uid != 0 && t.old.Uid != uid && dir.Uid != uid
}

// mounted tells that the target is mounted where it is, as /etc/hosts often is, and nothing can take its place.
func (t *target) mounted() bool {
	var st unix.Statx_t
	err := unix.Statx(t.dir, t.name, unix.AT_SYMLINK_NOFOLLOW, 0, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// fill copies content into an open file.
func (a *Agent) fill(ctx context.Context, f *os.File, r io.Reader) error {
	buf := make([]byte, writeChunk)
	for {
		n, readErr := r.Read(buf)
		if n > 0 {
			var err error
			if slotErr := a.onDisk(ctx, func() { _, err = f.Write(buf[:n]) }); slotErr != nil {
				return slotErr
			}
			if err != nil {
				return err
			}
		}
		if readErr == io.EOF {
			return nil
		}
		if readErr != nil {
			return fmt.Errorf("receive content: %w", readErr)
		}
	}
}

// dress gives the new file the owner and mode it shall have. It runs with the agent's own rights, and gives nothing that
// the user could not have had by writing the old file in place, which takes setuid and setgid off it.
func (t *target) dress(who rights, mode *fs.FileMode) error {
	fd := int(t.file().Fd())
	want := uint32(filePerm)
	if t.old != nil {
		want = t.old.Mode & 0o7777
		if !t.place && (t.old.Uid != who.uid || t.old.Gid != who.gid) {
			if err := unix.Fchown(fd, int(t.old.Uid), int(t.old.Gid)); err != nil && err != unix.EPERM {
				return fmt.Errorf("keep owner: %w", err)
			}
			want &= 0o777
		}
	}
	if mode != nil && (t.old == nil || t.old.Uid == who.uid) { // only the owner may change the mode
		want = rawMode(*mode)
	} else if mode != nil && !t.place {
		return nil
	} else if t.place {
		if who.uid == 0 || want&^0o777 == 0 {
			return nil
		}
		want &= 0o777 // the kernel would have taken the rest off, had the user written it
	}
	if err := unix.Fchmod(fd, want); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	return nil
}

// file is the open file that will be at the target's path.
func (t *target) file() *os.File {
	if t.into != nil {
		return t.into
	}
	return t.f
}

// commit puts the new file in place. Before, it closes the file, lets settle wait until no child is being forked, and of a
// program waits until no child holds a copy of it: it cannot be executed while somebody may write it.
func (t *target) commit(settle func()) (dayfly.FileInfo, error) {
	info, err := describe(int(t.file().Fd()), t.path)
	if t.into != nil {
		err = errors.Join(err, t.into.Close())
		t.into = nil
	}
	check := -1
	if name := t.temp; name != "" && info.Mode&0o111 != 0 {
		check, _ = open(t.dir, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	}
	if closeErr := t.f.Close(); err == nil {
		err = closeErr
	}
	t.f = nil
	settle()
	if check >= 0 {
		awaitIdle(check)
		_ = unix.Close(check)
	}
	failpoint.Hit("agent.write.closed")
	if err == nil && t.temp != "" {
		err = unix.Renameat(t.dir, t.temp, t.dir, t.name)
	}
	if err != nil {
		t.undo()
	}
	failpoint.Hit("agent.write.renamed")
	return info, err
}

// undo removes the new file.
func (t *target) undo() {
	if t.temp != "" {
		_ = unix.Unlinkat(t.dir, t.temp, 0)
	}
}

// close releases the descriptors.
func (t *target) close() {
	if t.f != nil {
		_ = t.f.Close()
	}
	if t.into != nil {
		_ = t.into.Close()
	}
	if t.dir >= 0 {
		_ = unix.Close(t.dir)
	}
}
