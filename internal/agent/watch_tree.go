package agent

import (
	"io"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// watchNode is a directory that is watched, or is about to be.
type watchNode struct {
	parent   *watchNode // nil at the root
	name     string     // in its parent
	wd       int32      // 0: not watched yet
	children map[string]*watchNode
	told     map[string]struct{} // names told as created while the directory was looked through, whose own events are still to come
}

const (
	watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
	watchSelf = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF // of the root
)

// rel is the node's path below the root.
func (n *watchNode) rel() string {
	if n.parent == nil {
		return ""
	}
	if up := n.parent.rel(); up != "" {
		return up + "/" + n.name
	}
	return n.name
}

// within tells whether a node is n or below it.
func (n *watchNode) within(other *watchNode) bool {
	for ; n != nil; n = n.parent {
		if n == other {
			return true
		}
	}
	return false
}

// child makes a node for a directory in n and puts it among what is to be watched.
func (w *watcher) child(n *watchNode, name string) {
	c := &watchNode{}
	w.attach(c, n, name)
	w.todo = append(w.todo, c)
}

// attach puts a node in its place, and drops what the place held.
func (w *watcher) attach(c, n *watchNode, name string) {
	if c.parent != nil && c.parent.children[c.name] == c {
		delete(c.parent.children, c.name)
	}
	if old := n.children[name]; old != c {
		w.drop(old)
	}
	if n.children == nil {
		n.children = make(map[string]*watchNode)
	}
	c.parent, c.name = n, name
	n.children[name] = c
}

// drop stops watching a node and what is below it. nil is nothing.
func (w *watcher) drop(n *watchNode) {
	if n == nil {
		return
	}
	if n.parent != nil && n.parent.children[n.name] == n {
		delete(n.parent.children, n.name)
	}
	for _, c := range n.children {
		w.drop(c)
	}
	if n.wd != 0 && w.nodes[n.wd] == n {
		delete(w.nodes, n.wd)
		_, _ = unix.InotifyRmWatch(w.fd, uint32(n.wd))
	}
	n.wd = -1
}

// plant watches all nodes that are to be watched, and with tell tells what is in them.
func (w *watcher) plant(tell bool) error {
	for len(w.todo) > 0 {
		var stepErr error
		err := w.a.threads.quick(w.ctx, w.a.fileRights(), func() { stepErr = w.plantSome(tell) })
		if err == nil {
			err = stepErr
		}
		if err != nil {
			return err
		}
	}
	w.todo = nil
	return nil
}

// plantSome is one turn of plant. It runs with the user's rights. The root is opened anew for each turn: while it is open, the
// kernel does not tell that it was removed.
func (w *watcher) plantSome(tell bool) error {
	root, err := open(unix.AT_FDCWD, w.asked, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return w.goneOr(err)
	}
	defer unix.Close(root)
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil || (inode{uint64(st.Dev), st.Ino}) != w.root {
		return io.EOF
	}
	for range watchBatch {
		if len(w.todo) == 0 {
			return nil
		}
		n := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		if n.wd < 0 {
			continue // it is gone already
		}
		if len(w.nodes)+len(w.todo) >= watchDirsMax {
			return dayfly.Errorf(dayfly.CodeUnavailable, "there are more than %d directories below %s", watchDirsMax, w.told).
				WithHint("watch a part of them")
		}
		if err := w.plantOne(root, n, tell); err != nil {
			return err
		}
	}
	return nil
}

// goneOr is the end of the stream when the root is not there any more. At the beginning it is an error as usual.
func (w *watcher) goneOr(err error) error {
	if w.begun && (err == unix.ENOENT || err == unix.ENOTDIR) {
		return io.EOF
	}
	return err
}

// plantOne watches one directory, and then looks through it: what was made in it before it was watched has no event.
func (w *watcher) plantOne(root int, n *watchNode, tell bool) error {
	fd, err := w.openNode(root, n)
	if err != nil {
		if n != w.top {
			w.drop(n) // it vanished, or may not be read
			return nil
		}
		return w.goneOr(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if n != w.top && uint64(st.Dev) != w.root.dev && isMadeUp(fd) {
		w.drop(n)
		return nil
	}
	mask := uint32(watchMask)
	if n == w.top {
		mask |= watchSelf
	}
	wd, err := unix.InotifyAddWatch(w.fd, "/proc/self/fd/"+itoa(fd), mask|unix.IN_MASK_ADD)
	if err != nil {
		return noRoom(err)
	}
	if old := w.nodes[int32(wd)]; old != nil && old != n {
		// The same directory elsewhere: it was moved here, and its event is still to come, or it is mounted twice.
		parent, name := n.parent, n.name
		if parent == nil || parent.within(old) {
			w.drop(n)
			return nil
		}
		w.attach(old, parent, name)
		return nil
	}
	n.wd = int32(wd)
	w.nodes[n.wd] = n
	if !w.recursive {
		return nil
	}
	return w.look(fd, n, tell)
}

// openNode opens a directory below the root without following a link.
func (w *watcher) openNode(root int, n *watchNode) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NONBLOCK
	rel := n.rel()
	if rel == "" {
		rel = "."
	}
	fd, err := openHow(root, rel, flags, 0, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
	if err == unix.ENOSYS {
		fd, err = open(root, rel, flags, 0)
	}
	return fd, err
}

// look goes through a directory that has just been watched.
func (w *watcher) look(fd int, n *watchNode, tell bool) error {
	d := dirents{fd: fd}
	for count := 1; ; count++ {
		raw, kind, err := d.next()
		if err != nil || raw == nil {
			return nil // what could be read is watched
		}
		if count%namesBatch == 0 && w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		name := string(raw)
		if kind == unix.DT_UNKNOWN {
			kind = kindOf(fd, name)
		}
		if tell && n != w.top {
			w.found(n, name, kind)
		}
		if len(w.todo) > watchDirsMax {
			return nil // which is found to be too many
		}
		if kind == unix.DT_DIR && w.recursive && n.children[name] == nil {
			w.child(n, name)
		}
	}
}

// found tells a name in a new directory as created, and keeps it to tell it only once. When that are too many, or changes are
// being lost anyway, the reader has to list again.
func (w *watcher) found(n *watchNode, name string, kind byte) {
	switch {
	case w.queue.full():
		return
	case w.names == watchToldMax:
		w.tell(dayfly.FileChange{Kind: dayfly.ChangeOverflow})
		return
	case n.told == nil:
		n.told = make(map[string]struct{})
		w.fresh = append(w.fresh, n)
	}
	w.names++
	n.told[name] = struct{}{}
	w.tell(dayfly.FileChange{Kind: dayfly.ChangeCreated, Path: w.path(n, name), Type: typeOf(kind)})
}

// path is the whole path of a name in a node.
func (w *watcher) path(n *watchNode, name string) string {
	if w.only != "" {
		return w.told
	}
	if rel := n.rel(); rel != "" {
		name = rel + "/" + name
	}
	return below(w.told, name)
}

// anew watches everything again after events were lost, and then tells that.
func (w *watcher) anew() error {
	w.rebuild = false
	before := w.nodes
	w.nodes, w.todo, w.fresh, w.leaving = make(map[int32]*watchNode), nil, nil, nil
	w.names = 0
	w.top = &watchNode{}
	w.todo = append(w.todo, w.top)
	// The root's own watch survives, so that a root that is gone is still told from one that never was.
	if err := w.plant(false /* as there */); err != nil {
		return err
	}
	for wd := range before {
		if w.nodes[wd] == nil {
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
		}
	}
	w.tell(dayfly.FileChange{Kind: dayfly.ChangeOverflow})
	return nil
}
