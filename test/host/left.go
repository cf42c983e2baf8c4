package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Kinds of what a host has.
const (
	KindProcess = "process" // in a control group of Dayfly's
	KindCgroup  = "cgroup"
	KindMount   = "mount" // in any mount namespace
	KindNetns   = "netns" // that a process or descriptor holds
	KindLink    = "link"
	KindTable   = "nft table"
	KindRule    = "nft rule" // of other tables that says dayfly
	KindLoop    = "loop device"
	KindRun     = "run file" // below /run/dayfly
	KindForward = "ip_forward"
	KindFile    = "file" // in a temporary directory
	KindRoute   = "route"
)

// Thing is one thing that a host has.
type Thing struct{ Kind, Name string }

// String is for people.
func (t Thing) String() string { return t.Kind + " " + t.Name }

// Snapshot lists what this host has, of the kinds that a server could leave behind.
func Snapshot() ([]Thing, error) {
	var all []Thing
	var errs []error
	for _, look := range []struct {
		kind string
		list func() ([]string, error)
	}{
		{KindProcess, processes}, {KindCgroup, cgroups}, {KindMount, mounts}, {KindNetns, namespaces}, {KindLink, links},
		{KindTable, tables}, {KindRule, rules}, {KindLoop, loops}, {KindRun, runFiles}, {KindForward, forward}, {KindFile, tempFiles},
		{KindRoute, routes},
	} {
		names, err := look.list()
		if err != nil {
			errs = append(errs, fmt.Errorf("list every %s: %w", look.kind, err))
		}
		for _, name := range names {
			all = append(all, Thing{look.kind, name})
		}
	}
	return all, errors.Join(errs...)
}

// New gives what is in after and not in before.
func New(before, after []Thing) []Thing {
	return slices.DeleteFunc(slices.Clone(after), func(t Thing) bool { return slices.Contains(before, t) })
}

// Lost gives what is in before and not in after, of the kinds and names that are never a test's: the host's own settings,
// rules, links and routes.
func Lost(before, after []Thing) []Thing {
	return slices.DeleteFunc(New(after, before), func(t Thing) bool {
		switch t.Kind {
		case KindForward, KindRule, KindRoute, KindTable:
			return strings.Contains(t.Name, "df") || strings.Contains(t.Name, "dayfly_")
		case KindLink:
			return strings.HasPrefix(t.Name, "df")
		}
		return true
	})
}

// Alone tells whether no other test or server of Dayfly's runs on this host, so that every change is ours.
func Alone() bool {
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return false
	}
	self := fmt.Sprintf("/proc/%d/exe", os.Getpid())
	for _, exe := range exes {
		target, err := os.Readlink(exe)
		if err != nil || exe == self {
			continue
		}
		name := strings.TrimSuffix(filepath.Base(target), " (deleted)")
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(exe), "cmdline"))
		theirs := strings.HasPrefix(name, binaryName) && !bytes.Contains(line, []byte(dataPrefix))
		if theirs || strings.HasSuffix(name, ".test") || name == "demo" || name == "bench" {
			return false
		}
	}
	return true
}

// Left lists what of the installation is on the host: everything that bears its id, its data directory or, in a control
// group's path, one of its sandboxes.
func (s *Server) Left() ([]string, error) {
	if s.Installation == "" {
		return nil, nil // it never came to have one
	}
	all, err := Snapshot()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, t := range all {
		if strings.Contains(t.Name, s.Data) || strings.Contains(t.Name, s.Installation) {
			out = append(out, t.String())
		}
	}
	return append(out, s.commands()...), nil
}

// commands lists the processes that were started for the data directory.
func (s *Server) commands() []string {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var out []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && bytes.Contains(b, []byte(s.Data)) {
			out = append(out, "command "+strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " ")))
		}
	}
	return out
}

