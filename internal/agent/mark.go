package agent

import (
	"bytes"
	"os"
	"strconv"
)

// The values of oom_score_adj that mark commands where there is no cgroup. Every descendant inherits its command's, whatever
// it does with sessions and parents, so it tells the commands apart. Where there are cgroups all have scoreCommand, and so
// have those for which no mark was free, which are then killed by their process group only.
const (
	markFirst = scoreCommand + 1
	markLast  = 999
)

// marks hands out marks. It needs the lock of its children.
type marks struct {
	used    map[int]*process // by mark: the command that runs with it
	retired map[int]*process // by mark: the command that has ended; background children may still bear it
	next    int              // where the search begins, so that a mark rests before it is used again
}

func newMarks() marks {
	return marks{used: make(map[int]*process), retired: make(map[int]*process), next: markFirst}
}

// take gives a mark that no living process bears, or scoreCommand when there is none.
func (m *marks) take(p *process) int {
	if m.used[p.kin.mark] == p {
		return p.kin.mark // of its former try
	}
	if len(m.used)+len(m.retired) > markLast-markFirst {
		m.recover()
	}
	for range markLast - markFirst + 1 {
		mark := m.next
		if m.next++; m.next > markLast {
			m.next = markFirst
		}
		if m.used[mark] == nil && m.retired[mark] == nil {
			m.used[mark] = p
			return mark
		}
	}
	return scoreCommand
}

// untake gives back a mark that no process was given; one of a former try stays.
func (m *marks) untake(mark int) {
	if p := m.used[mark]; p != nil && p.kin.mark != mark {
		delete(m.used, mark)
	}
}

// retire notes that the command of a mark has ended.
func (m *marks) retire(mark int) {
	if p := m.used[mark]; p != nil {
		delete(m.used, mark)
		m.retired[mark] = p
	}
}

// owns tells whether p's mark is still its own.
func (m *marks) owns(p *process) bool { return m.used[p.kin.mark] == p || m.retired[p.kin.mark] == p }

// recover frees the retired marks that nothing bears any more.
func (m *marks) recover() {
	borne := make(map[int]bool)
	for _, pid := range descendants(os.Getpid()) {
		borne[markOf(pid)] = true
	}
	for mark := range m.retired {
		if !borne[mark] {
			delete(m.retired, mark)
		}
	}
}

// markOf reads a process's mark, or 0 when it is gone.
func markOf(pid int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
	if err != nil {
		return 0
	}
	mark, _ := strconv.Atoi(string(bytes.TrimSpace(b)))
	return mark
}

// marked lists the living descendants of the agent that bear p's mark. Anything else on the host may bear the same number.
func (p *process) marked() []int {
	if !p.agent.children.owns(p) {
		return nil
	}
	var pids []int
	for _, pid := range descendants(os.Getpid()) {
		if markOf(pid) == p.kin.mark {
			pids = append(pids, pid)
		}
	}
	return pids
}
