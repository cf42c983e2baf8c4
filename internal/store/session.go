package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// session is one connection with its prepared statements. One goroutine uses it at a time.
type session struct {
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
}

func newSession(ctx context.Context, pool *sql.DB) (*session, error) {
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &session{conn: conn, stmts: make(map[string]*sql.Stmt)}, nil
}

func (s *session) close() error {
	var errs []error
	for _, st := range s.stmts {
		errs = append(errs, st.Close())
	}
	return errors.Join(append(errs, s.conn.Close())...)
}

// stmt prepares a query once. Only constant texts go through it, so the map is bounded by the source code.
func (s *session) stmt(ctx context.Context, query string) (*sql.Stmt, error) {
	if st := s.stmts[query]; st != nil {
		return st, nil
	}
	st, err := s.conn.PrepareContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("prepare %.40q: %w", query, err)
	}
	s.stmts[query] = st
	return st, nil
}

// tx is a turn on a session: a transaction when it writes. Its context has outlived the caller's cancellation.
type tx struct {
	ctx context.Context
	s   *session
	d   *dialect
	seq *int64 // of the last event noted in it; nil when it only reads
}

// exec runs a statement and tells how many rows it changed.
func (t tx) exec(query string, args ...any) (int64, error) {
	st, err := t.s.stmt(t.ctx, query)
	if err != nil {
		return 0, err
	}
	res, err := st.ExecContext(t.ctx, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// one scans the single row of a query. sql.ErrNoRows: there is none.
func (t tx) one(query string, args []any, dest ...any) error {
	st, err := t.s.stmt(t.ctx, query)
	if err != nil {
		return err
	}
	return st.QueryRowContext(t.ctx, args...).Scan(dest...)
}

// scanner is a row under the cursor.
type scanner interface{ Scan(dest ...any) error }

// all reads every row of a query of constant text; the query bounds their number.
func all[T any](t tx, scan func(scanner) (T, error), query string, args ...any) ([]T, error) {
	st, err := t.s.stmt(t.ctx, query)
	if err != nil {
		return nil, err
	}
	rows, err := st.QueryContext(t.ctx, args...)
	if err != nil {
		return nil, err
	}
	return collect(rows, scan)
}

// built is all for a text that was put together for one call and is not kept.
func built[T any](t tx, scan func(scanner) (T, error), query string, args ...any) ([]T, error) {
	rows, err := t.s.conn.QueryContext(t.ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return collect(rows, scan)
}

func collect[T any](rows *sql.Rows, scan func(scanner) (T, error)) ([]T, error) {
	defer func() { _ = rows.Close() }()
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}
