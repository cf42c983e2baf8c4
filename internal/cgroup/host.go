package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"dayfly.dev/dayfly"
)

// WardenID is the name of the group that an installation's warden lives in. It is never listed as a sandbox.
const WardenID = "warden"

const (
	mountsFile   = "proc/self/mounts"
	namePrefix   = "dayfly-"
	mountsMax    = 1 << 22 // bytes of the mount table that are read
	typeV1       = "cgroup"
	typeV2       = "cgroup2"
	subtreeFile  = "cgroup.subtree_control"
	controlsFile = "cgroup.controllers"
)

// controllers are those a sandbox is limited by.
var controllers = []string{"memory", "pids", "cpu"}

// Host is the layout of this host's cgroup hierarchies. The zero value is of no use; Detect makes one.
type Host struct {
	root string            // of the file system, "/" save in tests
	v2   string            // mount point of the v2 hierarchy
	v1   map[string]string // controller → mount point, for the controllers that v2 does not have
	all  []mount           // every v1 hierarchy
}

// Detect reads the mount table below root ("/" save in tests) and finds a home for every controller that is needed.
// CodeUnavailable: v2 is not mounted, or a controller is nowhere; the hint says what to do.
func Detect(root string) (Host, error) {
	mounts, err := readMounts(filepath.Join(root, mountsFile))
	if err != nil {
		return Host{}, err
	}
	h := Host{root: root, v1: map[string]string{}}
	for _, m := range mounts {
		switch m.dir = filepath.Join(root, m.dir); {
		case m.kind == typeV2 && h.v2 == "":
			h.v2 = m.dir
		case m.kind == typeV1:
			h.all = append(h.all, m)
			for _, c := range controllers {
				if slices.Contains(m.options, c) && h.v1[c] == "" {
					h.v1[c] = m.dir
				}
			}
		}
	}
	if h.v2 == "" {
		return Host{}, dayfly.Errorf(dayfly.CodeUnavailable, "the cgroup v2 hierarchy is not mounted on this host").
			WithHint("run: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified")
	}
	return h, h.settle()
}

// settle prefers v2 for each controller that it has and complains about those that nobody has.
func (h *Host) settle() error {
	b, err := os.ReadFile(filepath.Join(h.v2, controlsFile))
	if err != nil {
		return fmt.Errorf("read cgroup controllers: %w", err)
	}
	have := strings.Fields(string(b))
	var missing []string
	for _, c := range controllers {
		if slices.Contains(have, c) {
			delete(h.v1, c)
		} else if h.v1[c] == "" {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		return dayfly.Errorf(dayfly.CodeUnavailable, "this host's kernel offers no cgroup controller for: %s", strings.Join(missing, ", ")).
			WithHint("enable it on the kernel command line (for memory: cgroup_enable=memory) and start the host again")
	}
	return nil
}

// Hybrid tells whether some limits live in v1 hierarchies.
func (h Host) Hybrid() bool { return len(h.v1) > 0 }

// V2 is the mount point of the v2 hierarchy.
func (h Host) V2() string { return h.v2 }

// InstallationDir is the v2 directory that holds an installation's groups.
func (h Host) InstallationDir(installation string) string {
	return filepath.Join(h.v2, namePrefix+installation)
}

// Group names the group of a sandbox (or of the warden, by WardenID); nothing is made yet. CodeInvalid: a name that is no
// installation or sandbox id.
func (h Host) Group(installation, id string) (*Group, error) {
	if !dayfly.ValidInstallation(installation) || id != WardenID && !dayfly.ValidID(dayfly.PrefixSandbox, id) {
		return nil, dayfly.Errorf(dayfly.CodeInvalid, "no cgroup can be named %q of installation %q", id, installation)
	}
	p := Paths{V2: filepath.Join(h.InstallationDir(installation), id)}
	for c, dir := range h.v1 {
		if p.V1 == nil {
			p.V1 = make(map[string]string, len(h.v1))
		}
		p.V1[c] = filepath.Join(dir, namePrefix+installation, id)
	}
	return &Group{paths: p, host: h}, nil
}

// Find gives the sandbox groups of this id whatever the installation, for a caller that has only the id. Ids are random
// enough to be the host's only ones.
func (h Host) Find(id string) ([]*Group, error) {
	if !dayfly.ValidID(dayfly.PrefixSandbox, id) {
		return nil, dayfly.Errorf(dayfly.CodeInvalid, "%q is no sandbox id", id)
	}
	entries, err := os.ReadDir(h.v2)
	if err != nil {
		return nil, fmt.Errorf("find cgroup: %w", err)
	}
	var found []*Group
	for _, e := range entries {
		installation, ok := strings.CutPrefix(e.Name(), namePrefix)
		if !ok || !dayfly.ValidInstallation(installation) {
			continue
		}
		g, err := h.Group(installation, id)
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(g.paths.V2); err == nil {
			found = append(found, g)
		} else if !gone(err) {
			return nil, fmt.Errorf("find cgroup: %w", err)
		}
	}
	return found, nil
}

// mountPoints are those of the hierarchies that groups live in, v2 first, each once.
func (h Host) mountPoints() []string {
	dirs := []string{h.v2}
	for _, c := range controllers {
		if dir := h.v1[c]; dir != "" && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// List gives the ids of all sandbox groups of an installation, found in any hierarchy, sorted. An error means "could not
// look", never "nothing there".
func (h Host) List(installation string) ([]string, error) {
	if !dayfly.ValidInstallation(installation) {
		return nil, dayfly.Errorf(dayfly.CodeInvalid, "%q is no installation id", installation)
	}
	var ids []string
	for _, mount := range h.mountPoints() {
		entries, err := os.ReadDir(filepath.Join(mount, namePrefix+installation))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && e.Name() != WardenID {
				ids = append(ids, e.Name())
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// RemoveInstallation removes the warden's group and the directories that held the installation's groups. ErrBusy: a sandbox
// or the warden is still there. Removing what is not there succeeds.
func (h Host) RemoveInstallation(installation string) error {
	g, err := h.Group(installation, WardenID)
	if err != nil {
		return err
	}
	if err := g.Remove(); err != nil {
		return err
	}
	var errs []error
	for _, mount := range h.mountPoints() {
		errs = append(errs, rmdir(filepath.Join(mount, namePrefix+installation)))
	}
	return errors.Join(errs...)
}

// mount is one line of the mount table.
type mount struct {
	dir     string
	kind    string
	options []string
}

// readMounts gives the cgroup mounts of a mount table. Mount points are escaped there, for a space or a newline.
func readMounts(path string) ([]mount, error) {
	b, err := readLimited(path, mountsMax)
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	return parseMounts(string(b)), nil
}

func parseMounts(table string) []mount {
	var out []mount
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 4 || f[2] != typeV1 && f[2] != typeV2 {
			continue
		}
		out = append(out, mount{dir: unescape.Replace(f[1]), kind: f[2], options: strings.Split(f[3], ",")})
	}
	return out
}
