package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	eventsMax = 256 // bytes of one cgroup.events file
	batchMax  = 128 // events taken at once
)

// waitEvents blocks until the group's cgroup.events satisfies want, the group is gone, or ctx ends. It holds no thread.
func (g *Group) waitEvents(ctx context.Context, want func([]byte) bool) error {
	fd, err := unix.Open(g.EventsPath(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", g.EventsPath(), err)
	}
	defer unix.Close(fd)
	if done, err := satisfied(fd, want); done || err != nil {
		return err
	}
	p, err := newPoller()
	if err != nil {
		return err
	}
	defer p.Close()
	if err := p.add(fd); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		if done, err := satisfied(fd, want); done || err != nil {
			return err
		}
		if _, err := p.wait(); errors.Is(err, os.ErrDeadlineExceeded) {
			return ctx.Err()
		} else if err != nil {
			return err
		}
	}
}

// satisfied reads an open cgroup.events. Reading it also makes the next change an event again.
func satisfied(fd int, want func([]byte) bool) (bool, error) {
	var buf [eventsMax]byte
	for {
		n, err := unix.Pread(fd, buf[:], 0)
		switch {
		case err == syscall.EINTR:
		case gone(err):
			return true, nil
		case err != nil:
			return false, fmt.Errorf("read cgroup events: %w", err)
		default:
			return want(buf[:n]), nil
		}
	}
}

// poller is an epoll descriptor that the Go runtime itself polls, so waiting on it costs a goroutine and no thread.
type poller struct {
	file *os.File
	raw  syscall.RawConn
	buf  [batchMax]unix.EpollEvent
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	p := &poller{file: os.NewFile(uintptr(fd), "epoll")}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		_ = p.file.Close()
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	return p, nil
}

// add watches fd for the kernel's "this file changed" until fd is closed.
func (p *poller) add(fd int) error { return p.watch(fd, unix.EPOLLPRI|unix.EPOLLET) }

// watch watches fd for events of epoll until it is closed.
func (p *poller) watch(fd int, events uint32) error {
	var addErr error
	err := p.raw.Control(func(ep uintptr) {
		event := unix.EpollEvent{Events: events, Fd: int32(fd)}
		addErr = unix.EpollCtl(int(ep), unix.EPOLL_CTL_ADD, fd, &event)
	})
	if err = errors.Join(err, addErr); err != nil {
		return fmt.Errorf("watch cgroup events: %w", err)
	}
	return nil
}

// wait blocks for changes and gives the descriptors that changed, valid until the next call.
func (p *poller) wait() ([]unix.EpollEvent, error) {
	var n int
	var waitErr error
	err := p.raw.Read(func(ep uintptr) bool {
		n, waitErr = unix.EpollWait(int(ep), p.buf[:], 0)
		return n > 0 || waitErr != nil && waitErr != syscall.EINTR
	})
	if err != nil {
		return nil, err
	}
	return p.buf[:max(n, 0)], waitErr
}

// Close wakes a waiter with os.ErrClosed.
func (p *poller) Close() error { return p.file.Close() }

// Events watches many cgroup.events files with one goroutine.
type Events struct {
	poller *poller
	done   chan struct{} // closed when the goroutine has ended

	mu       sync.Mutex
	watches  map[int]*watch // by descriptor
	removals *removals
	closed   bool
}

// watch is one file that is waited for.
type watch struct {
	fd      int
	dir     string // of the group
	changed func(populated bool)
	known   bool // populated is what was last told
	last    bool
}

// NewEvents starts the goroutine; Close ends it.
func NewEvents() (*Events, error) {
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	e := &Events{poller: p, done: make(chan struct{}), watches: map[int]*watch{}, removals: newRemovals(p)}
	go e.loop()
	return e, nil
}

// Watch gives a channel that is closed once the group of this cgroup.events file (Group.EventsPath) holds no process, at
// once if it holds none now or does not exist. cancel releases the watch; call it always, repeatedly if you like. After it
// the channel may never close.
func (e *Events) Watch(path string) (empty <-chan struct{}, cancel func(), err error) {
	ch := make(chan struct{})
	var once sync.Once
	cancel, err = e.Notify(path, func(populated bool) {
		if !populated {
			once.Do(func() { close(ch) })
		}
	})
	if gone(err) {
		close(ch)
		return ch, func() {}, nil
	}
	return ch, cancel, err
}

// Notify calls changed with what the group is now, before it returns, and then each time it becomes populated or empty. A
// quick change there and back may be told as none. changed must not block and must not call this Events. The error is
// fs.ErrNotExist when there is no such group. cancel may be called repeatedly; once it has returned, changed is not called.
func (e *Events) Notify(path string, changed func(populated bool)) (cancel func(), err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	w := &watch{fd: fd, dir: filepath.Dir(path), changed: changed}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		_ = unix.Close(fd)
		return nil, os.ErrClosed
	}
	if err := e.poller.add(fd); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	e.removals.parent(filepath.Dir(w.dir))
	e.watches[fd] = w
	w.check() // after both: a change in between is seen by one of the two
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.dropLocked(w)
	}, nil
}

// dropLocked forgets w. Closing the descriptor takes it out of the epoll set.
func (e *Events) dropLocked(w *watch) {
	if e.watches[w.fd] == w {
		delete(e.watches, w.fd)
		_ = unix.Close(w.fd)
	}
}

// check reads the file and tells of a change. A file that cannot be read tells nothing: unknown is not empty.
func (w *watch) check() {
	empty, err := satisfied(w.fd, isEmpty)
	if err != nil || w.known && w.last == !empty {
		return
	}
	w.known, w.last = true, !empty
	w.changed(!empty)
}

func (e *Events) loop() {
	defer close(e.done)
	for {
		changed, err := e.poller.wait()
		if err != nil {
			return // closed
		}
		e.mu.Lock()
		for _, c := range changed {
			if w := e.watches[int(c.Fd)]; w != nil {
				w.check()
			} else if int(c.Fd) == e.removals.fd {
				e.checkRemoved()
			}
		}
		e.mu.Unlock()
	}
}

// checkRemoved looks at the groups that were removed. It needs mu.
func (e *Events) checkRemoved() {
	gone, all := e.removals.read()
	for _, w := range e.watches {
		if all || gone[w.dir] {
			w.check()
		}
	}
}

// Close ends the goroutine and every watch, without closing their channels.
func (e *Events) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	for _, w := range e.watches {
		e.dropLocked(w)
	}
	err := e.poller.Close()
	e.mu.Unlock()
	<-e.done
	e.removals.close()
	return err
}
