package agent

import (
	"container/heap"
	"context"
	"encoding/base64"
	"io"
	"os"
	"path"
	"slices"
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
			listErr = l.dir(fd, "", string(after), 0)
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
	last := strings.TrimPrefix(strings.TrimPrefix(l.entries[len(l.entries)-1].Path, l.root), "/")
	return l.entries, base64.RawURLEncoding.EncodeToString([]byte(last)), nil
}

// lister collects one page.
type lister struct {
	ctx       context.Context
	root      string
	recursive bool
	limit     int
	entries   []dayfly.FileInfo
	more      bool // there is an entry after the page
}

// dir lists the open directory rel below the root, from after on, and closes it.
func (l *lister) dir(fd int, rel, after string, depth int) error {
	f := os.NewFile(uintptr(fd), rel)
	defer f.Close()
	first, rest, _ := strings.Cut(after, "/")
	// The directory that holds the cursor is visited once more, for what comes after the cursor within it.
	names, err := smallest(l.ctx, f, first, l.recursive && after != "", l.limit-len(l.entries)+2)
	if err != nil {
		return err
	}
	for _, name := range names {
		below := ""
		if name == first && after != "" {
			below = rest
		} else if !l.add(fd, path.Join(rel, name), name) {
			return nil
		}
		if !l.recursive {
			continue
		}
		if err := l.descend(fd, path.Join(rel, name), name, below, depth+1); err != nil {
			return err
		}
		if l.more {
			return nil
		}
	}
	return nil
}

// add appends an entry, or notes that there is one more than fits.
func (l *lister) add(dir int, rel, name string) bool {
	if len(l.entries) == l.limit {
		l.more = true
		return false
	}
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT {
		return true // it vanished
	}
	info := entry(l.root+"/"+rel, &st)
	if err != nil {
		info.Type, info.Error = dayfly.FileOther, errnoText(err)
	}
	if info.Type == dayfly.FileSymlink {
		if info.Target, err = readlink(dir, name); err != nil {
			info.Error = errnoText(err)
		}
	}
	l.entries = append(l.entries, info)
	return true
}

// descend lists a subdirectory. One that cannot be read is noted at its entry.
func (l *lister) descend(dir int, rel, name, after string, depth int) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	fd, err := open(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err == nil && depth > treeDepthMax {
		_ = unix.Close(fd)
		err = unix.ENAMETOOLONG
	}
	if err != nil {
		if n := len(l.entries); n > 0 && l.entries[n-1].Name == name {
			l.entries[n-1].Error = errnoText(err)
		}
		return nil
	}
	return l.dir(fd, rel, after, depth)
}

// smallest gives the n smallest names of a directory after a name (or from it on), in order, with memory for n of them.
func smallest(ctx context.Context, dir *os.File, after string, from bool, n int) ([]string, error) {
	var top names
	for {
		batch, err := dir.Readdirnames(namesBatch)
		for _, name := range batch {
			if name < after || name == after && !from {
				continue
			}
			if len(top) < n {
				heap.Push(&top, name)
			} else if name < top[0] {
				top[0] = name
				heap.Fix(&top, 0)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	slices.Sort(top)
	return top, nil
}

// names is a heap with the greatest name on top.
type names []string

func (n names) Len() int           { return len(n) }
func (n names) Less(i, j int) bool { return n[i] > n[j] }
func (n names) Swap(i, j int)      { n[i], n[j] = n[j], n[i] }
func (n *names) Push(x any)        { *n = append(*n, x.(string)) }
func (n *names) Pop() any {
	last := (*n)[len(*n)-1]
	*n = (*n)[:len(*n)-1]
	return last
}
