package fake

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	killRounds  = 200 // of killing what carries a mark, against what forks meanwhile
	killWait    = time.Millisecond
	ticksSecond = 100 // clock ticks; the kernel's value for user space on every architecture
	statUser    = 11  // fields of /proc/PID/stat behind the name
	statSystem  = 12
	statState   = 0
	statRSS     = 21
)

// marked lists the living processes whose environment holds exactly the variable mark.
func marked(mark string) (pids []int) {
	_ = eachProcess(func(pid int, environ []byte) {
		for v := range bytes.SplitSeq(environ, []byte{0}) {
			if string(v) == mark && !zombie(pid) {
				pids = append(pids, pid)
				return
			}
		}
	})
	return pids
}

// ids lists what follows prefix in the environments of living processes.
func ids(prefix string) ([]string, error) {
	var out []string
	err := eachProcess(func(pid int, environ []byte) {
		for v := range bytes.SplitSeq(environ, []byte{0}) {
			if id, ok := strings.CutPrefix(string(v), prefix); ok && !zombie(pid) {
				out = append(out, id)
			}
		}
	})
	slices.Sort(out)
	return slices.Compact(out), err
}

// eachProcess calls f with every process whose environment can be read: those of this user.
func eachProcess(f func(pid int, environ []byte)) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if environ, err := os.ReadFile("/proc/" + e.Name() + "/environ"); err == nil {
			f(pid, environ)
		}
	}
	return nil
}

// killMarked kills every process with the mark until none lives, and tells how many it could not.
func killMarked(mark string) int {
	for range killRounds {
		pids := marked(mark)
		if len(pids) == 0 {
			return 0
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(killWait) // the kernel tells nobody but the parent that a process ended
	}
	return len(marked(mark))
}

// stopMarked stops every process with the mark until all stand still, and tells whether they do.
func stopMarked(mark string) bool {
	for range killRounds {
		moving := slices.DeleteFunc(marked(mark), stopped)
		if len(moving) == 0 {
			return true
		}
		for _, pid := range moving {
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
		time.Sleep(killWait) // the kernel tells nobody but the parent that a process stands still
	}
	return false
}

// continueMarked lets every process with the mark go on.
func continueMarked(mark string) {
	for _, pid := range marked(mark) {
		_ = unix.Kill(pid, unix.SIGCONT)
	}
}

// stopped tells whether a process stands still, as stopped or as dead.
func stopped(pid int) bool {
	f := stat(pid)
	return len(f) == 0 || strings.Contains("TtZX", f[statState])
}

func stat(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}

// zombie tells whether a process is dead and only waits for its parent.
func zombie(pid int) bool {
	f := stat(pid)
	return len(f) == 0 || f[statState] == "Z" || f[statState] == "X"
}

// counters gives a process's resident memory in bytes and its CPU time.
func counters(pid int) (memoryBytes int64, cpu time.Duration) {
	f := stat(pid)
	if len(f) <= statRSS {
		return 0, 0
	}
	user, _ := strconv.ParseInt(f[statUser], 10, 64)
	system, _ := strconv.ParseInt(f[statSystem], 10, 64)
	pages, _ := strconv.ParseInt(f[statRSS], 10, 64)
	return pages * int64(os.Getpagesize()), time.Duration(user+system) * time.Second / ticksSecond
}
