package api_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func (m *deskMachine) Mkdir(ctx context.Context, name string, mode *fs.FileMode, parents bool) (dayfly.FileInfo, error) {
	perm := fs.FileMode(0o755)
	if mode != nil {
		perm = *mode
	}
	make := m.root.Mkdir
	if parents {
		make = m.root.MkdirAll
	}
	if err := make(name, perm.Perm()); err != nil {
		return dayfly.FileInfo{}, dayfly.Errorf(dayfly.CodeFileConflict, "it cannot be made").WithCause(err)
	}
	if mode != nil {
		if err := m.root.Chmod(name, perm); err != nil {
			return dayfly.FileInfo{}, fileError(err)
		}
	}
	m.tell(dayfly.FileChange{Kind: dayfly.ChangeCreated, Path: "/" + name, Type: dayfly.FileDirectory})
	return m.Stat(ctx, name)
}

func (m *deskMachine) Move(ctx context.Context, from, to string, overwrite bool) (dayfly.FileInfo, error) {
	if _, err := m.root.Lstat(to); err == nil && !overwrite {
		return dayfly.FileInfo{}, dayfly.Errorf(dayfly.CodeFileConflict, "there is something at the new place")
	}
	if err := m.root.Rename(from, to); err != nil {
		return dayfly.FileInfo{}, fileError(err)
	}
	m.tell(dayfly.FileChange{Kind: dayfly.ChangeMoved, Path: "/" + to, From: "/" + from, Type: dayfly.FileRegular})
	return m.Stat(ctx, to)
}

func (m *deskMachine) Chmod(ctx context.Context, name string, mode fs.FileMode, recursive bool) (dayfly.FileInfo, error) {
	err := m.root.Chmod(name, mode)
	if err == nil && recursive {
		err = fs.WalkDir(m.root.FS(), name, func(below string, d fs.DirEntry, err error) error {
			if err != nil || d.Type()&fs.ModeSymlink != 0 {
				return err
			}
			return m.root.Chmod(below, mode)
		})
	}
	if err != nil {
		return dayfly.FileInfo{}, fileError(err)
	}
	return m.Stat(ctx, name)
}

// walk goes through what is below a path, in order.
func (m *deskMachine) walk(q, exclude string, hidden bool, visit func(name string, d fs.DirEntry) error) error {
	return fileError(fs.WalkDir(m.root.FS(), path.Clean(q), func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == path.Clean(q) && d.IsDir() {
			return err
		}
		out, _ := path.Match(exclude, d.Name())
		if out || !hidden && strings.HasPrefix(d.Name(), ".") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		return visit(name, d)
	}))
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

func (m *deskMachine) Search(_ context.Context, q dayfly.SearchQuery) (dayfly.SearchResult, error) {
	text := q.Pattern
	if q.Literal {
		text = regexp.QuoteMeta(text)
	}
	if q.IgnoreCase {
		text = "(?i)" + text
	}
	pattern, err := regexp.Compile(text)
	if err != nil {
		return dayfly.SearchResult{}, dayfly.Errorf(dayfly.CodeInvalid, "pattern: %s", err)
	}
	var res dayfly.SearchResult
	err = m.walk(q.Path, first(q.Exclude), q.Hidden, func(name string, d fs.DirEntry) error {
		if in, _ := path.Match(first(q.Include), d.Name()); d.IsDir() || len(q.Include) > 0 && !in {
			return nil
		}
		data, err := m.root.ReadFile(name)
		if err != nil || bytes.IndexByte(data, 0) >= 0 {
			res.Skipped++
			return nil
		}
		res.Files++
		lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
		for i, line := range lines {
			at := pattern.FindStringIndex(line)
			if at == nil {
				continue
			}
			if len(res.Matches) == q.Limit {
				res.Truncated = true
				return fs.SkipAll
			}
			res.Matches = append(res.Matches, dayfly.SearchMatch{Path: "/" + name, Line: int64(i + 1), Column: int64(at[0] + 1), Text: line,
				Before: lines[max(0, i-q.Context):i], After: lines[i+1 : min(len(lines), i+1+q.Context)]})
		}
		return nil
	})
	return res, err
}

func (m *deskMachine) Find(_ context.Context, q dayfly.FindQuery) (found []dayfly.FileInfo, truncated bool, err error) {
	err = m.walk(q.Path, first(q.Exclude), q.Hidden, func(name string, d fs.DirEntry) error {
		fi, err := m.root.Lstat(name)
		if err != nil {
			return err
		}
		info := m.info(name, fi)
		named := len(q.Names) == 0
		for _, glob := range q.Names {
			in, _ := path.Match(glob, d.Name())
			named = named || in
		}
		old := !q.ModifiedAfter.IsZero() && !info.ModifiedAt.After(q.ModifiedAfter)
		young := !q.ModifiedBefore.IsZero() && !info.ModifiedAt.Before(q.ModifiedBefore)
		deep := q.MaxDepth > 0 && strings.Count(name, "/") >= q.MaxDepth
		switch {
		case !named, old, young, deep, q.Type != "" && info.Type != q.Type, info.SizeBytes < q.MinBytes, q.MaxBytes > 0 && info.SizeBytes > q.MaxBytes:
			return nil
		case len(found) == q.Limit:
			truncated = true
			return fs.SkipAll
		}
		found = append(found, info)
		return nil
	})
	return found, truncated, err
}

// deskWatch sees what is done through the desk, wherever it is.
type deskWatch struct {
	m       *deskMachine
	ctx     context.Context
	changes chan dayfly.FileChange
	gone    chan struct{}
}

func (m *deskMachine) Watch(ctx context.Context, name string, _ bool) (dayfly.ChangeStream, error) {
	if _, err := m.root.Lstat(name); err != nil {
		return nil, fileError(err)
	}
	w := &deskWatch{m: m, ctx: ctx, changes: make(chan dayfly.FileChange, 1000), gone: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchers[w] = true
	return w, nil
}

func (m *deskMachine) tell(c dayfly.FileChange) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for w := range m.watchers {
		select {
		case w.changes <- c:
		default: // a real one would tell an overflow
		}
	}
}

// unwatched has what is watched go.
func (m *deskMachine) unwatched() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for w := range m.watchers {
		close(w.gone)
		delete(m.watchers, w)
	}
}

func (w *deskWatch) Next() (dayfly.FileChange, error) {
	select {
	case c := <-w.changes:
		return c, nil
	default:
	}
	select {
	case c := <-w.changes:
		return c, nil
	case <-w.gone:
		return dayfly.FileChange{}, io.EOF
	case <-w.m.ends:
		return dayfly.FileChange{}, errDeskGone
	case <-w.ctx.Done():
		return dayfly.FileChange{}, errors.Join(errors.New("watch"), w.ctx.Err())
	}
}

func (w *deskWatch) Close() error {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	delete(w.m.watchers, w)
	return nil
}

// awaitWatch waits until somebody watches.
func (m *deskMachine) awaitWatch(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(waitMax); m.waiting() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody watches")
		}
	}
}
