package agent

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Stat implements agentwire.Machine.
func (a *Agent) Stat(ctx context.Context, name string) (info dayfly.FileInfo, err error) {
	abs, err := absolute(a.cfg.User.Home, name)
	if err != nil {
		return info, err
	}
	var statErr error
	err = a.threads.quick(ctx, a.fileRights(), func() {
		var fd int
		if fd, statErr = open(unix.AT_FDCWD, abs, unix.O_PATH|unix.O_NOFOLLOW, 0); statErr != nil {
			return
		}
		defer unix.Close(fd)
		info, statErr = describe(fd, abs)
	})
	if err == nil {
		err = fileError(name, statErr)
	}
	return info, err
}

// fileRights are those of the user of all file operations.
func (a *Agent) fileRights() rights {
	def := a.cfg.User
	return a.identity(account{def.Name, def.UID, def.GID, def.Home}).rights
}

// describe gives the entry of an open file, whose absolute name is abs.
func describe(fd int, abs string) (dayfly.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return dayfly.FileInfo{}, err
	}
	info := entry(abs, &st)
	if info.Type == dayfly.FileSymlink {
		target, err := readlink(fd, "")
		if err != nil {
			info.Error = errnoText(err)
		}
		info.Target = target
	}
	return info, nil
}

// entry makes an entry from what stat says.
func entry(abs string, st *unix.Stat_t) dayfly.FileInfo {
	abs = path.Clean(abs)
	info := dayfly.FileInfo{
		Name: path.Base(abs), Path: abs, Type: dayfly.FileOther, SizeBytes: st.Size, Mode: permissions(st.Mode),
		ModifiedAt: time.Unix(st.Mtim.Unix()).UTC(),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		info.Type = dayfly.FileRegular
	case unix.S_IFDIR:
		info.Type = dayfly.FileDirectory
	case unix.S_IFLNK:
		info.Type = dayfly.FileSymlink
	}
	return info
}

// permissions are the bits of a mode that the API knows.
func permissions(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	if mode&unix.S_ISUID != 0 {
		m |= fs.ModeSetuid
	}
	if mode&unix.S_ISGID != 0 {
		m |= fs.ModeSetgid
	}
	if mode&unix.S_ISVTX != 0 {
		m |= fs.ModeSticky
	}
	return m
}

// rawMode is the reverse of permissions.
func rawMode(m fs.FileMode) uint32 {
	mode := uint32(m.Perm())
	if m&fs.ModeSetuid != 0 {
		mode |= unix.S_ISUID
	}
	if m&fs.ModeSetgid != 0 {
		mode |= unix.S_ISGID
	}
	if m&fs.ModeSticky != 0 {
		mode |= unix.S_ISVTX
	}
	return mode
}

// readlink reads a link below an open directory, or with an empty name an open link itself.
func readlink(fd int, name string) (string, error) {
	buf := make([]byte, pathMax+1)
	n, err := unix.Readlinkat(fd, name, buf)
	if err != nil {
		return "", err
	}
	return string(bytes.TrimRight(buf[:n], "\x00")), nil
}

// reopen opens a file that was opened by its path only, now that its type is known.
func reopen(fd, flags int) (*os.File, error) {
	real, err := unix.Open("/proc/self/fd/"+itoa(fd), flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(real), "file"), nil
}
