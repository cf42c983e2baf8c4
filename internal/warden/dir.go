package warden

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
)

const (
	leasesName = "leases"
	tempPrefix = ".tmp-"
	endSuffix  = ".end"
	markInfix  = ".ending."
	tempMaxAge = time.Hour
	dirMode    = 0o700
	fileMode   = 0o600
)

// Dir is the lease files of one data directory. Its methods may be called from several goroutines; several processes may
// use one directory at the same time, that is what it is for.
type Dir struct {
	path    string
	changes broadcast

	mu      sync.Mutex
	watcher *watcher // nil while nobody waits
	waiters int
}

// OpenDir makes the directory of lease files below dataDir if it is missing. It opens nothing that must be closed.
func OpenDir(dataDir string) (*Dir, error) {
	d := &Dir{path: filepath.Join(dataDir, leasesName)}
	if err := os.MkdirAll(d.path, dirMode); err != nil {
		return nil, fmt.Errorf("make lease directory: %w", err)
	}
	return d, nil
}

// Path is the directory itself.
func (d *Dir) Path() string { return d.path }

func (d *Dir) lease(id string) string      { return filepath.Join(d.path, id) }
func (d *Dir) end(id string) string        { return filepath.Join(d.path, id+endSuffix) }
func (d *Dir) mark(id, name string) string { return filepath.Join(d.path, id+markInfix+name) }

// WriteLease stores a lease, whole or not at all, over an earlier one of the same id. Renew is for a machine that lives.
func (d *Dir) WriteLease(l Lease) error {
	b, err := encodeLease(l)
	if err != nil {
		return err
	}
	temp, err := d.temp(b)
	if err != nil {
		return fmt.Errorf("write lease of %s: %w", l.ID, err)
	}
	failpoint.Hit("warden.write.temp")
	if err := os.Rename(temp, d.lease(l.ID)); err != nil {
		_ = os.Remove(temp)
		return fmt.Errorf("write lease of %s: %w", l.ID, err)
	}
	return nil
}

// replaceLease is WriteLease for a lease file that must be there: CodeGone otherwise.
func (d *Dir) replaceLease(l Lease) error {
	b, err := encodeLease(l)
	if err != nil {
		return err
	}
	temp, err := d.temp(b)
	if err != nil {
		return fmt.Errorf("renew lease of %s: %w", l.ID, err)
	}
	failpoint.Hit("warden.renew.temp")
	defer os.Remove(temp) // holds the old lease after the exchange
	err = unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, d.lease(l.ID), unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) { // a file system that cannot exchange
		if _, err = os.Lstat(d.lease(l.ID)); err == nil {
			err = os.Rename(temp, d.lease(l.ID))
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return errGone(l.ID)
	}
	if err != nil {
		return fmt.Errorf("renew lease of %s: %w", l.ID, err)
	}
	return nil
}

func errGone(id string) *dayfly.Error {
	return dayfly.Errorf(dayfly.CodeGone, "sandbox %s has ended", id)
}

// temp writes a file that nothing looks at yet.
func (d *Dir) temp(b []byte) (string, error) {
	path := filepath.Join(d.path, tempPrefix+rand.Text())
	if err := os.WriteFile(path, b, fileMode); err != nil {
		_ = os.Remove(path)
		return "", err
	}
	return path, nil
}

// ReadLease reads a lease. The error is CodeNotFound when there is no file, and ErrUnreadable for everything else.
func (d *Dir) ReadLease(id string) (Lease, error) {
	if !dayfly.ValidID(dayfly.PrefixSandbox, id) {
		return Lease{}, dayfly.Errorf(dayfly.CodeInvalid, "%q is no sandbox id", id)
	}
	b, err := readRegular(d.lease(id), leaseMaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return Lease{}, dayfly.Errorf(dayfly.CodeNotFound, "there is no lease of sandbox %s", id).WithCause(err)
	}
	if err != nil {
		return Lease{}, fmt.Errorf("lease of %s: %w: %w", id, ErrUnreadable, err)
	}
	l, err := decodeLease(id, b)
	if err != nil {
		return Lease{}, fmt.Errorf("lease of %s: %w: %w", id, ErrUnreadable, err)
	}
	return l, nil
}

