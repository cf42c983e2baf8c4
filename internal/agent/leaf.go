package agent

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of leaf cgroups.
const (
	leafPrefix    = "x-"
	sparePrefix   = "s-"
	sparesMax     = 2                     // leaves made ahead, so that the next command need not wait for the kernel to make one
	leafDepthMax  = 8                     // cgroups that a command may have made below its own and that are still removed
	eventsBytes   = 256                   // of cgroup.events
	emptyRecheck  = 50 * time.Millisecond // between looks at a leaf while no reaping tells that something died
	leafSubgroups = 64                    // per level
)

// leaf is the cgroup of one command: every descendant is in it, whatever it does.
type leaf struct {
	parent *os.File
	name   string

	gone func() // called when the leaf was removed after its command's end, or nil

	mu  sync.Mutex
	dir *os.File // nil once the leaf is removed
}

// leafName is the name of the leaf of p's next try.
func (p *process) leafName() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.again.done == 0 {
		return leafPrefix + p.id
	}
	return leafPrefix + p.id + "-" + strconv.Itoa(p.again.done)
}

// newLeaf makes the cgroup of one command below parent.
func newLeaf(parent *os.File, name string) (*leaf, error) {
	if err := unix.Mkdirat(int(parent.Fd()), name, dirPerm); err != nil {
		return nil, fmt.Errorf("make cgroup %s: %w", name, err)
	}
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR)
		return nil, fmt.Errorf("open cgroup %s: %w", name, err)
	}
	return &leaf{parent: parent, name: name, dir: os.NewFile(uintptr(fd), name)}, nil
}

// populated tells whether a process lives in the leaf. A leaf that is removed or cannot be read has none.
func (l *leaf) populated() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dir == nil {
		return false
	}
	b, err := readAt(l.dir, "cgroup.events")
	return err == nil && bytes.Contains(b, []byte("populated 1"))
}

// kill kills everything in the leaf at once.
func (l *leaf) kill() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dir == nil {
		return nil
	}
	fd, err := unix.Openat(int(l.dir.Fd()), "cgroup.kill", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open cgroup.kill: %w", err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte("1")); err != nil {
		return fmt.Errorf("write cgroup.kill: %w", err)
	}
	return nil
}

// remove removes the leaf and what a command made below it, if no process lives there.
func (l *leaf) remove() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dir == nil {
		return nil
	}
	err := removeCgroup(int(l.parent.Fd()), l.name, leafDepthMax)
	if err == nil || err == unix.ENOENT {
		_ = l.dir.Close()
		l.dir = nil
		return nil
	}
	return err
}

func removeCgroup(parent int, name string, depth int) error {
	err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	if err != unix.EBUSY || depth == 0 {
		return err
	}
	fd, openErr := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if openErr != nil {
		return openErr
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	entries, _ := dir.ReadDir(-1) // a cgroup's directory holds a few dozen files
	subs := 0
	for _, e := range entries {
		if e.IsDir() && subs < leafSubgroups {
			subs++
			_ = removeCgroup(fd, e.Name(), depth-1)
		}
	}
	if subs == 0 {
		return err
	}
	return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
}

// readAt reads a small kernel file.
func readAt(dir *os.File, name string) ([]byte, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, eventsBytes)
	n, err := unix.Read(fd, buf)
	return buf[:max(0, n)], err
}

// bury removes a leaf that is left, if nothing lives in it, and tells whether it did.
func (l *leaf) bury() bool {
	if l.remove() != nil {
		return false
	}
	if l.gone != nil {
		l.gone()
	}
	return true
}

// leaves are those whose command has ended and that are still to be removed: background children live in them. Their
// number is bounded by the sandbox's limit of processes.
type leaves struct {
	mu     sync.Mutex
	left   []*leaf
	spares []*leaf // for commands to come; none before the first command has ended
	made   int     // spares ever, for their names
}

// take gives a leaf that was made ahead, or nil.
func (s *leaves) take() *leaf {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.spares)
	if n == 0 {
		return nil
	}
	l := s.spares[n-1]
	s.spares = s.spares[:n-1]
	return l
}

// stock makes a leaf ahead unless there are enough. One that cannot be made now is made when it is needed.
func (s *leaves) stock(parent *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.spares) >= sparesMax {
		return
	}
	s.made++
	if l, err := newLeaf(parent, sparePrefix+strconv.Itoa(s.made)); err == nil {
		s.spares = append(s.spares, l)
	}
}

// retire removes a leaf now or, when something still lives in it, after that has died.
func (s *leaves) retire(l *leaf) {
	if l.bury() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = append(s.left, l)
	s.sweepLocked() // the last process may have died since
}

// sweep removes the lingering leaves that have become empty.
func (s *leaves) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepLocked()
}

func (s *leaves) sweepLocked() {
	kept := s.left[:0]
	for _, l := range s.left {
		if !l.bury() {
			kept = append(kept, l)
		}
	}
	clear(s.left[len(kept):])
	s.left = kept
}
