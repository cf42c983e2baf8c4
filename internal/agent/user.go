package agent

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Limits of the sandbox's own user database, which it may have written itself.
const (
	accountFileMax = 1 << 20
	accountLineMax = 64 << 10 // a group may have many members
	accountKeepMax = 64 << 10
	groupsMax      = 64
)

// identity is whom a command runs as.
type identity struct {
	rights
	name   string // or empty
	home   string // absolute
	change bool   // the agent must change to it
}

// account is a line of /etc/passwd.
type account struct {
	name     string
	uid, gid uint32
	home     string
}

// lookup settles whom a command runs as: the default user, or one by name or number.
func (a *Agent) lookup(user string) (identity, error) {
	def := a.cfg.User
	if user == "" || user == def.Name || user == strconv.Itoa(int(def.UID)) {
		return a.identity(account{def.Name, def.UID, def.GID, def.Home}), nil
	}
	if !a.cfg.SwitchUser {
		return identity{}, dayfly.Errorf(dayfly.CodeInvalid, "user: this sandbox runs everything as %q", def.Name)
	}
	if user == "root" || user == "0" { // whatever the image's file says, or if there is none
		return a.identity(account{"root", 0, 0, "/root"}), nil
	}
	var found account
	var ok bool
	number, numErr := strconv.ParseUint(user, 10, 32)
	a.passwd.scan(func(line string) bool {
		if found, ok = parseAccount(line); ok {
			ok = found.name == user || numErr == nil && found.uid == uint32(number)
		}
		return !ok
	})
	if !ok && numErr == nil {
		found, ok = account{uid: uint32(number), gid: uint32(number), home: "/"}, true
	}
	if !ok || found.uid >= dayfly.IDCount || found.gid >= dayfly.IDCount {
		return identity{}, dayfly.Errorf(dayfly.CodeInvalid, "user: there is no user %q in the sandbox", user)
	}
	return a.identity(found), nil
}

// identity adds an account's groups.
func (a *Agent) identity(acc account) identity {
	id := identity{rights: rights{uid: acc.uid, gid: acc.gid}, name: acc.name, home: acc.home, change: a.cfg.SwitchUser}
	if !id.change || acc.name == "" {
		return id
	}
	id.groups = []uint32{acc.gid}
	a.group.scan(func(line string) bool {
		gid, members, ok := parseGroup(line)
		if ok && gid < dayfly.IDCount && !slices.Contains(id.groups, gid) && slices.Contains(strings.Split(members, ","), acc.name) {
			id.groups = append(id.groups, gid)
		}
		return len(id.groups) < groupsMax
	})
	return id
}

// parseAccount reads a line of /etc/passwd.
func parseAccount(line string) (account, bool) {
	f := strings.Split(line, ":")
	if len(f) != 7 || f[0] == "" {
		return account{}, false
	}
	uid, err1 := strconv.ParseUint(f[2], 10, 32)
	gid, err2 := strconv.ParseUint(f[3], 10, 32)
	if err1 != nil || err2 != nil {
		return account{}, false
	}
	home := f[5]
	if !path.IsAbs(home) || len(home) > pathMax || strings.ContainsRune(line, 0) {
		home = "/"
	}
	return account{f[0], uint32(uid), uint32(gid), home}, true
}

// parseGroup reads a line of /etc/group.
func parseGroup(line string) (gid uint32, members string, ok bool) {
	f := strings.Split(line, ":")
	if len(f) != 4 {
		return 0, "", false
	}
	n, err := strconv.ParseUint(f[2], 10, 32)
	return uint32(n), f[3], err == nil
}

// accountFile is a file of the sandbox's user database, kept while it stays the same.
type accountFile struct {
	name string

	mu      sync.Mutex
	stamp   fileStamp
	content []byte
}

// fileStamp changes whenever a file's content does.
type fileStamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

// scan gives each line to line until it returns false. A file that is missing, no regular file, or too long is read as far
// as it goes.
func (f *accountFile) scan(line func(string) bool) {
	scanLines(bytes.NewReader(f.read()), line)
}

// read gives the content. Only a small one is kept.
func (f *accountFile) read() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	var st unix.Stat_t
	if unix.Stat(f.name, &st) != nil {
		return nil
	}
	if f.content != nil && f.stamp == stampOf(&st) {
		return f.content
	}
	f.content = nil
	fd, err := open(unix.AT_FDCWD, f.name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	file := os.NewFile(uintptr(fd), f.name)
	defer file.Close()
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	content, _ := io.ReadAll(io.LimitReader(file, accountFileMax))
	if len(content) <= accountKeepMax {
		f.content, f.stamp = content, stampOf(&st)
	}
	return content
}

func stampOf(st *unix.Stat_t) fileStamp {
	return fileStamp{uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Ctim}
}

func scanLines(r io.Reader, line func(string) bool) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, accountLineMax)
	for lines.Scan() {
		if !line(lines.Text()) {
			return
		}
	}
}
