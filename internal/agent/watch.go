package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Limits of watching.
const (
	watchStreamsMax = 16                    // watches at once in a sandbox
	watchDirsMax    = 32 << 10              // directories of one watch
	watchBatch      = 32                    // directories that are looked at before other file operations get their turn
	watchToldMax    = 32 << 10              // names of new directories that are kept to tell nothing twice
	watchBuf        = 32 << 10              // bytes of events read at once
	movePairWait    = 20 * time.Millisecond // for the second half of a move
)

// errWatchClosed is what Next gives after Close.
var errWatchClosed = errors.New("the watch was closed")

// Watch implements agentwire.Machine. Directories made later are watched as soon as they are heard of, and what is in them by
// then is told as created; nothing is told twice for that. Links are not followed below the path. What happens faster than it
// is read is an overflow, after which everything is watched anew.
func (a *Agent) Watch(ctx context.Context, name string, recursive bool) (dayfly.ChangeStream, error) {
	abs, err := absolute(a.cfg.User.Home, name)
	if err != nil {
		return nil, err
	}
	select {
	case a.watches <- struct{}{}:
	default:
		return nil, dayfly.Errorf(dayfly.CodeUnavailable, "the sandbox has %d watches, which is the limit", watchStreamsMax).
			WithHint("close one, or watch a directory above with recursive")
	}
	w := &watcher{a: a, asked: abs, told: path.Clean(abs), recursive: recursive, queue: newChangeQueue(), done: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancel(ctx)
	if err := w.begin(); err != nil {
		w.release()
		return nil, fileError(name, err)
	}
	go w.run()
	return w, nil
}

// longAgo ends a read at once.
var longAgo = time.Unix(1, 0)

// watcher follows the changes below one path. Its fields belong to the goroutine of run, those of queue to anybody.
type watcher struct {
	a         *Agent
	ctx       context.Context
	cancel    context.CancelFunc
	done      chan struct{} // closed when run has ended
	once      sync.Once
	queue     *changeQueue
	asked     string // absolute
	told      string // asked, as it begins the paths that are told
	recursive bool
	only      string // the name that is told, when a file is watched through its directory, or empty
	root      inode  // what is watched

	fd      int // the inotify instance; in owns it
	in      *os.File
	nodes   map[int32]*watchNode // by watch descriptor
	top     *watchNode
	above   int32  // watch of the directory that holds the root, or -1
	name    string // of the root in it
	todo    []*watchNode
	fresh   []*watchNode // those that hold names in told
	names   int          // how many those are
	leaving []leaving
	rebuild bool // events were lost
	begun   bool // everything that was there at the beginning is watched
	armed   bool // a deadline for the other half of a move is set
}

// leaving is the first half of a move.
type leaving struct {
	cookie uint32
	path   string
	node   *watchNode // or nil
	dir    bool
}

// begin watches everything there is.
func (w *watcher) begin() error {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return noRoom(err)
	}
	w.fd, w.in = fd, os.NewFile(uintptr(fd), "inotify")
	w.nodes, w.above = make(map[int32]*watchNode), -1
	var stepErr error
	err = w.a.threads.quick(w.ctx, w.a.fileRights(), func() { stepErr = w.find() })
	if err == nil {
		err = stepErr
	}
	if err == nil {
		err = w.plant(false /* told as there */)
	}
	w.begun = true
	return err
}

// find looks at what is to be watched and prepares the first node.
func (w *watcher) find() error {
	fd, err := open(unix.AT_FDCWD, w.asked, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	w.root = inode{uint64(st.Dev), st.Ino}
	real, err := readlink(unix.AT_FDCWD, "/proc/self/fd/"+itoa(fd))
	if err != nil {
		return err
	}
	dir, name := path.Split(real)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		// A file is watched through its directory, so that one that takes its place is the same to whoever asked for the path.
		w.only, w.recursive = name, false
		w.asked = dir
		if err := unix.Stat(dir, &st); err != nil {
			return err
		}
		w.root = inode{uint64(st.Dev), st.Ino}
	} else if name != "" {
		w.name = name
		if wd, err := unix.InotifyAddWatch(w.fd, dir, unix.IN_DELETE|unix.IN_MOVED_FROM|unix.IN_ONLYDIR|unix.IN_MASK_ADD); err == nil {
			w.above = int32(wd) // otherwise the root's own events must do
		}
	}
	w.top = &watchNode{}
	w.todo = append(w.todo, w.top)
	return nil
}

