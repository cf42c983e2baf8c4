package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/pressly/goose/v3"
	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cleanup"
)

// Options say how a database is opened. The zero value is a server's first or later start.
type Options struct {
	MustExist bool // a missing file is CodeUnavailable instead of a new database
	ReadOnly  bool // never creates, migrates or writes; beside a running server too; implies MustExist
}

const (
	fileMode    = 0o600
	newSuffix   = ".new" // of a database that is being made
	checkErrors = 3      // findings of quick_check that an error carries
)

// Open opens the database at path, makes it when there is none, and brings its schema up to date. ":memory:" is a database
// that ends with Close. Only one process may open a path for writing; the caller holds the lock of its data directory.
//
// A file that is damaged, cut short, read-only, of another program or of a newer Dayfly is CodeUnavailable, with what to do
// in the hint and the file (and quick_check's findings) in the details; it is left as it was. A full disk is CodeDiskFull.
func Open(ctx context.Context, path string, o Options) (*DB, error) {
	db := &DB{path: path, d: &sqliteDialect, closing: make(chan struct{})}
	if path == memoryPath {
		return db, db.explain(db.openMemory(ctx))
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("find the database: %w", err)
	}
	db.path = path
	if err := db.prepareFile(ctx, o); err != nil {
		return nil, db.explain(err)
	}
	if err := db.openFile(ctx, o); err != nil {
		return nil, db.explain(err)
	}
	return db, nil
}

// prepareFile makes the file when it may, else looks at it without changing it.
func (db *DB) prepareFile(ctx context.Context, o Options) error {
	info, err := os.Lstat(db.path)
	if errors.Is(err, fs.ErrNotExist) {
		if o.MustExist || o.ReadOnly {
			return dayfly.Errorf(dayfly.CodeUnavailable, "there is no database at %s", db.path).WithDetail("file", db.path).
				WithHint("check the data directory, or put a backup there")
		}
		return db.create(ctx)
	}
	if err != nil {
		return fmt.Errorf("find the database: %w", err)
	}
	if err := inspect(db.path, info); err != nil || o.ReadOnly {
		return err
	}
	for _, p := range []string{db.path, filepath.Dir(db.path)} {
		if err := unix.Access(p, unix.W_OK); err != nil {
			return readOnly(db.path).WithCause(fmt.Errorf("access %s: %w", p, err))
		}
	}
	if info.Mode().Perm() != fileMode {
		if err := os.Chmod(db.path, fileMode); err != nil {
			return readOnly(db.path).WithCause(err)
		}
	}
	return nil
}

// create makes the database under another name and renames it when it is whole, so that a file of that name is never empty.
func (db *DB) create(ctx context.Context) error {
	if wal, err := os.Stat(db.path + "-wal"); err == nil && wal.Size() > 0 {
		return dayfly.Errorf(dayfly.CodeUnavailable, "the database %s is missing, but its journal is there", db.path).
			WithDetail("file", db.path).WithHint("put the file or a backup back; to begin anew, move %s-wal away first", db.path)
	}
	fresh := db.path + newSuffix
	removeDatabase(fresh)
	undo := cleanup.Make(func() { removeDatabase(fresh) })
	defer undo.Clean()
	f, err := os.OpenFile(fresh, os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return db.fileError("make the database", err)
	}
	if err := f.Close(); err != nil {
		return db.fileError("make the database", err)
	}
	if err := db.migrateAt(ctx, fresh); err != nil {
		return fmt.Errorf("make the database: %w", err)
	}
	removeNeighbours(db.path) // empty ones of a database that was moved away
	if err := os.Rename(fresh, db.path); err != nil {
		return db.fileError("put the new database in place", err)
	}
	undo.Release()
	return syncFolder(filepath.Dir(db.path))
}

// migrateAt runs the migrations on a file and leaves all of it in the main file, on disk.
func (db *DB) migrateAt(ctx context.Context, path string) error {
	pool, err := sql.Open("sqlite", dsn(path, "synchronous(FULL)"))
	if err != nil {
		return err
	}
	pool.SetMaxOpenConns(1)
	err = db.migrate(ctx, pool)
	return errors.Join(err, pool.Close()) // the last connection's close moves the journal into the file and syncs it
}

func (db *DB) fileError(step string, err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return db.diskFull(fmt.Errorf("%s: %w", step, err))
	case errors.Is(err, unix.EROFS), errors.Is(err, fs.ErrPermission):
		return readOnly(db.path).WithCause(fmt.Errorf("%s: %w", step, err))
	}
	return fmt.Errorf("%s: %w", step, err)
}

