package agent

import (
	"context"
	"encoding/base64"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// listMax is the most entries of a page.
const listMax = 1000

// List implements agentwire.Machine. Entries come in byte order of their names, a directory before what is in it. The
// cursor is the last entry's path below the listed directory, so a page never repeats or misses what stays.
func (a *Agent) List(ctx context.Context, q dayfly.ListQuery) ([]dayfly.FileInfo, string, error) {
	if q.Limit < 1 || q.Limit > listMax {
		return nil, "", dayfly.Errorf(dayfly.CodeInvalid, "limit must be between 1 and %d", listMax)
	}
	after, err := base64.RawURLEncoding.DecodeString(q.Cursor)
	if err != nil || len(after) > pathMax {
		return nil, "", dayfly.Errorf(dayfly.CodeInvalid, "the cursor is not one that a listing gave")
	}
	abs, err := absolute(a.cfg.User.Home, q.Path)
	if err != nil {
		return nil, "", err
	}
	run := a.threads.quick
	if q.Recursive {
		run = a.threads.long
	}
	l := &lister{ctx: ctx, root: path.Clean(abs), recursive: q.Recursive, limit: q.Limit}
	var listErr error
	err = run(ctx, a.fileRights(), func() {
		var fd int
		if fd, listErr = open(unix.AT_FDCWD, abs, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0); listErr == nil {
			defer unix.Close(fd)
			listErr = l.list(fd, string(after))
		}
	})
	if err == nil {
		err = fileError(q.Path, listErr)
	}
	if err != nil {
		return nil, "", err
	}
	if !l.more {
		return l.entries, "", nil
	}
	return l.entries, base64.RawURLEncoding.EncodeToString([]byte(l.last)), nil
}

// lister collects one page.
type lister struct {
	ctx       context.Context
	root      string
	recursive bool
	limit     int
	entries   []dayfly.FileInfo
	last      string // path of the last entry below the root
	more      bool   // there is an entry after the page
}

// list collects the page of an open directory.
func (l *lister) list(fd int, after string) error {
	w := &walker{ctx: l.ctx, after: after, visit: l.add, unread: l.unread}
	if !l.recursive {
		// A page needs its own names and the next one, and no directory is entered.
		w.kept = walkNames - l.limit - 1
		w.after, _, _ = strings.Cut(after, "/")
		w.flat = true
	}
	return w.walk(fd)
}

// add appends an entry, or notes that there is one more than fits.
func (l *lister) add(w *walked) (enter bool, err error) {
	var st unix.Stat_t
	err = unix.Fstatat(w.dir, w.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT {
		return false, nil // it vanished
	}
	if len(l.entries) == l.limit {
		l.more = true
		return false, errStop
	}
	info := entry(below(l.root, w.rel), &st)
	if err != nil {
		info.Type, info.Error = typeOf(w.kind), errnoText(err)
	}
	if info.Type == dayfly.FileSymlink {
		if info.Target, err = readlink(w.dir, w.name); err != nil {
			info.Error = errnoText(err)
		}
	}
	l.entries, l.last = append(l.entries, info), w.rel
	return l.recursive, nil
}

// unread notes at its entry that a directory cannot be read.
func (l *lister) unread(rel string, err error) {
	if n := len(l.entries); n > 0 && l.last == rel {
		l.entries[n-1].Error = errnoText(err)
	}
}

// below is the path of something below a clean root.
func below(root, rel string) string {
	if root == "/" {
		return root + rel
	}
	return root + "/" + rel
}