// noRoom tells that the kernel's limits for this sandbox are reached.
func noRoom(err error) error {
	switch err {
	case unix.EMFILE, unix.ENFILE, unix.ENOSPC, unix.ENOMEM:
		return dayfly.Errorf(dayfly.CodeUnavailable, "the sandbox has no room for another watch").
			WithHint("watch fewer or smaller directories, or end programs inside that watch many").WithCause(err)
	}
	return err
}

// run follows the events to the end of the watch.
func (w *watcher) run() {
	defer close(w.done)
	defer w.release()
	wake := context.AfterFunc(w.ctx, func() { _ = w.in.SetReadDeadline(longAgo) })
	defer wake()
	buf := make([]byte, watchBuf)
	for {
		n, err := w.read(buf)
		if w.ctx.Err() != nil {
			err = w.ctx.Err()
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			w.forsake()
			continue
		}
		if err == nil {
			err = w.events(buf[:n])
		}
		if err == nil && w.rebuild {
			err = w.anew()
		}
		if err == nil {
			err = w.plant(true /* told as new */)
		}
		if err != nil {
			w.queue.finish(err)
			return
		}
	}
}

// release gives back what a watch holds.
func (w *watcher) release() {
	w.cancel()
	if w.in != nil {
		_ = w.in.Close()
	}
	<-w.a.watches
}

// read waits for events. Whenever there are none, everything that was told of new directories is settled.
func (w *watcher) read(buf []byte) (n int, err error) {
	conn, err := w.in.SyscallConn()
	if err != nil {
		return 0, err
	}
	var readErr error
	err = conn.Read(func(fd uintptr) bool {
		for {
			n, readErr = unix.Read(int(fd), buf)
			if readErr != unix.EINTR {
				break
			}
		}
		if readErr != unix.EAGAIN {
			return true
		}
		w.settle()
		return false
	})
	if err == nil {
		err = readErr
	}
	if err == nil && n <= 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// settle forgets what was told of directories that were looked through: all events of that time have been read. A move of which
// one half was seen waits a little for the other.
func (w *watcher) settle() {
	for _, n := range w.fresh {
		n.told = nil
	}
	w.fresh, w.names = nil, 0
	switch {
	case len(w.leaving) > 0:
		w.wake(time.Now().Add(movePairWait))
	case w.armed:
		w.wake(time.Time{})
	}
}

// wake has read end at some time, or never, unless the watch is over.
func (w *watcher) wake(at time.Time) {
	w.armed = !at.IsZero()
	_ = w.in.SetReadDeadline(at)
	if w.ctx.Err() != nil {
		_ = w.in.SetReadDeadline(longAgo)
	}
}

// forsake tells as deleted what was moved to where nobody watches.
func (w *watcher) forsake() {
	w.wake(time.Time{})
	for _, l := range w.leaving {
		w.tell(dayfly.FileChange{Kind: dayfly.ChangeDeleted, Path: l.path, Type: directory(l.dir)})
		w.drop(l.node)
	}
	w.leaving = nil
}

// tell queues a change.
func (w *watcher) tell(c dayfly.FileChange) { w.queue.push(c, w.told) }

// Next implements dayfly.ChangeStream.
func (w *watcher) Next() (dayfly.FileChange, error) {
	for {
		c, ok, err := w.queue.pop()
		if ok || err != nil {
			return c, err
		}
		select {
		case <-w.queue.ready:
		case <-w.ctx.Done():
			<-w.done // it has told why it ended
		}
	}
}

// Close implements dayfly.ChangeStream. It waits for the goroutine of the watch.
func (w *watcher) Close() error {
	w.once.Do(func() {
		w.queue.finish(errWatchClosed)
		w.cancel()
		<-w.done
	})
	return nil
}

// directory is the type of what an event says is one, or none.
func directory(is bool) dayfly.FileType {
	if is {
		return dayfly.FileDirectory
	}
	return ""
}
