package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

const (
	readers        = 4                // reading sessions
	busyWait       = 5 * time.Second  // for a lock that another process holds
	busyRetryAfter = time.Second      // advice to a client when that was not enough
	spaceMin       = 1 << 20          // bytes free below which an I/O error counts as a full disk
	memoryPath     = ":memory:"       // a database of one process's life, for tests
	closeWait      = 10 * time.Second // for sessions that are in use
)

// DB implements dayfly.Store. It is safe for concurrent use. Every method waits for its turn on a session for as long as
// its context allows.
type DB struct {
	path    string
	d       *dialect
	pools   []*sql.DB
	writing chan *session // nil when the database is open for reading only
	reading chan *session // the same channel as writing for a database in memory
	every   []*session
	journal *checkpointer // nil in memory and for reading only
	events  bell

	closing   chan struct{} // closed by Close
	closeOnce sync.Once
	closeErr  error
}

var _ dayfly.Store = (*DB)(nil)

// Ping implements dayfly.Store: it reads from the database.
func (db *DB) Ping(ctx context.Context) error {
	return db.read(ctx, func(t tx) error {
		var n int64
		return t.one("SELECT count(*) FROM goose_db_version", nil, &n)
	})
}

// Close implements dayfly.Store. It waits for what runs; later calls answer CodeUnavailable. It can be called twice.
func (db *DB) Close() error {
	db.closeOnce.Do(func() {
		close(db.closing)
		db.closeErr = db.closeSessions()
	})
	return db.closeErr
}

func (db *DB) closeSessions() error {
	timeout := time.NewTimer(closeWait)
	defer timeout.Stop()
	var errs []error
	for range db.every {
		select {
		case s := <-db.reading:
			errs = append(errs, s.close())
		case s := <-db.writing:
			errs = append(errs, s.close())
		case <-timeout.C:
			return errors.Join(append(errs, errors.New("close the database: a transaction does not end"))...)
		}
	}
	errs = append(errs, db.journal.stop())
	for _, p := range db.pools {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// take waits for a session of the channel.
func (db *DB) take(ctx context.Context, from chan *session) (*session, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("wait for the database: %w", err)
	}
	closed := dayfly.Errorf(dayfly.CodeUnavailable, "the database is closed")
	select {
	case <-db.closing:
		return nil, closed
	default:
	}
	select {
	case s := <-from:
		return s, nil
	case <-db.closing:
		return nil, closed
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the database: %w", ctx.Err())
	}
}

// read runs fn on a reading session. Every statement of fn sees the newest committed state.
func (db *DB) read(ctx context.Context, fn func(tx) error) error {
	s, err := db.take(ctx, db.reading)
	if err != nil {
		return err
	}
	defer func() { db.reading <- s }()
	return db.explain(fn(tx{ctx: db.d.during(ctx), s: s, d: db.d}))
}

// write runs fn in one transaction and commits it unless fn fails.
func (db *DB) write(ctx context.Context, fn func(tx) error) error {
	return db.transact(ctx, fn, "", "")
}

// writeDurable is write for what must survive a power loss: keys, accounts, images.
func (db *DB) writeDurable(ctx context.Context, fn func(tx) error) error {
	return db.transact(ctx, fn, db.d.durable, db.d.fast)
}

// writeOne runs fn, of which one statement at most writes: it is a transaction by itself, which costs half of one that is begun
// and committed. Nobody else writes meanwhile.
func (db *DB) writeOne(ctx context.Context, fn func(tx) error) error {
	s, err := db.takeWriting(ctx)
	if err != nil {
		return err
	}
	defer func() { db.writing <- s }()
	if err := fn(tx{ctx: db.d.during(ctx), s: s, d: db.d}); err != nil {
		return db.explain(err)
	}
	db.journal.wrote()
	return nil
}

// takeWriting waits for the writing session.
func (db *DB) takeWriting(ctx context.Context) (*session, error) {
	if db.writing == nil {
		return nil, dayfly.Errorf(dayfly.CodeUnavailable, "the database is open for reading only")
	}
	return db.take(ctx, db.writing)
}

func (db *DB) transact(ctx context.Context, fn func(tx) error, before, after string) error {
	s, err := db.takeWriting(ctx)
	if err != nil {
		return err
	}
	defer func() { db.writing <- s }()
	var noted int64
	t := tx{ctx: db.d.during(ctx), s: s, d: db.d, seq: &noted}
	if before != "" {
		if _, err := t.exec(before); err != nil {
			return db.explain(fmt.Errorf("make the next write durable: %w", err))
		}
		defer func() { _, _ = t.exec(after) }()
	}
	if _, err := t.exec(db.d.begin); err != nil {
		return db.explain(fmt.Errorf("begin: %w", err))
	}
	committed := false
	defer func() {
		if !committed { // also when fn panics; on some errors the database has rolled back by itself
			_, _ = t.exec("ROLLBACK")
		}
	}()
	if err := fn(t); err != nil {
		return db.explain(err)
	}
	if _, err := t.exec("COMMIT"); err != nil {
		return db.explain(fmt.Errorf("commit: %w", err))
	}
	committed = true
	db.journal.wrote()
	db.events.ring(noted)
	return nil
}

// explain turns a database error into one that a user may read. Errors that already are pass through.
func (db *DB) explain(err error) error {
	var known *dayfly.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	switch kind := db.d.kind(err); kind {
	case failFull:
		return db.diskFull(err)
	case failIO:
		if db.path != memoryPath && noSpace(db.path) {
			return db.diskFull(err)
		}
		return dayfly.Errorf(dayfly.CodeUnavailable, "the database %s cannot be read or written", db.path).
			WithHint("look at the disk and the kernel's log").WithCause(err)
	case failDamaged:
		return damaged(db.path, "").WithCause(err)
	case failReadOnly:
		return readOnly(db.path).WithCause(err)
	case failBusy:
		return dayfly.Errorf(dayfly.CodeUnavailable, "the database is locked by another process").
			WithHint("stop the other program that uses %s", db.path).WithRetryAfter(busyRetryAfter).WithCause(err)
	}
	return fmt.Errorf("database: %w", err)
}

func (db *DB) diskFull(cause error) error {
	return dayfly.Errorf(dayfly.CodeDiskFull, "the disk of the database is full").
		WithHint("free space on the file system of %s", db.path).WithCause(cause)
}

func damaged(path, check string) *dayfly.Error {
	e := dayfly.Errorf(dayfly.CodeUnavailable, "the database %s is damaged", path).WithDetail("file", path).
		WithHint("stop the server, keep a copy of the file with its -wal and -shm neighbours, and put a backup in its place; nothing was changed")
	if check != "" {
		e = e.WithDetail("quick_check", check)
	}
	return e
}

func readOnly(path string) *dayfly.Error {
	return dayfly.Errorf(dayfly.CodeUnavailable, "the database %s cannot be written", path).WithDetail("file", path).
		WithHint("make the file and its folder writable for the server, or mount the file system read-write")
}

// noSpace tells whether the file system of path is as good as full.
func noSpace(path string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false
	}
	return st.Bavail*uint64(st.Bsize) < spaceMin
}
