package agent

import (
	"bytes"
	"encoding/binary"
	"io"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// events goes through what was read from the kernel.
func (w *watcher) events(b []byte) error {
	for len(b) >= unix.SizeofInotifyEvent {
		e := watchEvent{
			wd: int32(binary.NativeEndian.Uint32(b)), mask: binary.NativeEndian.Uint32(b[4:]), cookie: binary.NativeEndian.Uint32(b[8:]),
		}
		length := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		if length > len(b) {
			return io.ErrUnexpectedEOF
		}
		name := b[unix.SizeofInotifyEvent:length]
		if end := bytes.IndexByte(name, 0); end >= 0 {
			name = name[:end]
		}
		e.name = string(name)
		b = b[length:]
		if err := w.event(e); err != nil {
			return err
		}
	}
	return nil
}

// watchEvent is one event of the kernel.
type watchEvent struct {
	wd     int32
	mask   uint32
	cookie uint32
	name   string
}

func (e watchEvent) is(bits uint32) bool { return e.mask&bits != 0 }

// event handles one event. io.EOF: the root is gone.
func (w *watcher) event(e watchEvent) error {
	if e.is(unix.IN_Q_OVERFLOW) {
		w.rebuild = true
		return nil
	}
	if e.wd == w.above && e.name == w.name && e.is(unix.IN_DELETE|unix.IN_MOVED_FROM) {
		if err := w.stillThere(); err != nil {
			return err
		}
	}
	n := w.nodes[e.wd]
	if w.left(n) {
		w.forsake() // the other half of the move would have come before this
		n = nil
	}
	switch {
	case n == nil:
		return nil
	case e.is(unix.IN_IGNORED):
		delete(w.nodes, e.wd)
		if n == w.top {
			return io.EOF
		}
		return nil
	case e.name == "":
		if n == w.top && e.is(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT) {
			return w.stillThere()
		}
		return nil // of a directory itself; its parent tells it too
	case w.only != "":
		if e.name == w.only {
			return w.fileEvent(e)
		}
		return nil
	}
	w.nameEvent(n, e)
	return nil
}

// left tells that a node is in a directory of which only the first half of a move was seen.
func (w *watcher) left(n *watchNode) bool {
	for _, l := range w.leaving {
		if l.node != nil && n.within(l.node) {
			return true
		}
	}
	return false
}

// stillThere gives io.EOF when the watched directory is not at its path any more.
func (w *watcher) stillThere() error {
	var st unix.Stat_t
	var statErr error
	err := w.a.threads.quick(w.ctx, w.a.fileRights(), func() { statErr = unix.Stat(w.asked, &st) })
	if err == nil && (statErr != nil || (inode{uint64(st.Dev), st.Ino}) != w.root) {
		return io.EOF
	}
	return err
}

// fileEvent handles an event of a file that is watched alone. What takes its place changes its content.
func (w *watcher) fileEvent(e watchEvent) error {
	c := dayfly.FileChange{Kind: dayfly.ChangeModified, Path: w.told}
	switch {
	case e.is(unix.IN_ATTRIB):
		c.Kind = dayfly.ChangeMetadata
	case e.is(unix.IN_DELETE | unix.IN_MOVED_FROM):
		var st unix.Stat_t
		var statErr error
		if err := w.a.threads.quick(w.ctx, w.a.fileRights(), func() { statErr = unix.Lstat(w.asked+w.only, &st) }); err != nil {
			return err
		}
		if statErr != nil {
			return io.EOF
		}
	}
	w.tell(c)
	return nil
}

// nameEvent handles an event of a name in a directory.
func (w *watcher) nameEvent(n *watchNode, e watchEvent) {
	dir := e.is(unix.IN_ISDIR)
	c := dayfly.FileChange{Path: w.path(n, e.name), Type: directory(dir)}
	_, known := n.told[e.name]
	switch {
	case e.is(unix.IN_CREATE | unix.IN_MOVED_TO):
		delete(n.told, e.name)
		w.arrive(n, e, c, known)
		return
	case e.is(unix.IN_MOVED_FROM):
		delete(n.told, e.name)
		child := n.children[e.name]
		delete(n.children, e.name)
		w.leaving = append(w.leaving, leaving{e.cookie, c.Path, child, dir})
		return
	case e.is(unix.IN_DELETE):
		delete(n.told, e.name)
		w.drop(n.children[e.name])
		c.Kind = dayfly.ChangeDeleted
	case e.is(unix.IN_MODIFY):
		c.Kind = dayfly.ChangeModified
	case e.is(unix.IN_ATTRIB):
		c.Kind = dayfly.ChangeMetadata
		if dir && w.recursive && n.children[e.name] == nil {
			w.child(n, e.name) // it may be readable now
		}
	default:
		return
	}
	w.tell(c)
}

// arrive handles a name that was made, or moved here. known: it was told as created when its directory was looked through.
func (w *watcher) arrive(n *watchNode, e watchEvent, c dayfly.FileChange, known bool) {
	c.Kind = dayfly.ChangeCreated
	var moved *watchNode
	for i, l := range w.leaving {
		if e.is(unix.IN_MOVED_TO) && l.cookie == e.cookie {
			c.Kind, c.From, moved = dayfly.ChangeMoved, l.path, l.node
			w.leaving = append(w.leaving[:i], w.leaving[i+1:]...)
			break
		}
	}
	switch {
	case known && c.Kind == dayfly.ChangeMoved:
		w.tell(dayfly.FileChange{Kind: dayfly.ChangeDeleted, Path: c.From, Type: c.Type})
	case !known:
		w.tell(c)
	}
	switch {
	case moved != nil && moved.wd >= 0 && !n.within(moved):
		w.attach(moved, n, e.name)
	case c.Type == dayfly.FileDirectory && w.recursive && !(known && n.children[e.name] != nil):
		w.drop(n.children[e.name])
		w.child(n, e.name)
	case !known:
		w.drop(n.children[e.name]) // what took a directory's place
	}
}
