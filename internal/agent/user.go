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

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Limits of the sandbox's own user database, which it may have written itself.
const (
	accountFileMax = 1 << 20
	accountLineMax = 64 << 10 // a group may have many members
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
	scanAccounts("/etc/passwd", func(line string) bool {
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
	scanAccounts("/etc/group", func(line string) bool {
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

// scanAccounts gives each line of a file to line until it returns false. A file that is missing, no regular file, or too
// long is read as far as it goes.
func scanAccounts(file string, line func(string) bool) {
	fd, err := open(unix.AT_FDCWD, file, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	scanLines(f, line)
}

func scanLines(r io.Reader, line func(string) bool) {
	b, _ := io.ReadAll(io.LimitReader(r, accountFileMax))
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, accountLineMax)
	for lines.Scan() {
		if !line(lines.Text()) {
			return
		}
	}
}