func processes() ([]string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it ended while we looked
		}
		if dead(filepath.Dir(f)) {
			continue
		}
		if _, group, ok := strings.Cut(string(b), "/dayfly-"); ok {
			group, _, _ = strings.Cut(group, "\n")
			comm, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "comm"))
			out = append(out, fmt.Sprintf("%s %s in dayfly-%s", filepath.Base(filepath.Dir(f)), strings.TrimSpace(string(comm)), group))
		}
	}
	return out, nil
}

// dead tells whether a process is only an entry that its parent has not read yet. An orphan's parent is the host's init.
func dead(proc string) bool {
	b, err := os.ReadFile(filepath.Join(proc, "stat"))
	_, rest, _ := strings.Cut(string(b), ") ")
	return err != nil || strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

func cgroups() ([]string, error) {
	var out []string
	for _, pattern := range []string{"/sys/fs/cgroup/dayfly-*", "/sys/fs/cgroup/*/dayfly-*"} {
		tops, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, top := range tops {
			below, _ := filepath.Glob(top + "/*/") // directories only
			out = append(append(out, top), below...)
		}
	}
	return out, nil
}

// mounts lists the mounts of every mount namespace, except those of a sandbox's own root, which go with its processes.
func mounts() ([]string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, f := range files {
		ns, err := os.Readlink(filepath.Join(filepath.Dir(f), "ns", "mnt"))
		if err != nil || seen[ns] {
			continue
		}
		seen[ns] = true
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if fields := strings.Fields(line); len(fields) > 9 {
				seen["point "+ns+" "+fields[4]+" "+fields[len(fields)-3]] = true
			}
		}
	}
	var out []string
	for name := range seen {
		if point, ok := strings.CutPrefix(name, "point "); ok {
			out = append(out, point)
		}
	}
	return out, nil
}

// namespaces lists the network namespaces that a process lives in or that a descriptor holds.
func namespaces() ([]string, error) {
	seen := map[string]bool{}
	for _, pattern := range []string{"/proc/[0-9]*/ns/net", "/proc/[0-9]*/fd/*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, p := range paths {
			if target, err := os.Readlink(p); err == nil && strings.HasPrefix(target, "net:[") {
				seen[target] = true
			}
		}
	}
	var out []string
	for name := range seen {
		out = append(out, name)
	}
	return out, nil
}

func links() ([]string, error) {
	b, err := exec.Command("ip", "-o", "link").Output()
	var out []string
	for line := range strings.Lines(string(b)) {
		if fields := strings.Fields(line); len(fields) > 1 {
			name, _, _ := strings.Cut(strings.TrimSuffix(fields[1], ":"), "@")
			out = append(out, name)
		}
	}
	return out, err
}

func routes() ([]string, error) {
	b, err := exec.Command("ip", "route").Output()
	return strings.Split(strings.TrimSpace(string(b)), "\n"), err
}

func tables() ([]string, error) {
	b, err := exec.Command("nft", "list", "tables").Output()
	return strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' }), err
}

// rules lists the rules that bear our comment, wherever they are.
func rules() ([]string, error) {
	b, err := exec.Command("nft", "list", "ruleset").Output()
	var out []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "comment") && strings.Contains(line, "dayfly") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out, err
}

func loops() ([]string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	var out []string
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil {
			out = append(out, strings.Split(f, "/")[3]+" "+strings.TrimSpace(string(b)))
		}
	}
	return out, err
}

func runFiles() ([]string, error) {
	var out []string
	err := filepath.WalkDir("/run/dayfly", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			name := path
			if strings.HasPrefix(path, "/run/dayfly/blocks/") { // says whose it is
				b, _ := os.ReadFile(path)
				name += " " + strings.TrimSpace(string(b))
			}
			out = append(out, name)
		}
		return err
	})
	return out, err
}

func forward() ([]string, error) {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	return []string{strings.TrimSpace(string(b))}, err
}

func tempFiles() ([]string, error) {
	var out []string
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if strings.Contains(e.Name(), "dayfly") {
				out = append(out, filepath.Join(dir, e.Name()))
			}
		}
	}
	return out, nil
}

func containsLine(text, want string) bool {
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == want {
			return true
		}
	}
	return false
}
