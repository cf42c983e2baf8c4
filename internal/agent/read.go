package agent

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

func itoa(n int) string { return strconv.Itoa(n) }

// Read implements agentwire.Machine.
func (a *Agent) Read(ctx context.Context, name string, part dayfly.FileRange) (info dayfly.FileInfo, content io.ReadCloser, err error) {
	if part.Offset < 0 || part.Length < -1 {
		return info, nil, dayfly.Errorf(dayfly.CodeInvalid, "the range of %d bytes at %d is not valid", part.Length, part.Offset)
	}
	abs, err := absolute(a.cfg.User.Home, name)
	if err != nil {
		return info, nil, err
	}
	var f *os.File
	var openErr error
	err = a.threads.quick(ctx, a.fileRights(), func() {
		f, info, openErr = openContent(abs)
	})
	if err == nil {
		err = fileError(name, openErr)
	}
	if err == nil && part.Offset > 0 {
		_, err = f.Seek(part.Offset, io.SeekStart)
	}
	if err != nil {
		if f != nil {
			_ = f.Close()
		}
		return dayfly.FileInfo{}, nil, fileError(name, err)
	}
	c := &fileContent{a: a, ctx: ctx, f: f, name: name, left: part.Length}
	if info.SizeBytes > 0 { // the files of /proc have size 0 and content
		rest := max(0, info.SizeBytes-part.Offset)
		if c.left < 0 || c.left > rest {
			c.left = rest
		}
	}
	return info, c, nil
}

// openContent opens a regular file for reading. Its type is known before it is really opened: opening a FIFO or a device
// would do something to it.
func openContent(abs string) (*os.File, dayfly.FileInfo, error) {
	fd, err := open(unix.AT_FDCWD, abs, unix.O_PATH, 0)
	if err != nil {
		return nil, dayfly.FileInfo{}, err
	}
	defer unix.Close(fd)
	info, err := describe(fd, abs)
	if err != nil {
		return nil, info, err
	}
	if info.Type != dayfly.FileRegular {
		return nil, info, notRegular(abs, info.Type)
	}
	f, err := reopen(fd, unix.O_RDONLY|unix.O_NONBLOCK)
	return f, info, err
}

func notRegular(name string, kind dayfly.FileType) error {
	what := "neither a file nor a directory"
	if kind == dayfly.FileDirectory {
		what = "a directory"
	}
	return dayfly.Errorf(dayfly.CodeFileConflict, "%s is %s", name, what)
}

// fileContent reads a file within the slots for disk work.
type fileContent struct {
	a    *Agent
	ctx  context.Context
	f    *os.File
	name string
	left int64 // or -1 for all there is
}

// Read implements io.Reader.
func (c *fileContent) Read(p []byte) (n int, err error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	if c.left > 0 && int64(len(p)) > c.left {
		p = p[:c.left]
	}
	if err := c.a.onDisk(c.ctx, func() { n, err = c.f.Read(p) }); err != nil {
		return 0, err
	}
	if c.left > 0 {
		c.left -= int64(n)
	}
	if err != nil && err != io.EOF {
		err = fileError(c.name, fmt.Errorf("read: %w", err))
	}
	return n, err
}

// Close implements io.Closer.
func (c *fileContent) Close() error { return c.f.Close() }

// onDisk runs do when a slot is free. The slots bound the threads that may be stuck in a slow disk.
func (a *Agent) onDisk(ctx context.Context, do func()) error {
	select {
	case a.disk <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-a.disk }()
	do()
	return nil
}
