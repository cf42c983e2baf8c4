package gvisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/driver/gvisor/cell"
)

// commandScore is the oom_score_adj of the processes that hold the address spaces of commands. They have no memory of their own:
// the user-space kernel has it, maps what it has touched itself, and would mostly be the largest. With it the whole machine
// would go. Where a command's process is killed instead, the user-space kernel ends the command and frees what it had. The
// distance is that share of the machine's limit, in thousandths, by which the user-space kernel may be larger.
const commandScore = "800"

// fixScores writes the oom_score_adj that the cell gave itself to every process of the machine once more: none can lower what a
// writer with CAP_SYS_RESOURCE wrote, and what is started later inherits that. The one that commands' are cloned from gets
// theirs; the agent's own, which is there already, keeps the machine's.
func fixScores(group *cgroup.Group) error {
	pids, err := group.Processes()
	if err != nil {
		return err
	}
	source := commandSource(pids)
	for _, pid := range pids {
		score := cell.Score
		if pid == source {
			score = commandScore
		}
		err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(score), 0)
		switch {
		case err == nil, errors.Is(err, unix.EACCES): // the node's own is higher
		case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ESRCH): // it has ended
		default:
			return fmt.Errorf("protect the host's memory: %w", err)
		}
	}
	return nil
}

// commandSource finds the process of the user-space kernel that all address spaces are cloned from: the first that it made, so
// the one with the lowest number inside the cell, among those without a command line. 0: there is none, as with a runsc that
// works otherwise; then a lack of memory ends the machine more often.
func commandSource(pids []int) (source int) {
	lowest := 0
	for _, pid := range pids {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || len(line) > 0 {
			continue
		}
		if inner := innerPID(pid); inner > 0 && (source == 0 || inner < lowest) {
			source, lowest = pid, inner
		}
	}
	return source
}

// innerPID is the number of a process in its own namespace; 0 for one that has ended, reaped or not.
func innerPID(pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || !bytes.Contains(status, []byte("\nVmRSS:")) { // what has ended has no memory
		return 0
	}
	for line := range bytes.Lines(status) {
		numbers, ok := strings.CutPrefix(string(line), "NSpid:")
		if f := strings.Fields(numbers); ok && len(f) > 0 {
			inner, _ := strconv.Atoi(f[len(f)-1])
			return inner
		}
	}
	return 0
}
