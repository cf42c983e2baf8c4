package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"dayfly.dev/dayfly"
)

const (
	requestKeyMax = 255     // characters
	responseMax   = 1 << 20 // bytes of an answer that is kept
	purgeMax      = 1000    // records that one purge removes, so that other writes wait for milliseconds only
)

const (
	requestColumns   = "account, idem_key, operation, hash, resource, done, status, response, created_at"
	sqlRequest       = "SELECT " + requestColumns + " FROM requests WHERE account = $1 AND idem_key = $2"
	sqlInsertRequest = "INSERT INTO requests (" + requestColumns + ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
	sqlClaimRequest  = sqlInsertRequest + " ON CONFLICT (account, idem_key) DO NOTHING"
	sqlRemoveRequest = "DELETE FROM requests WHERE account = $1 AND idem_key = $2"
	sqlAbandon       = "DELETE FROM requests WHERE account = $1 AND idem_key = $2 AND done = $3"
	sqlFinish        = "UPDATE requests SET done = $5, status = $6, response = $7, resource = CASE WHEN $8 = '' THEN resource ELSE $8 END " +
		"WHERE account = $1 AND idem_key = $2 AND operation = $3 AND hash = $4"
	sqlPurgeRequests = "DELETE FROM requests WHERE (account, idem_key) IN " +
		"(SELECT account, idem_key FROM requests WHERE created_at < $1 ORDER BY created_at LIMIT $2)"
)

// BeginRequest implements dayfly.Store. A key that is new, which nearly every one is, costs one statement.
func (db *DB) BeginRequest(ctx context.Context, req dayfly.Request) (*dayfly.Request, error) {
	if err := validRequest(req); err != nil {
		return nil, err
	}
	var prior *dayfly.Request
	err := db.writeOne(ctx, func(t tx) error {
		n, err := t.insertRequest(sqlClaimRequest, req)
		if err != nil || n > 0 {
			return err
		}
		found, err := t.request(req)
		switch {
		case err != nil:
			return err
		case found == nil:
			return dayfly.Errorf(dayfly.CodeUnavailable, "the idempotency key was given back in this moment").WithRetryAfter(busyRetryAfter)
		case !sameRequest(*found, req):
			return keyReused(req)
		}
		prior = found
		return nil
	})
	if err != nil {
		return nil, err
	}
	return prior, nil
}

// FinishRequest implements dayfly.Store. An empty Resource keeps the one that was claimed. CodeNotFound: the claim was given
// back, purged or is another request's by now.
func (db *DB) FinishRequest(ctx context.Context, req dayfly.Request) error {
	if err := validRequest(req); err != nil {
		return err
	}
	if len(req.Response) > responseMax {
		return dayfly.Errorf(dayfly.CodeTooLarge, "an answer of %d bytes is too long to be kept", len(req.Response))
	}
	return db.write(ctx, func(t tx) error {
		n, err := t.exec(sqlFinish, req.Account, req.Key, req.Operation, req.Hash, true /* done */, req.Status, blob(req.Response), req.Resource)
		if err != nil {
			return fmt.Errorf("store the outcome: %w", err)
		}
		if n == 0 {
			return dayfly.Errorf(dayfly.CodeNotFound, "there is no such request")
		}
		return nil
	})
}

// AbandonRequest implements dayfly.Store. A key that is not claimed, or whose request is done, is left as it is: no error.
func (db *DB) AbandonRequest(ctx context.Context, account, key string) error {
	return db.write(ctx, func(t tx) error {
		_, err := t.exec(sqlAbandon, account, key, false /* not done */)
		return err
	})
}

// PurgeRequests implements dayfly.Store.
func (db *DB) PurgeRequests(ctx context.Context, before time.Time, limit int) (int, error) {
	if limit <= 0 {
		return 0, nil
	}
	var n int64
	err := db.write(ctx, func(t tx) (err error) {
		n, err = t.exec(sqlPurgeRequests, micros(before), min(limit, purgeMax))
		return err
	})
	return int(n), err
}

