package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// ErrBusy says that a group could not be removed because something still lives in it.
var ErrBusy = errors.New("the cgroup is still in use")

const (
	eventsFile   = "cgroup.events"
	procsFile    = "cgroup.procs"
	tasksFile    = "tasks" // v1
	groupMode    = 0o755
	fileMax      = 1 << 22 // bytes of one cgroup file that are read
	readFirst    = 4 << 10 // bytes, enough for most of them
	createTries  = 5       // against a RemoveInstallation at the same time
	depthMax     = 8       // levels of groups that a sandbox may make below its own
	childrenMax  = 4096    // groups that a sandbox may make below its own
	delegatedAll = "cgroup.procs cgroup.threads cgroup.subtree_control"
)

// Paths are the directories of a group. They describe it fully: another process can Open it by them.
type Paths struct {
	V2 string            `json:"v2"`
	V1 map[string]string `json:"v1,omitempty"` // controller → directory, for the controllers that v2 does not have
}

// dirs are the directories, v2 first, each once.
func (p Paths) dirs() []string {
	dirs := []string{p.V2}
	for _, c := range controllers {
		if dir := p.V1[c]; dir != "" && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// of is the directory where a controller's files are.
func (p Paths) of(controller string) string {
	if dir := p.V1[controller]; dir != "" {
		return dir
	}
	return p.V2
}

// Group is one sandbox's control group in every hierarchy that is used. Its methods may be called from several goroutines
// and processes; it holds no descriptor.
type Group struct {
	paths Paths
	host  Host // zero for a group from Open
}

// Open names a group by its paths, as Paths gave them. Each must end in dayfly-<installation>/<id>, so that a damaged record
// never leads to another group; CodeInvalid otherwise. A group from Open cannot Create or Start.
func Open(p Paths, installation, id string) (*Group, error) {
	if !dayfly.ValidInstallation(installation) || !dayfly.ValidID(dayfly.PrefixSandbox, id) {
		return nil, dayfly.Errorf(dayfly.CodeInvalid, "no cgroup can be named %q of installation %q", id, installation)
	}
	want := "/" + namePrefix + installation + "/" + id
	for _, dir := range append(slices.Collect(mapValues(p.V1)), p.V2) {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || !strings.HasSuffix(dir, want) {
			return nil, dayfly.Errorf(dayfly.CodeInvalid, "%q is no cgroup of sandbox %s", dir, id)
		}
	}
	return &Group{paths: p}, nil
}

func mapValues(m map[string]string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, v := range m {
			if !yield(v) {
				return
			}
		}
	}
}

// Paths are the group's directories.
func (g *Group) Paths() Paths { return g.paths }

// EventsPath is the file that tells whether the group is populated, for Events.Watch.
func (g *Group) EventsPath() string { return filepath.Join(g.paths.V2, eventsFile) }

// Create makes the group's directories and writes its limits; a limit of 0 is no limit, save PIDs (dayfly.PIDsDefault).
// CodeConflict: there is a group of that name already, it is left alone. On any other error nothing is left.
func (g *Group) Create(limits dayfly.Limits) error {
	if g.host.v2 == "" {
		return errors.New("create cgroup: the group was opened by its paths")
	}
	dirs := g.paths.dirs()
	for i, dir := range dirs {
		if err := g.mkdir(dir); err != nil {
			return errors.Join(err, rmdirs(dirs[:i]))
		}
	}
	if err := g.limit(limits); err != nil {
		return errors.Join(fmt.Errorf("limit cgroup: %w", err), rmdirs(dirs))
	}
	return nil
}

// mkdir makes one directory and, if needed, the installation's above it. The latter may vanish meanwhile, when another
// process removes an installation that was empty until now.
func (g *Group) mkdir(dir string) error {
	for range createTries {
		if err := os.Mkdir(filepath.Dir(dir), groupMode); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("create cgroup of the installation: %w", err)
		}
		if dir == g.paths.V2 {
			if err := g.enable(); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		err := os.Mkdir(dir, groupMode)
		if errors.Is(err, fs.ErrExist) {
			return dayfly.Errorf(dayfly.CodeConflict, "there is a cgroup %s already", filepath.Base(dir)).WithCause(err)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				return fmt.Errorf("create cgroup: %w", err)
			}
			return nil
		}
	}
	return fmt.Errorf("create cgroup: %s vanished %d times", filepath.Dir(dir), createTries)
}

