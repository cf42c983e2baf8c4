package warden

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	inotifyBytes = 64 << 10 // read at once
	leasesMask   = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB
)

// notice is one inotify event.
type notice struct {
	wd   int
	name string // empty: the watched directory itself
	mask uint32
}

// watcher reads one inotify descriptor on a goroutine of its own.
type watcher struct {
	file *os.File
	done chan struct{}
}

// newWatcher starts reading; handle is called on the reading goroutine with each batch. An overflow is a notice with mask
// IN_Q_OVERFLOW. close ends it.
func newWatcher(handle func([]notice)) (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("start inotify: %w", err)
	}
	w := &watcher{file: os.NewFile(uintptr(fd), "inotify"), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		buf := make([]byte, inotifyBytes)
		for {
			n, err := w.file.Read(buf)
			if err != nil {
				return // closed
			}
			handle(parseNotices(buf[:n]))
		}
	}()
	return w, nil
}

// add watches a directory. Adding one twice gives the same number.
func (w *watcher) add(path string, mask uint32) (wd int, err error) {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("watch %s: %w", path, err)
	}
	var addErr error
	err = conn.Control(func(fd uintptr) {
		wd, addErr = unix.InotifyAddWatch(int(fd), path, mask|unix.IN_ONLYDIR)
	})
	if err = errors.Join(err, addErr); err != nil {
		return 0, fmt.Errorf("watch %s: %w", path, err)
	}
	return wd, nil
}

func (w *watcher) close() {
	_ = w.file.Close()
	<-w.done
}

// parseNotices decodes struct inotify_event records.
func parseNotices(b []byte) []notice {
	var out []notice
	for len(b) >= unix.SizeofInotifyEvent {
		n := notice{wd: int(int32(binary.NativeEndian.Uint32(b))), mask: binary.NativeEndian.Uint32(b[4:])}
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		if end > len(b) {
			break
		}
		n.name = strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00")
		out, b = append(out, n), b[end:]
	}
	return out
}

// broadcast wakes everybody who waits for the next change.
type broadcast struct {
	mu   sync.Mutex
	next chan struct{}
}

// wait gives a channel that is closed at the next change.
func (b *broadcast) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

func (b *broadcast) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		close(b.next)
		b.next = nil
	}
}
