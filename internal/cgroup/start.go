package cgroup

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start runs clone so that a process it makes is born in this group, in every hierarchy, from its first instruction. clone
// gets a descriptor of the v2 directory for CLONE_INTO_CGROUP (syscall.SysProcAttr.CgroupFD), valid until it returns, and
// must make the process on the goroutine that it is called on. After Kill the clone fails with EAGAIN.
//
// On a hybrid host the calling thread first puts itself into the v1 groups, which the child inherits: writing a pid into
// cgroup.procs would wait 6–22 ms for a grace period of the kernel. In v1 hierarchies that have no limit of ours (freezer,
// name=systemd and so on) the child is born in the root, so what happens to the caller's own groups never touches it.
func (g *Group) Start(clone func(v2 int) error) error {
	if g.host.v2 == "" {
		return errors.New("start in cgroup: the group was opened by its paths")
	}
	fd, err := unix.Open(g.paths.V2, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("start in cgroup: open %s: %w", g.paths.V2, err)
	}
	defer unix.Close(fd)
	if len(g.host.all) == 0 {
		return clone(fd)
	}
	done := make(chan error, 1)
	go onOwnThread(func() (bool, error) { return g.startInV1(fd, clone) }, done)
	return <-done
}

// StartCmd starts cmd in this group. cmd.SysProcAttr may be set; its cgroup fields are overwritten.
func (g *Group) StartCmd(cmd *exec.Cmd) error {
	return g.Start(func(v2 int) error {
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, v2
		return cmd.Start()
	})
}

// onOwnThread runs f on a locked thread that is not the process's main one. When f says that the thread is spoilt (it could
// not be put back), the thread ends with its goroutine; the main thread could not, it never ends.
func onOwnThread(f func() (spoilt bool, err error), done chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		inner := make(chan error, 1)
		go onOwnThread(f, inner) // cannot get the main thread while this goroutine holds it
		err := <-inner
		runtime.UnlockOSThread()
		done <- err
		return
	}
	spoilt, err := f()
	if !spoilt {
		runtime.UnlockOSThread()
	}
	done <- err
}

// move is one v1 hierarchy that the thread goes into and comes back from, by its tasks files.
type move struct {
	to, back, root string
	limited        bool // by a group of ours; entering the others is best effort
}

// startInV1 enters the v1 groups, clones and goes back. The child's fate is clone's error alone: a thread that cannot go
// back is spoilt, the child lives.
func (g *Group) startInV1(fd int, clone func(int) error) (spoilt bool, err error) {
	moves, err := g.moves()
	if err != nil {
		return false, err
	}
	entered := moves[:0:0]
	for _, m := range moves {
		err := write(m.to, "0")
		if err == nil {
			entered = append(entered, m)
		} else if m.limited {
			return !leave(entered), fmt.Errorf("enter cgroup: %w", err)
		}
	}
	err = clone(fd)
	return !leave(entered), err
}

// leave puts the thread back where it was or, should that group have gone, into the root, and tells whether it could.
func leave(moves []move) bool {
	ok := true
	for _, m := range moves {
		if write(m.back, "0") != nil && write(m.root, "0") != nil {
			ok = false
		}
	}
	return ok
}

// moves lists the groups to enter: ours where there is one, elsewhere the root unless the thread is there.
func (g *Group) moves() ([]move, error) {
	now, err := g.host.threadGroups()
	if err != nil {
		return nil, err
	}
	ours := map[string]string{} // mount point → our directory
	for c, mount := range g.host.v1 {
		ours[mount] = g.paths.V1[c]
	}
	var out []move
	for _, hierarchy := range g.host.all {
		m := move{root: filepath.Join(hierarchy.dir, tasksFile)}
		m.to, m.back = m.root, m.root
		for _, name := range hierarchy.options {
			if path, ok := now[name]; ok {
				m.back = filepath.Join(hierarchy.dir, path, tasksFile)
			}
		}
		if dir := ours[hierarchy.dir]; dir != "" {
			m.to, m.limited = filepath.Join(dir, tasksFile), true
		}
		if m.to != m.back {
			out = append(out, m)
		}
	}
	return out, nil
}

// threadGroups reads which v1 groups the calling thread is in: controller (or name=…) → path below the mount point.
func (h Host) threadGroups() (map[string]string, error) {
	b, err := readLimited(filepath.Join(h.root, "proc/thread-self/cgroup"), fileMax)
	if err != nil {
		return nil, fmt.Errorf("read own cgroups: %w", err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 || f[1] == "" {
			continue
		}
		for name := range strings.SplitSeq(f[1], ",") {
			out[name] = f[2]
		}
	}
	return out, nil
}
