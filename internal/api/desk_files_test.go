package api_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"dayfly.dev/dayfly"
)

// fileError translates like an agent would.
func fileError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return dayfly.Errorf(dayfly.CodeFileNotFound, "there is no such file")
	case err != nil:
		return dayfly.Errorf(dayfly.CodeFileConflict, "not a file").WithCause(err)
	}
	return nil
}

func (m *deskMachine) info(name string, fi fs.FileInfo) dayfly.FileInfo {
	out := dayfly.FileInfo{Name: filepath.Base(name), Path: "/" + name, SizeBytes: fi.Size(), Mode: fi.Mode(), ModifiedAt: fi.ModTime(), Type: dayfly.FileRegular}
	switch {
	case fi.IsDir():
		out.Type = dayfly.FileDirectory
	case fi.Mode()&fs.ModeSymlink != 0:
		out.Type = dayfly.FileSymlink
		out.Target, _ = m.root.Readlink(name)
	}
	return out
}

func (m *deskMachine) Stat(_ context.Context, name string) (dayfly.FileInfo, error) {
	fi, err := m.root.Lstat(name)
	if err != nil {
		return dayfly.FileInfo{}, fileError(err)
	}
	return m.info(name, fi), nil
}

func (m *deskMachine) List(ctx context.Context, q dayfly.ListQuery) ([]dayfly.FileInfo, string, error) {
	dir, err := m.root.Open(q.Path)
	if err != nil {
		return nil, "", fileError(err)
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, "", fileError(err)
	}
	slices.Sort(names)
	var out []dayfly.FileInfo
	for _, name := range names {
		if name <= q.Cursor && q.Cursor != "" {
			continue
		}
		if len(out) == q.Limit {
			return out, out[len(out)-1].Name, nil
		}
		info, err := m.Stat(ctx, filepath.Join(q.Path, name))
		if err != nil {
			return nil, "", err
		}
		out = append(out, info)
	}
	return out, "", nil
}

func (m *deskMachine) Read(_ context.Context, name string, r dayfly.FileRange) (dayfly.FileInfo, io.ReadCloser, error) {
	var f *os.File
	var err error
	if strings.HasPrefix(name, "/proc/") {
		f, err = os.Open(name)
	} else {
		f, err = m.root.Open(name)
	}
	if err != nil {
		return dayfly.FileInfo{}, nil, fileError(err)
	}
	fi, err := f.Stat()
	if err == nil && fi.IsDir() {
		err = errors.New("is a directory")
	}
	if err != nil {
		_ = f.Close()
		return dayfly.FileInfo{}, nil, fileError(err)
	}
	var body io.Reader = f
	if r.Offset > 0 || r.Length >= 0 {
		length := r.Length
		if length < 0 {
			length = 1 << 62
		}
		body = io.NewSectionReader(f, r.Offset, length)
	}
	if m.shrink > 0 {
		body = io.LimitReader(body, m.shrink)
	}
	return m.info(name, fi), struct {
		io.Reader
		io.Closer
	}{body, f}, nil
}

func (m *deskMachine) Write(_ context.Context, name string, mode *fs.FileMode, r io.Reader) (dayfly.FileInfo, error) {
	perm := fs.FileMode(0o644)
	if mode != nil {
		perm = mode.Perm()
	}
	if err := m.root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return dayfly.FileInfo{}, fileError(err)
	}
	temp := fmt.Sprintf(".part-%d", time.Now().UnixNano())
	f, err := m.root.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil {
		return dayfly.FileInfo{}, fileError(err)
	}
	_, err = io.Copy(f, r)
	err = errors.Join(err, f.Chmod(perm), f.Close())
	if err != nil {
		_ = m.root.Remove(temp)
		return dayfly.FileInfo{}, err
	}
	if err := m.root.Rename(temp, name); err != nil {
		return dayfly.FileInfo{}, fileError(err)
	}
	fi, err := m.root.Lstat(name)
	if err != nil {
		return dayfly.FileInfo{}, fileError(err)
	}
	return m.info(name, fi), nil
}

func (m *deskMachine) Remove(_ context.Context, name string, recursive bool) error {
	if recursive {
		return fileError(m.root.RemoveAll(name))
	}
	return fileError(m.root.Remove(name))
}

func (m *deskMachine) ReadArchive(_ context.Context, name string) (io.ReadCloser, error) {
	if _, err := m.root.Stat(name); err != nil {
		return nil, fileError(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.AddFS(os.DirFS(filepath.Join(m.root.Name(), name))); err != nil {
		return nil, err
	}
	return io.NopCloser(&b), w.Close()
}

func (m *deskMachine) WriteArchive(ctx context.Context, name string, r io.Reader) error {
	in := tar.NewReader(r)
	if err := m.root.MkdirAll(name, 0o755); err != nil {
		return fileError(err)
	}
	for {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return dayfly.Errorf(dayfly.CodeInvalid, "the archive is damaged").WithCause(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if _, err := m.Write(ctx, filepath.Join(name, h.Name), nil, in); err != nil {
			return err
		}
	}
}
