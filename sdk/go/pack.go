package dayfly

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
)

const (
	readDirBatch = 1024 // entries of a directory held at once, for each level
	packDepthMax = 1000 // levels below the folder
)

// packer writes a folder as a tar stream. os.Root keeps every step inside of it, whatever is renamed meanwhile.
type packer struct {
	root   *os.Root
	out    *tar.Writer
	moved  Transfer
	report progressReport
}

func packFolder(local string) (*packer, error) {
	root, err := os.OpenRoot(local)
	if err != nil {
		return nil, localError("open the folder to upload", err)
	}
	return &packer{root: root}, nil
}

// packStream is the reading end of a packer. Closing it ends the packer and waits for it.
type packStream struct {
	*io.PipeReader
	done chan struct{}
}

// Close implements io.Closer.
func (s packStream) Close() error {
	err := s.PipeReader.Close()
	<-s.done
	return err
}

// stream packs while it is read. report is called at the successful end, before the reader sees it.
func (p *packer) stream(report func(Transfer)) io.ReadCloser {
	r, w := io.Pipe()
	s := packStream{PipeReader: r, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer p.root.Close()
		p.out = tar.NewWriter(w)
		err := p.dir(".", 0)
		if err == nil {
			err = p.out.Close()
		}
		if err == nil {
			report(p.moved)
		}
		_ = w.CloseWithError(err) // nil means io.EOF
	}()
	return s
}

// dir packs what is in the directory name.
func (p *packer) dir(name string, depth int) error {
	if depth > packDepthMax {
		return &Error{Code: CodeLocal, Message: "the folder to upload is nested too deeply at " + lastBytes(name, 80)}
	}
	d, err := p.root.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return localError("read the folder to upload", err)
	}
	defer d.Close()
	for {
		entries, err := d.ReadDir(readDirBatch)
		for _, e := range entries {
			if err := p.entry(path.Join(name, e.Name()), depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return localError("read the folder to upload", err)
		}
	}
}

// entry packs one path. What vanished since its directory was read is left out.
func (p *packer) entry(name string, depth int) error {
	info, err := p.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return localError("read the folder to upload", err)
	}
	switch {
	case info.IsDir():
		if err := p.header(name+"/", info, ""); err != nil {
			return err
		}
		return p.dir(name, depth+1)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := p.root.Readlink(name)
		if err != nil {
			return localError("read the folder to upload", err)
		}
		p.moved.Files++
		return p.header(name, info, target)
	case info.Mode().IsRegular():
		return p.file(name)
	}
	p.moved.skip(name)
	return nil
}

// file packs a regular file with the size it has when it is opened: what is appended meanwhile is left out, what is cut is
// an error. Opening does not wait, should a FIFO have taken its place.
func (p *packer) file(name string) error {
	f, err := p.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return localError("read the folder to upload", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return localError("read the folder to upload", err)
	}
	if !info.Mode().IsRegular() {
		p.moved.skip(name)
		return nil
	}
	if err := p.header(name, info, ""); err != nil {
		return err
	}
	n, err := io.Copy(p.out, p.told(io.LimitReader(f, info.Size())))
	if err == nil && n < info.Size() {
		err = &Error{Code: CodeLocal, Message: name + " became shorter while it was uploaded", Hint: "try again once nothing writes to it"}
	}
	p.moved.Files++
	p.moved.Bytes += n
	return err
}

// told is r with its bytes reported on top of what was moved already.
func (p *packer) told(r io.Reader) io.Reader {
	if p.report == nil {
		return r
	}
	return &reportedReader{from: r, report: p.report, bytes: p.moved.Bytes, total: -1}
}

// header writes an entry's head: its name, mode and time, but not whose it is here.
func (p *packer) header(name string, info fs.FileInfo, target string) error {
	h := &tar.Header{
		Name: name, Linkname: target, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX,
	}
	switch {
	case strings.HasSuffix(name, "/"):
		h.Typeflag = tar.TypeDir
	case target != "":
		h.Typeflag = tar.TypeSymlink
	default:
		h.Typeflag, h.Size = tar.TypeReg, info.Size()
	}
	if err := p.out.WriteHeader(h); err != nil {
		return localError("pack "+name, err)
	}
	return nil
}
