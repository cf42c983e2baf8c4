package agent

import (
	"archive/tar"
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Limits of archives made here.
const (
	linkedMax  = 64 << 10 // files with several names that are recognised as one
	archiveBuf = 64 << 10
)

// ReadArchive implements agentwire.Machine. Names are relative to the directory; links stay links, holes stay
// holes; what is neither file, directory nor link is left out. A file that cannot be read fails the archive: it never lacks something silently.
func (a *Agent) ReadArchive(ctx context.Context, name string) (io.ReadCloser, error) {
	abs, err := absolute(a.cfg.User.Home, name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	opened, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		err := a.threads.long(ctx, a.fileRights(), func() {
			fd, st, err := openArchived(abs)
			opened <- err
			if err != nil {
				return
			}
			_ = w.CloseWithError(fileError(name, pack(ctx, w, fd, abs, st)))
		})
		if err != nil {
			_ = w.CloseWithError(err)
			select {
			case opened <- err:
			default:
			}
		}
	}()
	out := &archiveStream{PipeReader: r, cancel: cancel, done: done}
	if err := <-opened; err != nil {
		_ = out.Close()
		return nil, fileError(name, err)
	}
	return out, nil
}

// archiveStream is a tar that is being made.
type archiveStream struct {
	*io.PipeReader
	cancel context.CancelFunc
	done   chan struct{}
}

// Close implements io.Closer. It waits for the walk to end.
func (s *archiveStream) Close() error {
	s.cancel()
	_ = s.PipeReader.Close()
	<-s.done
	return nil
}

// openArchived opens the file or directory that an archive is made of.
func openArchived(abs string) (int, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := open(unix.AT_FDCWD, abs, unix.O_PATH, 0)
	if err != nil {
		return -1, st, err
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, st, err
	}
	if kind := entry(abs, &st).Type; kind != dayfly.FileDirectory && kind != dayfly.FileRegular {
		return -1, st, notRegular(abs, kind)
	}
	f, err := reopen(fd, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return -1, st, err
	}
	defer f.Close()
	real, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	return real, st, err
}

// packer writes one archive.
type packer struct {
	ctx    context.Context
	out    *bufio.Writer
	tw     *tar.Writer // to out
	linked map[inode]string
	buf    []byte
}

type inode struct{ dev, ino uint64 }

// pack writes the archive of an open file or directory, which it closes.
func pack(ctx context.Context, w io.Writer, fd int, abs string, st unix.Stat_t) error {
	out := bufio.NewWriterSize(w, archiveBuf)
	p := &packer{ctx: ctx, out: out, tw: tar.NewWriter(out), linked: make(map[inode]string), buf: make([]byte, archiveBuf)}
	f := os.NewFile(uintptr(fd), abs)
	defer f.Close()
	var err error
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = p.dir(f, "", treeDepthMax)
	} else {
		err = p.file(f, path.Base(path.Clean(abs)), &st)
	}
	if err == nil {
		err = p.tw.Close()
	}
	if err == nil {
		err = out.Flush()
	}
	return err
}

// dir writes everything in an open directory.
func (p *packer) dir(dir *os.File, rel string, depth int) error {
	if depth == 0 {
		return dayfly.Errorf(dayfly.CodeFileConflict, "the tree is deeper than %d directories", treeDepthMax)
	}
	for {
		names, readErr := dir.Readdirnames(namesBatch)
		for _, name := range names {
			if err := p.ctx.Err(); err != nil {
				return err
			}
			if err := p.one(int(dir.Fd()), name, path.Join(rel, name), depth); err != nil {
				return err
			}
		}
		if readErr == io.EOF {
			return nil
		}
		if readErr != nil {
			return fmt.Errorf("read directory %s: %w", rel, readErr)
		}
	}
}

// one writes one name of a directory and what is below it.
func (p *packer) one(dir int, name, rel string, depth int) error {
	var st unix.Stat_t
	switch err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case err == unix.ENOENT:
		return nil // it vanished
	case err != nil:
		return fmt.Errorf("look at %s: %w", rel, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		to, err := readlink(dir, name)
		if err != nil {
			return fmt.Errorf("read link %s: %w", rel, err)
		}
		return p.tw.WriteHeader(header(tar.TypeSymlink, rel, to, &st))
	case unix.S_IFDIR:
		f, err := openIn(dir, name, unix.O_DIRECTORY)
		if err != nil {
			return fmt.Errorf("open directory %s: %w", rel, err)
		}
		defer f.Close()
		if err := p.tw.WriteHeader(header(tar.TypeDir, rel+"/", "", &st)); err != nil {
			return err
		}
		return p.dir(f, rel, depth-1)
	case unix.S_IFREG:
		f, err := openIn(dir, name, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", rel, err)
		}
		defer f.Close()
		if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil // it became something else
		}
		return p.file(f, rel, &st)
	}
	return nil
}

func openIn(dir int, name string, flags int) (*os.File, error) {
	fd, err := open(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY|flags, 0)
	if err != nil {
		return nil, err
	}
	_ = unix.SetNonblock(fd, false)
	return os.NewFile(uintptr(fd), name), nil
}

// file writes a regular file, or a link to an earlier name of it.
func (p *packer) file(f *os.File, rel string, st *unix.Stat_t) error {
	if st.Nlink > 1 {
		key := inode{uint64(st.Dev), st.Ino}
		if first, ok := p.linked[key]; ok {
			return p.tw.WriteHeader(header(tar.TypeLink, rel, first, st))
		}
		if len(p.linked) < linkedMax {
			p.linked[key] = rel
		}
	}
	if parts := dataParts(int(f.Fd()), st); parts != nil {
		return p.sparse(f, rel, st, parts)
	}
	h := header(tar.TypeReg, rel, "", st)
	h.Size = st.Size
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyBuffer(p.tw, struct{ io.Reader }{io.LimitReader(f, st.Size)}, p.buf)
	if err == nil && n < st.Size {
		err = dayfly.Errorf(dayfly.CodeFileConflict, "%s became shorter while it was read", rel)
	}
	return err
}

func header(kind byte, name, link string, st *unix.Stat_t) *tar.Header {
	return &tar.Header{
		Typeflag: kind, Name: name, Linkname: link, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Sec, 0),
	}
}
