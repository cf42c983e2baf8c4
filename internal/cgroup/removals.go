package cgroup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// removalsBytes are read at once: some hundred removals.
const removalsBytes = 64 << 10

// removals tells which groups were removed. The kernel holds back a change of cgroup.events that follows another one within 10 ms
// (CGROUP_FILE_NOTIFY_MIN_INTV), and never tells it when the group is removed meanwhile. On a host that has no inotify
// instance left, it tells nothing.
type removals struct {
	fd      int // of inotify; -1: none
	parents map[string]int32
	names   map[int32]string // of parents, by watch
	buf     []byte
}

func newRemovals(p *poller) *removals {
	r := &removals{fd: -1, parents: map[string]int32{}, names: map[int32]string{}, buf: make([]byte, removalsBytes)}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return r
	}
	if p.watch(fd, unix.EPOLLIN) != nil {
		_ = unix.Close(fd)
		return r
	}
	r.fd = fd
	return r
}

// parent watches the groups below a directory. A directory that cannot be watched tells nothing.
func (r *removals) parent(dir string) {
	if _, known := r.parents[dir]; known || r.fd < 0 {
		return
	}
	wd, err := unix.InotifyAddWatch(r.fd, dir, unix.IN_DELETE|unix.IN_ONLYDIR)
	if err != nil {
		return
	}
	r.parents[dir], r.names[int32(wd)] = int32(wd), dir
}

// read gives the directories of removed groups. all: some were lost, any may be gone.
func (r *removals) read() (gone map[string]bool, all bool) {
	gone = make(map[string]bool)
	for {
		n, err := unix.Read(r.fd, r.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return gone, all
		}
		for b := r.buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			wd, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
			end := min(len(b), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])))
			name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:end], "\x00"))
			b = b[end:]
			switch {
			case mask&unix.IN_Q_OVERFLOW != 0:
				all = true
			case mask&unix.IN_IGNORED != 0: // the parent itself was removed
				delete(r.parents, r.names[wd])
				delete(r.names, wd)
			default:
				gone[filepath.Join(r.names[wd], name)] = true
			}
		}
	}
}

func (r *removals) close() {
	if r.fd >= 0 {
		_ = unix.Close(r.fd)
	}
}
