package cgroup_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
)

const (
	mountsV2     = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
	mountsV1     = "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\ncgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\ncgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
	mountsHybrid = mountsV1 + "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
)

// tree writes files below a new root; a name that ends in / is a directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestDetect(t *testing.T) {
	for _, tt := range []struct {
		name, mounts, v2, controllers string
		want                          dayfly.Code
		hybrid                        bool
	}{
		{"pure v2", mountsV2, "sys/fs/cgroup", "cpuset cpu io memory hugetlb pids", "", false},
		{"hybrid", mountsHybrid, "sys/fs/cgroup/unified", "hugetlb", "", true},
		{"half and half", mountsHybrid, "sys/fs/cgroup/unified", "memory pids", "", true},
		{"v1 alone", mountsV1, "sys/fs/cgroup", "", dayfly.CodeUnavailable, false},
		{"no memory controller", mountsV2, "sys/fs/cgroup", "cpu pids", dayfly.CodeUnavailable, false},
		{"nothing", "", "sys/fs/cgroup", "", dayfly.CodeUnavailable, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := tree(t, map[string]string{"proc/self/mounts": tt.mounts, tt.v2 + "/cgroup.controllers": tt.controllers})
			h, err := cgroup.Detect(root)
			if got := dayfly.ErrorCode(err); got != tt.want {
				t.Fatalf("Detect = %v, want code %q", err, tt.want)
			}
			if err == nil && h.Hybrid() != tt.hybrid {
				t.Errorf("Hybrid = %v", h.Hybrid())
			}
			if err != nil && dayfly.AsError(err).Hint == "" {
				t.Error("the error has no hint")
			}
		})
	}
	if _, err := cgroup.Detect(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Detect without a mount table = %v", err)
	}
}

func TestHybridPaths(t *testing.T) {
	root := tree(t, map[string]string{"proc/self/mounts": mountsHybrid, "sys/fs/cgroup/unified/cgroup.controllers": "hugetlb"})
	h, err := cgroup.Detect(root)
	if err != nil {
		t.Fatal(err)
	}
	installation, id := dayfly.NewInstallation(), dayfly.NewID(dayfly.PrefixSandbox)
	g, err := h.Group(installation, id)
	if err != nil {
		t.Fatal(err)
	}
	name := "/dayfly-" + installation + "/" + id
	base := root + "/sys/fs/cgroup/"
	want := map[string]string{"memory": base + "memory" + name, "pids": base + "pids" + name, "cpu": base + "cpu,cpuacct" + name}
	for c, dir := range want {
		if got := g.Paths().V1[c]; got != dir {
			t.Errorf("V1[%s] = %q, want %q", c, got, dir)
		}
	}
	if got := g.EventsPath(); got != base+"unified"+name+"/cgroup.events" {
		t.Errorf("EventsPath = %q", got)
	}
}

// The kernel makes a group's files by itself; on a plain directory tree they are missing. So this test watches a group being
// made and puts the files there before the limits are written.
func TestV2Files(t *testing.T) {
	root := tree(t, map[string]string{
		"proc/self/mounts":                     mountsV2,
		"sys/fs/cgroup/cgroup.controllers":     "cpu memory pids",
		"sys/fs/cgroup/cgroup.subtree_control": "",
	})
	h, err := cgroup.Detect(root)
	if err != nil {
		t.Fatal(err)
	}
	installation := dayfly.NewInstallation()
	id := dayfly.NewID(dayfly.PrefixSandbox)
	dir := h.InstallationDir(installation)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir} {
		if err := os.WriteFile(filepath.Join(d, "cgroup.subtree_control"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	g, err := h.Group(installation, id)
	if err != nil {
		t.Fatal(err)
	}
	limits := dayfly.Limits{VCPU: 2, MemoryBytes: 1 << 30, PIDs: 77}
	if err := g.Create(limits); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("Create on a tree without limit files = %v", err)
	}
	if _, err := os.Stat(g.Paths().V2); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a failed Create left %s", g.Paths().V2)
	}
	for _, d := range []string{filepath.Join(root, "sys/fs/cgroup"), dir} {
		if got := readFile(t, filepath.Join(d, "cgroup.subtree_control")); got != "+memory +pids +cpu" {
			t.Errorf("subtree_control of %s = %q", d, got)
		}
	}
	want := map[string]string{
		"memory.max": "1073741824", "memory.swap.max": "0", "memory.oom.group": "0", "pids.max": "77", "cpu.max": "200000 100000",
		"cgroup.max.depth": "8", "cgroup.max.descendants": "4096",
	}
	if err := os.Mkdir(g.Paths().V2, 0o755); err != nil {
		t.Fatal(err)
	}
	for f := range want {
		if err := os.WriteFile(filepath.Join(g.Paths().V2, f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Limit(limits); err != nil {
		t.Fatal(err)
	}
	for f, text := range want {
		if got := readFile(t, filepath.Join(g.Paths().V2, f)); got != text {
			t.Errorf("%s = %q, want %q", f, got, text)
		}
	}
}

func FuzzParseMounts(f *testing.F) {
	f.Add(mountsHybrid)
	f.Add("cgroup2 /a\\040b cgroup2 rw 0 0")
	f.Fuzz(func(t *testing.T, table string) { cgroup.ParseMounts(table) })
}

func itoa(n int) string { return strconv.Itoa(n) }

func keys(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	return out
}

func must(s string, err error) string {
	if err != nil {
		panic(err)
	}
	return s
}
