package store

import (
	"context"
	"embed"
	"errors"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

//go:embed migrations/sqlite/*.sql
var sqliteMigrations embed.FS

// dialect is what differs between databases.
type dialect struct {
	goose      goose.Dialect
	migrations embed.FS
	folder     string // of migrations
	begin      string // starts a writing transaction; on SQLite it takes the write lock at once
	// lockRow follows a SELECT whose answer decides a write. Empty on SQLite, where a write runs alone.
	lockRow string
	// durable and fast go around a transaction that must survive a power loss; empty: every one does.
	durable, fast string
	// during gives the context that statements run under.
	during func(context.Context) context.Context
	// kind classifies an error of the database.
	kind func(error) failure
}

// failure is the kind of a database error.
type failure int

const (
	failOther   failure = iota
	failUnique          // a uniqueness or foreign key rule
	failBusy            // another process holds the database
	failFull            // no space left
	failIO              // reading or writing failed, perhaps for want of space
	failDamaged         // not a database, or damaged
	failReadOnly
)

var sqliteDialect = dialect{
	goose:      goose.DialectSQLite3,
	migrations: sqliteMigrations,
	folder:     "migrations/sqlite",
	begin:      "BEGIN IMMEDIATE",
	durable:    "PRAGMA synchronous=FULL",
	fast:       "PRAGMA synchronous=NORMAL",
	during:     context.WithoutCancel,
	kind:       sqliteKind,
}

func sqliteKind(err error) failure {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return failOther
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_CONSTRAINT:
		return failUnique
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL:
		return failBusy
	case sqlite3.SQLITE_FULL:
		return failFull
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN:
		return failIO
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT:
		return failDamaged
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH:
		return failReadOnly
	}
	return failOther
}
