package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// ConfigPath is the file inside an image that says how it wants to be run.
const ConfigPath = "etc/dayfly/image.json"

const (
	nameMax     = 63
	configMax   = 256 << 10
	passwdMax   = 4 << 20
	envMax      = 256       // variables
	envBytesMax = 128 << 10 // of all names and values together
	userDefault = 1000      // uid
)

// ValidName tells whether s can name an image.
func ValidName(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= nameMax
}

// config is the content of ConfigPath. Every field may be missing.
type config struct {
	User    string            `json:"user"`
	Workdir string            `json:"workdir"`
	Env     map[string]string `json:"env"`
}

func readConfig(root *os.File) (config, error) {
	var c config
	b, err := readInside(root, ConfigPath, configMax)
	if errors.Is(err, os.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, dayfly.Errorf(dayfly.CodeInvalid, "the image's /%s cannot be read: %s", ConfigPath, err).
			WithHint(`it is one JSON object with the fields "user", "workdir" and "env", each optional`)
	}
	return c, nil
}

func checkEnv(env map[string]string) error {
	size := 0
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return dayfly.Errorf(dayfly.CodeInvalid, "environment variable %q of the image is not valid", short(k)).
				WithHint("names are not empty and hold no '=', nothing holds a NUL byte")
		}
		size += len(k) + len(v)
	}
	if len(env) > envMax || size > envBytesMax {
		return dayfly.Errorf(dayfly.CodeInvalid, "the image's environment has more than %d variables or %d bytes", envMax, envBytesMax)
	}
	return nil
}

// findUser looks want up in the image's /etc/passwd. Empty means uid 1000 if there is one, else root.
func findUser(root *os.File, want string) (dayfly.User, error) {
	users, err := readPasswd(root)
	if err != nil {
		return dayfly.User{}, err
	}
	u, err := chooseUser(users, want)
	if err != nil {
		return dayfly.User{}, err
	}
	if !isDirInside(root, u.Home) {
		u.Home = "/"
	}
	return u, nil
}

func chooseUser(users []dayfly.User, want string) (dayfly.User, error) {
	if want == "" {
		for _, id := range []uint32{userDefault, 0} {
			for _, u := range users {
				if u.UID == id {
					return u, nil
				}
			}
		}
		return dayfly.User{Home: "/"}, nil
	}
	for _, u := range users {
		if u.Name == want {
			return u, nil
		}
	}
	id, err := strconv.ParseUint(want, 10, 32)
	if err != nil {
		return dayfly.User{}, dayfly.Errorf(dayfly.CodeInvalid, "the image has no user %q", short(want)).
			WithHint("give a name of its /etc/passwd, or a number")
	}
	if id >= dayfly.IDCount {
		return dayfly.User{}, dayfly.Errorf(dayfly.CodeInvalid, "user id %d is outside 0 to %d", id, dayfly.IDCount-1)
	}
	for _, u := range users {
		if u.UID == uint32(id) {
			return u, nil
		}
	}
	return dayfly.User{UID: uint32(id), GID: uint32(id), Home: "/"}, nil
}

// readPasswd reads the users of the image, leaving out lines that make no sense. No /etc/passwd means no users.
func readPasswd(root *os.File) ([]dayfly.User, error) {
	b, err := readInside(root, "etc/passwd", passwdMax)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var users []dayfly.User
	for line := range strings.Lines(string(b)) {
		if u, ok := parsePasswd(strings.TrimRight(line, "\r\n")); ok {
			users = append(users, u)
		}
	}
	return users, nil
}

// parsePasswd reads name:password:uid:gid:comment:home:shell.
func parsePasswd(line string) (dayfly.User, bool) {
	f := strings.Split(line, ":")
	if len(f) < 6 || !validLogin(f[0]) {
		return dayfly.User{}, false
	}
	uid, err1 := strconv.ParseUint(f[2], 10, 32)
	gid, err2 := strconv.ParseUint(f[3], 10, 32)
	if err1 != nil || err2 != nil || uid >= dayfly.IDCount || gid >= dayfly.IDCount {
		return dayfly.User{}, false
	}
	home := f[5]
	if !path.IsAbs(home) || strings.ContainsRune(home, 0) || len(home) > unix.PathMax-1 {
		home = "/"
	}
	return dayfly.User{Name: f[0], UID: uint32(uid), GID: uint32(gid), Home: path.Clean(home)}, true
}

func validLogin(s string) bool {
	const most = 64
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || c == '/' || i == 0 && (c == '-' || c == '+') {
			return false
		}
	}
	return s != "" && len(s) <= most
}

func cleanWorkdir(root *os.File, dir string) (string, error) {
	if !path.IsAbs(dir) || strings.ContainsRune(dir, 0) {
		return "", dayfly.Errorf(dayfly.CodeInvalid, "workdir %q is not an absolute path", short(dir))
	}
	dir = path.Clean(dir)
	if !isDirInside(root, dir) {
		return "", dayfly.Errorf(dayfly.CodeInvalid, "workdir %q is not a directory of the image", short(dir))
	}
	return dir, nil
}

// inRoot resolves a path of the image as a program inside would: links of it stay in it.
const inRoot = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

func isDirInside(root *os.File, name string) bool {
	fd, err := openat2(int(root.Fd()), name, unix.O_PATH|unix.O_DIRECTORY, inRoot)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

// readInside reads a regular file of the image. os.ErrNotExist: there is no such file. CodeInvalid: it cannot be read as one.
func readInside(root *os.File, name string, most int64) ([]byte, error) {
	fd, err := openat2(int(root.Fd()), name, unix.O_PATH, inRoot) // O_PATH: opening a FIFO would block, a device do harm
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil, os.ErrNotExist
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return nil, dayfly.Errorf(dayfly.CodeInvalid, "the image's /%s is a link that leads nowhere", name)
	case err != nil:
		return nil, fmt.Errorf("open /%s of the image: %w", name, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("look at /%s of the image: %w", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > most {
		return nil, dayfly.Errorf(dayfly.CodeInvalid, "the image's /%s is not a file of at most %d bytes", name, most)
	}
	return readLimited(filepath.Join("/proc/self/fd", strconv.Itoa(fd)), most)
}

func readLimited(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("read %s: it is larger than %d bytes", name, most)
	}
	return b, err
}

func openat2(dir int, name string, flags, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: resolve}
	for {
		fd, err := unix.Openat2(dir, name, &how)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) { // EAGAIN: a rename elsewhere raced the lookup
			return fd, err
		}
	}
}