// HasLease tells whether there is a lease file, readable or not. An error means "could not look".
func (d *Dir) HasLease(id string) (bool, error) {
	_, err := os.Lstat(d.lease(id))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for lease of %s: %w", id, err)
	}
	return true, nil
}

// RemoveLease removes the lease and everything beside it. The machine must be dead. Removing what is not there succeeds.
func (d *Dir) RemoveLease(id string) error {
	marks, err := d.marks(id)
	errs := []error{err}
	paths := []string{d.lease(id), d.end(id)} // the lease first: RecordEnd never leaves a record without one
	for _, name := range marks {
		paths = append(paths, d.mark(id, name))
	}
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove lease of %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// List gives the ids of all lease files, readable or not, sorted. An error means "could not look", never "none".
func (d *Dir) List() ([]string, error) {
	names, err := d.names()
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !dayfly.ValidID(dayfly.PrefixSandbox, n) })
	slices.Sort(names)
	return names, nil
}

func (d *Dir) names() ([]string, error) {
	f, err := os.Open(d.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// marks gives the names of the enforcers that have a mark on id.
func (d *Dir) marks(id string) ([]string, error) {
	names, err := d.names()
	if err != nil {
		return nil, fmt.Errorf("look for marks on %s: %w", id, err)
	}
	var out []string
	for _, n := range names {
		if enforcer, ok := strings.CutPrefix(n, id+markInfix); ok {
			out = append(out, enforcer)
		}
	}
	return out, nil
}

// RecordEnd writes how a machine ended, unless somebody did before or its lease is gone already; first tells whether this
// call did.
func (d *Dir) RecordEnd(id string, e End) (first bool, err error) {
	if has, err := d.HasLease(id); err != nil || !has {
		return false, err
	}
	b, err := encodeEnd(e)
	if err != nil {
		return false, fmt.Errorf("record end of %s: %w", id, err)
	}
	temp, err := d.temp(b)
	if err != nil {
		return false, fmt.Errorf("record end of %s: %w", id, err)
	}
	defer os.Remove(temp)
	failpoint.Hit("warden.record.temp")
	err = os.Link(temp, d.end(id)) // whole, and only if there is none
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("record end of %s: %w", id, err)
	}
	if has, err := d.HasLease(id); err == nil && !has { // removed meanwhile
		_ = os.Remove(d.end(id))
		return false, nil
	}
	return true, nil
}

// ReadEnd reads how a machine ended; ok is false when nobody recorded it.
func (d *Dir) ReadEnd(id string) (e End, ok bool, err error) {
	b, err := readRegular(d.end(id), endMaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return End{}, false, nil
	}
	if err == nil {
		e, err = decodeEnd(b)
	}
	if err != nil {
		return End{}, false, fmt.Errorf("read end of %s: %w", id, err)
	}
	return e, true, nil
}

// hasEnd tells whether somebody recorded an end, readable or not.
func (d *Dir) hasEnd(id string) bool {
	_, err := os.Lstat(d.end(id))
	return err == nil
}

// sweep removes files of dead enforcers that belong to no lease: end records, marks, temporary files. The warden calls it
// when it starts, and so does the server, before it makes a lease.
func (d *Dir) sweep() error {
	names, err := d.names()
	if err != nil {
		return fmt.Errorf("sweep leases: %w", err)
	}
	var errs []error
	for _, n := range names {
		if strings.HasPrefix(n, tempPrefix) {
			d.sweepTemp(n)
			continue
		}
		id, _, side := strings.Cut(n, ".")
		if !side || !dayfly.ValidID(dayfly.PrefixSandbox, id) {
			continue
		}
		if has, err := d.HasLease(id); err == nil && !has {
			if err := os.Remove(filepath.Join(d.path, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("sweep leases: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

// sweepTemp removes a temporary file whose writer must be dead: one lives for microseconds.
func (d *Dir) sweepTemp(name string) {
	path := filepath.Join(d.path, name)
	if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) > tempMaxAge {
		_ = os.Remove(path)
	}
}

// readRegular reads a regular file of at most max bytes. It follows no link and never blocks, whatever the path is.
func readRegular(path string, max int64) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, max+1))
	if err == nil && int64(len(b)) > max {
		err = fmt.Errorf("%s has more than %d bytes", path, max)
	}
	return b, err
}
