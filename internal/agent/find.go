package agent

import (
	"context"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// lookTimeMax is how long a search or find may take; what it found until then is its answer.
const lookTimeMax = 30 * time.Second

// Find implements agentwire.Machine.
func (a *Agent) Find(ctx context.Context, q dayfly.FindQuery) ([]dayfly.FileInfo, bool, error) {
	abs, err := absolute(a.cfg.User.Home, q.Path)
	if err != nil {
		return nil, false, err
	}
	f := &finder{q: q, lookup: lookup{root: path.Clean(abs), hidden: q.Hidden}}
	if err := f.check(); err != nil {
		return nil, false, err
	}
	var findErr error
	err = a.threads.long(ctx, a.fileRights(), func() {
		f.truncated, findErr = within(ctx, func(ctx context.Context) error {
			fd, err := open(unix.AT_FDCWD, abs, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return f.walk(ctx, fd, f.visit, f.unread)
		})
	})
	if err == nil {
		err = fileError(q.Path, findErr)
	}
	if err != nil {
		return nil, false, err
	}
	return f.entries, f.truncated || f.more, nil
}

// within gives do the time that a search or find may take. over: it was used up.
func within(ctx context.Context, do func(context.Context) error) (over bool, err error) {
	limited, cancel := context.WithTimeout(ctx, lookTimeMax)
	defer cancel()
	err = do(limited)
	if err == context.DeadlineExceeded && ctx.Err() == nil {
		return true, nil
	}
	return false, err
}

// lookup is what search and find have in common: which names they come to.
type lookup struct {
	root    string
	dev     uint64 // of the root
	hidden  bool
	include globs
	exclude globs
}

// walk visits what is below an open directory and neither hidden nor excluded.
func (l *lookup) walk(ctx context.Context, fd int, visit func(*walked) (bool, error), unread func(string, error)) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	l.dev = uint64(st.Dev)
	w := &walker{ctx: ctx, unread: unread, visit: func(w *walked) (bool, error) {
		if !l.hidden && w.name[0] == '.' || l.exclude.match(w.rel, w.name) {
			return false, nil
		}
		enter, err := visit(w)
		return enter && !l.madeUp(w), err
	}}
	return w.walk(fd)
}

// madeUp tells that a directory is the root of a file system that the kernel makes up, such as /proc: it has no end, and reading
// its files does things.
func (l *lookup) madeUp(w *walked) bool {
	var st unix.Stat_t
	if w.kind != unix.DT_DIR || unix.Fstatat(w.dir, w.name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || uint64(st.Dev) == l.dev {
		return false
	}
	fd, err := open(w.dir, w.name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return isMadeUp(fd)
}

// isMadeUp tells that an open directory is on such a file system.
func isMadeUp(fd int) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && (fs.Type == unix.PROC_SUPER_MAGIC || fs.Type == unix.SYSFS_MAGIC)
}

// finder collects what a find looks for.
type finder struct {
	lookup
	q         dayfly.FindQuery
	entries   []dayfly.FileInfo
	last      string // path below the root of the last entry
	more      bool   // there is one more than fits
	truncated bool   // the time was used up
}

// check refuses what cannot be looked for.
func (f *finder) check() (err error) {
	q := &f.q
	switch {
	case q.Limit < 1 || q.Limit > dayfly.SearchLimitMax:
		return dayfly.Errorf(dayfly.CodeInvalid, "limit must be between 1 and %d", dayfly.SearchLimitMax)
	case q.MinBytes < 0 || q.MaxBytes < 0 || q.MaxDepth < 0:
		return dayfly.Errorf(dayfly.CodeInvalid, "min_bytes, max_bytes and max_depth must not be negative")
	}
	switch q.Type {
	case "", dayfly.FileRegular, dayfly.FileDirectory, dayfly.FileSymlink, dayfly.FileOther:
	default:
		return dayfly.Errorf(dayfly.CodeInvalid, "type: there are no entries of type %q", q.Type)
	}
	if f.include, err = parseGlobs("names", q.Names); err == nil {
		f.exclude, err = parseGlobs("exclude", q.Exclude)
	}
	return err
}

// visit keeps an entry that is looked for.
func (f *finder) visit(w *walked) (enter bool, err error) {
	enter = f.q.MaxDepth == 0 || w.depth < f.q.MaxDepth
	if len(f.include) > 0 && !f.include.match(w.rel, w.name) || f.q.Type != "" && w.kind != unix.DT_UNKNOWN && f.q.Type != typeOf(w.kind) {
		return enter, nil
	}
	var st unix.Stat_t
	err = unix.Fstatat(w.dir, w.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT {
		return false, nil // it vanished
	}
	info := entry(below(f.root, w.rel), &st)
	if err != nil {
		info.Type, info.Error = typeOf(w.kind), errnoText(err)
	} else if !f.wanted(&info) {
		return enter, nil
	}
	if len(f.entries) == f.q.Limit {
		f.more = true
		return false, errStop
	}
	if info.Type == dayfly.FileSymlink {
		if info.Target, err = readlink(w.dir, w.name); err != nil {
			info.Error = errnoText(err)
		}
	}
	f.entries, f.last = append(f.entries, info), w.rel
	return enter, nil
}

// wanted checks what lstat tells. Sizes are those of files: other entries have none that means anything.
func (f *finder) wanted(info *dayfly.FileInfo) bool {
	q := &f.q
	switch {
	case q.Type != "" && info.Type != q.Type:
	case (q.MinBytes > 0 || q.MaxBytes > 0) && info.Type != dayfly.FileRegular:
	case info.SizeBytes < q.MinBytes || q.MaxBytes > 0 && info.SizeBytes > q.MaxBytes:
	case !q.ModifiedAfter.IsZero() && !info.ModifiedAt.After(q.ModifiedAfter):
	case !q.ModifiedBefore.IsZero() && !info.ModifiedAt.Before(q.ModifiedBefore):
	default:
		return true
	}
	return false
}

// unread notes at its entry, if it has one, that a directory cannot be read.
func (f *finder) unread(rel string, err error) {
	if n := len(f.entries); n > 0 && f.last == rel {
		f.entries[n-1].Error = errnoText(err)
	}
}

// typeOf is the file type of a DT_….
func typeOf(kind byte) dayfly.FileType {
	switch kind {
	case unix.DT_REG:
		return dayfly.FileRegular
	case unix.DT_DIR:
		return dayfly.FileDirectory
	case unix.DT_LNK:
		return dayfly.FileSymlink
	}
	return dayfly.FileOther
}
