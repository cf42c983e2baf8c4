package agent

import (
	"context"
	"path"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Limits of searching.
const (
	searchBuf      = 128 << 10 // bytes of a file at once
	searchLineMax  = 1 << 20   // of a longer line the rest is not searched, and the answer says that it is not all
	searchBinary   = 8 << 10   // a NUL in the first bytes makes a file binary
	searchBytesMax = 4 << 20   // of all texts in one answer
)

// Search implements agentwire.Machine.
func (a *Agent) Search(ctx context.Context, q dayfly.SearchQuery) (dayfly.SearchResult, error) {
	abs, err := absolute(a.cfg.User.Home, q.Path)
	if err != nil {
		return dayfly.SearchResult{}, err
	}
	s, err := newSearcher(q, path.Clean(abs))
	if err != nil {
		return dayfly.SearchResult{}, err
	}
	var over bool
	var searchErr error
	err = a.threads.long(ctx, a.fileRights(), func() {
		over, searchErr = within(ctx, func(ctx context.Context) error {
			s.ctx = ctx
			return s.search(abs)
		})
	})
	if err == nil {
		err = fileError(q.Path, searchErr)
	}
	if err != nil {
		return dayfly.SearchResult{}, err
	}
	s.res.Truncated = s.res.Truncated || over
	return s.res, nil
}

// searcher collects what a search finds.
type searcher struct {
	lookup
	ctx     context.Context
	q       dayfly.SearchQuery
	pattern *pattern
	res     dayfly.SearchResult
	bytes   int  // of texts in res
	full    bool // no more matches fit, and there was one more

	buf    []byte // of the present file
	folded []byte // buf in lower case
	file   searched
}

// newSearcher refuses what cannot be searched for.
func newSearcher(q dayfly.SearchQuery, root string) (s *searcher, err error) {
	switch {
	case q.Limit < 1 || q.Limit > dayfly.SearchLimitMax:
		return nil, dayfly.Errorf(dayfly.CodeInvalid, "limit must be between 1 and %d", dayfly.SearchLimitMax)
	case q.Context < 0 || q.Context > dayfly.SearchContextMax:
		return nil, dayfly.Errorf(dayfly.CodeInvalid, "context must be between 0 and %d", dayfly.SearchContextMax)
	}
	s = &searcher{lookup: lookup{root: root, hidden: q.Hidden}, q: q}
	if s.pattern, err = parsePattern(&q); err != nil {
		return nil, err
	}
	if s.include, err = parseGlobs("include", q.Include); err == nil {
		s.exclude, err = parseGlobs("exclude", q.Exclude)
	}
	return s, err
}

// search searches a file or what is below a directory.
func (s *searcher) search(abs string) error {
	fd, st, err := openArchived(abs)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		return s.content(fd, s.root, &st)
	}
	return s.walk(s.ctx, fd, s.visit, func(string, error) { s.res.Skipped++ })
}

// visit searches one name of a walk.
func (s *searcher) visit(w *walked) (enter bool, err error) {
	if w.kind == unix.DT_DIR {
		return true, nil
	}
	if len(s.include) > 0 && !s.include.match(w.rel, w.name) {
		return false, nil
	}
	if w.kind != unix.DT_REG {
		s.res.Skipped++
		return false, nil
	}
	fd, err := open(w.dir, w.name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY, 0)
	if err == unix.ENOENT {
		return false, nil // it vanished
	}
	var st unix.Stat_t
	if err == nil {
		defer unix.Close(fd)
		err = unix.Fstat(fd, &st)
	}
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		s.res.Skipped++
		return false, nil
	}
	err = s.content(fd, below(s.root, w.rel), &st)
	if err == nil && s.full {
		err = errStop
	}
	return false, err
}

// searched is how far a file was searched.
type searched struct {
	path    string
	line    int64    // number of the first line that was not searched
	tail    []string // the last lines before it, when a context is wanted
	waiting []int    // matches that still want lines after them
}

// content searches an open file piece by piece.
func (s *searcher) content(fd int, name string, st *unix.Stat_t) error {
	s.file = searched{path: name, line: 1, waiting: s.file.waiting[:0]}
	if s.buf == nil {
		s.buf = make([]byte, searchBuf)
	}
	have, total, skipping := 0, int64(0), false
	for {
		n, err := readSome(fd, s.buf[have:])
		if err != nil || total == 0 && isBinary(s.buf[:n]) {
			s.res.Skipped++
			return s.ctx.Err()
		}
		if total == 0 {
			s.res.Files++
		}
		total += int64(n)
		last := n == 0 || total == st.Size // the files of /proc have size 0 and content
		have += n
		used := lastLine(s.buf[:have], last)
		switch {
		case skipping && used == 0: // still the same long line
			have = 0
		case skipping:
			first := firstLine(s.buf[:have])
			s.file.line++
			s.piece(s.buf[first:used], last)
			skipping = false
		case used == 0 && !last && len(s.buf) < searchLineMax:
			s.buf = append(s.buf, make([]byte, len(s.buf))...)
			continue
		case used == 0 && !last:
			s.piece(s.buf[:have], last)
			s.res.Truncated, skipping = true, true
			have = 0
		default:
			s.piece(s.buf[:used], last)
		}
		if have > 0 {
			have = copy(s.buf, s.buf[used:have])
		}
		if last || s.full && len(s.file.waiting) == 0 {
			return nil
		}
		if err := s.ctx.Err(); err != nil {
			return err
		}
	}
}

// readSome reads what there is.
func readSome(fd int, p []byte) (int, error) {
	for {
		n, err := unix.Read(fd, p)
		if err != unix.EINTR {
			return max(0, n), err
		}
	}
}

// record adds a match of the line in[start:end], which is number line, at columns from and to.
func (s *searcher) record(in []byte, start, end, from, to int, line int64, last bool) {
	if len(s.res.Matches) == s.q.Limit || s.bytes > searchBytesMax {
		s.res.Truncated, s.full = true, true
		return
	}
	m := dayfly.SearchMatch{Path: s.file.path, Line: line, Column: int64(from) + 1}
	m.Text, m.Cut = around(in[start:end], from, to)
	if s.q.Context > 0 {
		m.Before = s.before(in[:start])
		m.After = s.after(nil, in[end:], true /* behind the line itself */)
		if len(m.After) < s.q.Context && !last {
			s.file.waiting = append(s.file.waiting, len(s.res.Matches))
		}
	}
	s.bytes += len(m.Path) + len(m.Text)
	for _, lines := range [][]string{m.Before, m.After} {
		for _, l := range lines {
			s.bytes += len(l)
		}
	}
	s.res.Matches = append(s.res.Matches, m)
}