// ClaimedSandbox implements dayfly.Store.
func (db *DB) ClaimedSandbox(ctx context.Context, req dayfly.Request) (sb dayfly.Sandbox, found bool, err error) {
	if err := validRequest(req); err != nil {
		return dayfly.Sandbox{}, false, err
	}
	err = db.write(ctx, func(t tx) error { // for the row's lock
		claim, err := t.request(req)
		if err != nil || claim == nil {
			return err
		}
		prior, err := t.claimed(*claim)
		switch {
		case err != nil:
			return err
		case prior != nil && sameRequest(*claim, req):
			sb, found = *prior, true
		case prior != nil || claim.Operation != req.Operation:
			return keyReused(req)
		}
		return nil
	})
	return sb, found, err
}

// claimSandbox claims the key for a new sandbox. A prior claim of the same request gives its sandbox instead.
func (t tx) claimSandbox(req dayfly.Request, id string) (*dayfly.Sandbox, error) {
	if err := validRequest(req); err != nil {
		return nil, err
	}
	found, err := t.request(req)
	if err != nil {
		return nil, err
	}
	if found != nil {
		prior, err := t.claimed(*found)
		if err != nil {
			return nil, err
		}
		switch {
		case prior != nil && sameRequest(*found, req):
			return prior, nil
		case prior != nil || found.Operation != req.Operation:
			return nil, keyReused(req)
		}
		if _, err := t.exec(sqlRemoveRequest, req.Account, req.Key); err != nil {
			return nil, fmt.Errorf("replace the claim of a failed start: %w", err)
		}
	}
	req.Resource = id
	_, err = t.insertRequest(sqlInsertRequest, req)
	return nil, err
}

// claimed gives the sandbox that a claim stands for: nil when it failed to start or is not there any more.
func (t tx) claimed(req dayfly.Request) (*dayfly.Sandbox, error) {
	r, err := t.sandbox(req.Resource)
	if dayfly.ErrorCode(err) == dayfly.CodeNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if r.Status.Ended() && r.End == dayfly.EndStartupFailed || r.Account != req.Account {
		return nil, nil
	}
	return &r.Sandbox, nil
}

// request reads the record of req's key, or nil.
func (t tx) request(req dayfly.Request) (*dayfly.Request, error) {
	var r dayfly.Request
	var created int64
	err := t.one(sqlRequest+t.d.lockRow, []any{req.Account, req.Key},
		&r.Account, &r.Key, &r.Operation, &r.Hash, &r.Resource, &r.Done, &r.Status, &r.Response, &created)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the claim: %w", err)
	}
	r.CreatedAt, r.Response = wall(created), bytes.Clone(r.Response)
	return &r, nil
}

// insertRequest stores a claim by one of two statements and tells how many rows it changed.
func (t tx) insertRequest(query string, r dayfly.Request) (int64, error) {
	n, err := t.exec(query, r.Account, r.Key, r.Operation, r.Hash, r.Resource, r.Done, r.Status, blob(r.Response), micros(r.CreatedAt))
	if err != nil {
		return 0, fmt.Errorf("claim the key: %w", err)
	}
	return n, nil
}

func sameRequest(a, b dayfly.Request) bool { return a.Operation == b.Operation && a.Hash == b.Hash }

func keyReused(req dayfly.Request) error {
	return dayfly.Errorf(dayfly.CodeKeyReused, "the idempotency key was used for another request").WithDetail("key", req.Key).
		WithHint("use a new key for a new request; a retry repeats the body unchanged")
}

func validRequest(r dayfly.Request) error {
	switch n := len([]rune(r.Key)); {
	case r.Account == "":
		return dayfly.Errorf(dayfly.CodeInvalid, "a request needs an account")
	case n == 0 || n > requestKeyMax || !storable(r.Key):
		return dayfly.Errorf(dayfly.CodeInvalid, "an idempotency key has 1 to %d characters", requestKeyMax)
	}
	return nil
}

// blob is an answer at rest: none when it is empty, which no answer is.
func blob(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return b
}