// openFile opens the sessions of a file that exists.
func (db *DB) openFile(ctx context.Context, o Options) error {
	undo := cleanup.Make(func() { _ = db.Close() })
	defer undo.Clean()
	readPool, err := db.pool(dsn(db.path, "query_only(1)"), readers)
	if err != nil {
		return err
	}
	if err := db.check(ctx, readPool, o); err != nil { // before anything is written
		return err
	}
	if !o.ReadOnly {
		if err := db.openWriter(ctx); err != nil {
			return err
		}
	}
	db.reading = make(chan *session, readers)
	for range readers {
		if err := db.addSession(ctx, readPool, db.reading); err != nil {
			return err
		}
	}
	if !o.ReadOnly {
		if err := db.startBell(ctx); err != nil {
			return fmt.Errorf("read the last event: %w", err)
		}
	}
	undo.Release()
	return nil
}

// openWriter migrates the file and opens the writing session and the one of the checkpointer.
func (db *DB) openWriter(ctx context.Context) error {
	settings := []string{
		"synchronous(NORMAL)", fmt.Sprintf("wal_autocheckpoint(%d)", journalPages), fmt.Sprintf("journal_size_limit(%d)", journalBytes),
	}
	pool, err := db.pool(dsn(db.path, settings...), 2 /* the writer and the checkpointer */)
	if err != nil {
		return err
	}
	if err := db.migrate(ctx, pool); err != nil {
		return err
	}
	s, err := newSession(ctx, pool)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	db.journal = startCheckpointer(s)
	db.writing = make(chan *session, 1)
	return db.addSession(ctx, pool, db.writing)
}

func (db *DB) openMemory(ctx context.Context) error {
	undo := cleanup.Make(func() { _ = db.Close() })
	defer undo.Clean()
	pool, err := db.pool(memoryPath+"?_pragma=foreign_keys(1)", 1)
	if err != nil {
		return err
	}
	if err := db.migrate(ctx, pool); err != nil {
		return err
	}
	db.writing = make(chan *session, 1)
	db.reading = db.writing
	if err := db.addSession(ctx, pool, db.writing); err != nil {
		return err
	}
	undo.Release()
	return nil
}

func (db *DB) pool(name string, conns int) (*sql.DB, error) {
	pool, err := sql.Open("sqlite", name)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	pool.SetMaxOpenConns(conns)
	pool.SetMaxIdleConns(conns)
	db.pools = append(db.pools, pool)
	return pool, nil
}

func (db *DB) addSession(ctx context.Context, pool *sql.DB, to chan *session) error {
	s, err := newSession(ctx, pool)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	db.every = append(db.every, s)
	to <- s
	return nil
}

// check refuses a damaged file and a newer schema. It reads the whole file.
func (db *DB) check(ctx context.Context, pool *sql.DB, o Options) error {
	rows, err := pool.QueryContext(ctx, fmt.Sprintf("PRAGMA quick_check(%d)", checkErrors))
	if err != nil {
		return fmt.Errorf("check the database: %w", err)
	}
	found, err := collect(rows, func(r scanner) (line string, err error) { err = r.Scan(&line); return line, err })
	if err != nil {
		return fmt.Errorf("check the database: %w", err)
	}
	if len(found) != 1 || found[0] != "ok" {
		return damaged(db.path, strings.Join(found, "; "))
	}
	p, err := db.migrations(pool)
	if err != nil {
		return err
	}
	var have int64
	if err := pool.QueryRowContext(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&have); err != nil {
		return damaged(db.path, "it has no table of schema versions").WithCause(err)
	}
	sources := p.ListSources()
	switch known := sources[len(sources)-1].Version; {
	case have > known:
		return dayfly.Errorf(dayfly.CodeUnavailable, "the database %s was written by a newer Dayfly (schema %d, this one knows %d)",
			db.path, have, known).WithDetail("file", db.path).WithHint("start the newer version again, or put a backup of the older one in its place")
	case have < known && o.ReadOnly:
		return dayfly.Errorf(dayfly.CodeUnavailable, "the database %s was written by an older Dayfly (schema %d, this one reads %d)",
			db.path, have, known).WithDetail("file", db.path).WithHint("start the server once: it brings the database up to date")
	}
	return nil
}

func (db *DB) migrations(pool *sql.DB) (*goose.Provider, error) {
	files, err := fs.Sub(db.d.migrations, db.d.folder)
	if err != nil {
		return nil, fmt.Errorf("find migrations: %w", err)
	}
	p, err := goose.NewProvider(db.d.goose, pool, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("load migrations: %w", err)
	}
	return p, nil
}

func (db *DB) migrate(ctx context.Context, pool *sql.DB) error {
	p, err := db.migrations(pool)
	if err != nil {
		return err
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return nil
}

// dsn is how the driver wants a path and settings. The path may hold any byte.
func dsn(path string, settings ...string) string {
	q := url.Values{}
	q.Add("_pragma", fmt.Sprintf("busy_timeout(%d)", busyWait.Milliseconds()))
	q.Add("_pragma", "journal_mode(WAL)")
	q.Add("_pragma", "foreign_keys(1)")
	for _, s := range settings {
		q.Add("_pragma", s)
	}
	q.Add("mode", "rw") // never make a file
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}
