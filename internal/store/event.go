package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"dayfly.dev/dayfly"
)

const (
	eventColumns = "seq, at, account, sandbox, type, actor, cause, message"
	sqlAddEvent  = "INSERT INTO events (at, account, sandbox, type, actor, cause, message) VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING seq"
	// Each filter has a text of its own, so that each uses its index.
	sqlEvents        = "SELECT " + eventColumns + " FROM events WHERE seq > $1 ORDER BY seq LIMIT $2"
	sqlAccountEvents = "SELECT " + eventColumns + " FROM events WHERE account = $3 AND seq > $1 ORDER BY seq LIMIT $2"
	sqlSandboxEvents = "SELECT " + eventColumns + " FROM events WHERE sandbox = $3 AND sandbox <> '' AND seq > $1 ORDER BY seq LIMIT $2"
	sqlOwnEvents     = "SELECT " + eventColumns + " FROM events WHERE sandbox = $3 AND sandbox <> '' AND account = $4 AND seq > $1 ORDER BY seq LIMIT $2"
	sqlLastEvent     = "SELECT coalesce(max(seq), 0) FROM events"
	sqlPurgeEvents   = "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE at < $1 ORDER BY at LIMIT $2)"

	eventsDefault = 100
	eventsMax     = 1000
	eventTextMax  = 4096 // bytes of a message or cause
)

// event is what is noted of a sandbox.
func event(sb dayfly.Sandbox, what dayfly.EventType, at time.Time, cause string) dayfly.Event {
	return dayfly.Event{At: at, Account: sb.Account, Sandbox: sb.ID, Type: what, Cause: cause}
}

// noteMove notes a change of status; a change of anything else is no event.
func (t tx) noteMove(was, now dayfly.Sandbox) error {
	if was.Status == now.Status {
		return nil
	}
	e := event(now, "", time.Now(), string(now.End))
	switch now.Status {
	case dayfly.StatusRunning:
		e.Type = dayfly.EventRunning
		if was.Status == dayfly.StatusPaused {
			e.Type = dayfly.EventResumed
		}
	case dayfly.StatusPaused:
		e.Type = dayfly.EventPaused
	case dayfly.StatusDeleting:
		e.Type = dayfly.EventDeleting
	case dayfly.StatusDeleted, dayfly.StatusFailed:
		e.Type = dayfly.EventEnded
		if !now.Times.EndedAt.IsZero() {
			e.At = now.Times.EndedAt
		}
	default:
		return nil
	}
	return t.note(e)
}

// note stores an event in the transaction under way.
func (t tx) note(e dayfly.Event) error {
	if e.Actor == "" {
		e.Actor = dayfly.ActorOf(t.ctx)
	}
	var seq int64
	err := t.one(sqlAddEvent, []any{
		micros(e.At), e.Account, e.Sandbox, string(e.Type), string(e.Actor), cut(e.Cause), cut(e.Message),
	}, &seq)
	if err != nil {
		return fmt.Errorf("note %s: %w", e.Type, err)
	}
	*t.seq = seq
	return nil
}

func cut(s string) string { return s[:min(len(s), eventTextMax)] }

// AddEvent implements dayfly.Store.
func (db *DB) AddEvent(ctx context.Context, e dayfly.Event) (dayfly.Event, error) {
	if e.At.IsZero() || e.Type == "" {
		return e, dayfly.Errorf(dayfly.CodeInvalid, "an event needs a time and a type")
	}
	if e.Actor == "" {
		e.Actor = dayfly.ActorOf(ctx)
	}
	err := db.write(ctx, func(t tx) error {
		err := t.note(e)
		e.Seq = *t.seq
		return err
	})
	return e, err
}

// Events implements dayfly.Store.
func (db *DB) Events(ctx context.Context, f dayfly.EventFilter) ([]dayfly.Event, error) {
	limit := min(f.Limit, eventsMax)
	if limit <= 0 {
		limit = eventsDefault
	}
	query, args := sqlEvents, []any{f.After, limit}
	switch {
	case f.Sandbox != "" && f.Account != "":
		query, args = sqlOwnEvents, append(args, f.Sandbox, f.Account)
	case f.Sandbox != "":
		query, args = sqlSandboxEvents, append(args, f.Sandbox)
	case f.Account != "":
		query, args = sqlAccountEvents, append(args, f.Account)
	}
	var found []dayfly.Event
	err := db.read(ctx, func(t tx) (err error) {
		found, err = all(t, scanEvent, query, args...)
		return err
	})
	return found, err
}

func scanEvent(row scanner) (dayfly.Event, error) {
	var e dayfly.Event
	var at int64
	err := row.Scan(&e.Seq, &at, &e.Account, &e.Sandbox, &e.Type, &e.Actor, &e.Cause, &e.Message)
	e.At = wall(at)
	return e, err
}

// bell tells those who wait that there are new events. The zero value has rung for none.
type bell struct {
	mu      sync.Mutex
	last    int64
	changed chan struct{} // closed by the next ring; nil while nobody waits
}

func (b *bell) ring(seq int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if seq <= b.last {
		return
	}
	b.last = seq
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

func (b *bell) state() (last int64, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	return b.last, b.changed
}

// startBell has the bell know what is stored already.
func (db *DB) startBell(ctx context.Context) error {
	var last int64
	err := db.read(ctx, func(t tx) error { return t.one(sqlLastEvent, nil, &last) })
	db.events.ring(last)
	return err
}

// AwaitEvents implements dayfly.Store.
func (db *DB) AwaitEvents(ctx context.Context, seq int64) (int64, error) {
	for {
		last, changed := db.events.state()
		if last > seq {
			return last, nil
		}
		if err := ctx.Err(); err != nil { // asked after: an event that is there counts for more
			return last, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// PurgeEvents implements dayfly.Store.
func (db *DB) PurgeEvents(ctx context.Context, before time.Time, limit int) (int, error) {
	if limit <= 0 {
		return 0, nil
	}
	var removed int64
	err := db.write(ctx, func(t tx) (err error) {
		removed, err = t.exec(sqlPurgeEvents, micros(before), min(limit, purgeMax))
		return err
	})
	return int(removed), err
}
