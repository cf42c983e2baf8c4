package measure

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// weight is what the processes of one sandbox take of the host.
type weight struct {
	pssKiB     int64 // proportional share of all their pages
	privateKiB int64 // of that, what no file holds, so that it cannot be dropped
	threads    int
}

// add adds another's.
func (w *weight) add(o weight) {
	w.pssKiB, w.privateKiB, w.threads = w.pssKiB+o.pssKiB, w.privateKiB+o.privateKiB, w.threads+o.threads
}

// weights weighs sandboxes by id, from outside: a process belongs to the sandbox whose id is in the path of its control group.
// A process that ends meanwhile weighs nothing. It needs root, for the pages of other users' processes.
func weights(ids map[string]bool) (map[string]weight, error) {
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	out := map[string]weight{}
	for _, group := range groups {
		text, err := os.ReadFile(group)
		if err != nil {
			continue // it has ended
		}
		id := groupOf(string(text), ids)
		if id == "" {
			continue
		}
		w, err := weighProcess(filepath.Dir(group))
		switch {
		case os.IsPermission(err):
			return nil, fmt.Errorf("weigh a process: %w", err)
		case err != nil:
			continue
		}
		sum := out[id]
		sum.add(w)
		out[id] = sum
	}
	return out, nil
}

// groupOf is the sandbox that a process belongs to by the paths of its control groups, or empty.
func groupOf(cgroups string, ids map[string]bool) string {
	for line := range strings.Lines(cgroups) {
		for part := range strings.SplitSeq(strings.TrimSpace(line), "/") {
			if ids[part] {
				return part
			}
		}
	}
	return ""
}

// weighProcess reads what the kernel tells of one process.
func weighProcess(dir string) (weight, error) {
	f, err := os.Open(filepath.Join(dir, "smaps_rollup"))
	if err != nil {
		return weight{}, err
	}
	defer f.Close()
	var w weight
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		switch name {
		case "Pss":
			w.pssKiB = kib
		case "Pss_Anon", "Pss_Shmem":
			w.privateKiB += kib
		}
	}
	if err := lines.Err(); err != nil {
		return weight{}, err
	}
	w.threads, err = threadsOf(dir)
	return w, err
}

// threadsOf counts the threads of a process: its directory of them has a link for each, beside its own two.
func threadsOf(dir string) (int, error) {
	info, err := os.Stat(filepath.Join(dir, "task"))
	if err != nil {
		return 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fs.ErrInvalid
	}
	return max(0, int(st.Nlink)-2), nil
}

// threadsFree is how many more threads the host's kernel allows, or 0 when it does not tell.
func threadsFree() int {
	allowed := min(number("/proc/sys/kernel/pid_max"), number("/proc/sys/kernel/threads-max"))
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil || allowed == 0 {
		return 0
	}
	f := strings.Fields(string(b))
	if len(f) < 4 {
		return 0
	}
	_, all, _ := strings.Cut(f[3], "/")
	used, err := strconv.Atoi(all)
	if err != nil {
		return 0
	}
	return max(0, allowed-used)
}

// number is the number that a file of the kernel holds, or 0.
func number(path string) int {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}