// enable passes the v2 controllers down to the sandbox groups.
func (g *Group) enable() error {
	var want []string
	for _, c := range controllers {
		if g.paths.V1[c] == "" {
			want = append(want, "+"+c)
		}
	}
	if len(want) == 0 {
		return nil
	}
	for _, dir := range []string{g.host.v2, filepath.Dir(g.paths.V2)} {
		file := filepath.Join(dir, subtreeFile)
		have, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("enable cgroup controllers: %w", err)
		}
		missing := slices.DeleteFunc(slices.Clone(want), func(c string) bool {
			return slices.Contains(strings.Fields(string(have)), c[1:])
		})
		if len(missing) == 0 {
			continue
		}
		if err := write(file, strings.Join(missing, " ")); errors.Is(err, syscall.EBUSY) {
			return dayfly.Errorf(dayfly.CodeUnavailable, "the cgroup %s holds processes, so it cannot limit groups below", dir).
				WithHint("run Dayfly on the host itself, or in a container whose processes are moved into a cgroup of their own").WithCause(err)
		} else if err != nil {
			return fmt.Errorf("enable cgroup controllers: %w", err)
		}
	}
	return nil
}

// Delegate gives the v2 group to uid and gid, so that they may make groups below it and move processes among these. Limits
// stay root's.
func (g *Group) Delegate(uid, gid int) error {
	if err := os.Lchown(g.paths.V2, uid, gid); err != nil {
		return fmt.Errorf("delegate cgroup: %w", err)
	}
	for f := range strings.FieldsSeq(delegatedAll) {
		if err := os.Lchown(filepath.Join(g.paths.V2, f), uid, gid); err != nil {
			return fmt.Errorf("delegate cgroup: %w", err)
		}
	}
	return nil
}

// Processes gives the pids of every process in the group and in those below it, sorted. A group that does not exist has
// none. Pids of another pid namespace's view that cannot be named here are left out.
func (g *Group) Processes() ([]int, error) {
	dirs, err := subtree(g.paths.V2)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, dir := range dirs {
		b, err := readLimited(filepath.Join(dir, procsFile), fileMax)
		if gone(err) || errors.Is(err, syscall.EOPNOTSUPP) { // the latter: a threaded group, its domain lists them
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		for line := range strings.Lines(string(b)) {
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// Populated tells whether any process lives in the group or below it. A group that does not exist has none; one that
// cannot be read is an error.
func (g *Group) Populated() (bool, error) {
	b, err := readLimited(g.EventsPath(), fileMax)
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read cgroup events: %w", err)
	}
	v, ok := field(b, "populated")
	if !ok {
		return false, fmt.Errorf("read cgroup events: no populated line in %s", g.EventsPath())
	}
	return v != 0, nil
}

// subtree gives dir and all directories below it, parents first; none when dir does not exist.
func subtree(dir string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if gone(err) {
			return nil // removed meanwhile
		}
		if err == nil && d.IsDir() {
			out = append(out, path)
		}
		return err
	})
	return out, err
}

// gone tells whether err means that the group is not there: ENODEV is a file of it that was open when it went.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) }

// field finds "key number" in a flat-keyed file.
func field(b []byte, key string) (int64, bool) {
	for line := range bytes.Lines(b) {
		if k, v, ok := strings.Cut(strings.TrimSpace(string(line)), " "); ok && k == key {
			n, err := strconv.ParseInt(v, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// write writes a cgroup file in one call. It never creates one: a missing file is an error.
func write(path, value string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	_, err = unix.Write(fd, []byte(value))
	_ = unix.Close(fd)
	if err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

func readLimited(path string, max int64) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) // not os.Open: the runtime's poller has no use for these files
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	buf := make([]byte, 0, readFirst)
	for int64(len(buf)) < max {
		buf = slices.Grow(buf, 1)
		n, err := unix.Read(fd, buf[len(buf):min(int64(cap(buf)), max)])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return buf, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			break
		}
		buf = buf[:len(buf)+n]
	}
	return buf, nil
}
