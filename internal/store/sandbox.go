package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"dayfly.dev/dayfly"
)

// liveStatuses and endedStatuses are written out for queries; the partial indexes repeat them.
const (
	endedStatuses = "('deleted', 'failed')"
	liveStatuses  = "('provisioning', 'running', 'paused', 'deleting')"
)

const (
	sqlSandbox       = "SELECT " + sandboxColumns + " FROM sandboxes WHERE id = $1"
	sqlLiveSandboxes = "SELECT " + sandboxColumns + " FROM sandboxes WHERE status IN " + liveStatuses
	sqlInsertSandbox = "INSERT INTO sandboxes (" + sandboxColumns + ") VALUES " +
		"($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23)"
	sqlCountLive = "SELECT count(*) FROM sandboxes WHERE account = $1 AND status IN " + liveStatuses
	sqlNameTaken = "SELECT id FROM sandboxes WHERE account = $1 AND name = $2 AND name <> '' AND status NOT IN " + endedStatuses
	sqlImageID   = "SELECT id FROM images WHERE name = $1"
)

// CreateSandbox implements dayfly.Store.
func (db *DB) CreateSandbox(ctx context.Context, sb dayfly.Sandbox, req *dayfly.Request, maxLive int) (dayfly.Sandbox, bool, error) {
	if err := validSandbox(sb); err != nil {
		return dayfly.Sandbox{}, false, err
	}
	if sb.Status.Ended() {
		return dayfly.Sandbox{}, false, dayfly.Errorf(dayfly.CodeInvalid, "a new sandbox cannot have status %s", sb.Status)
	}
	if req != nil && req.Account != sb.Account {
		return dayfly.Sandbox{}, false, dayfly.Errorf(dayfly.CodeInvalid, "the idempotency key is another account's than the sandbox")
	}
	var stored dayfly.Sandbox
	var replayed bool
	err := db.write(ctx, func(t tx) error {
		if req != nil {
			prior, err := t.claimSandbox(*req, sb.ID)
			if err != nil {
				return err
			}
			if prior != nil {
				stored, replayed = *prior, true
				return nil
			}
		}
		if err := t.underQuota(sb.Account, maxLive); err != nil {
			return err
		}
		if err := t.nameFree(sb.Account, sb.Name); err != nil {
			return err
		}
		sb.Rev = 1
		var err error
		if stored, err = t.insertSandbox(sb); err != nil {
			return err
		}
		return t.note(event(stored, dayfly.EventAccepted, stored.Times.CreatedAt, ""))
	})
	if err != nil {
		return dayfly.Sandbox{}, false, err
	}
	return stored, replayed, nil
}

// Sandbox implements dayfly.Store.
func (db *DB) Sandbox(ctx context.Context, account, id string) (dayfly.Sandbox, error) {
	var sb dayfly.Sandbox
	err := db.read(ctx, func(t tx) error {
		r, err := t.sandbox(id)
		if err == nil && account != "" && r.Account != account {
			err = noSandbox(id)
		}
		if err != nil {
			return err
		}
		sb = r.Sandbox
		return nil
	})
	return sb, err
}

// LiveSandboxes implements dayfly.Store.
func (db *DB) LiveSandboxes(ctx context.Context) ([]dayfly.Sandbox, error) {
	var live []dayfly.Sandbox
	err := db.read(ctx, func(t tx) (err error) {
		live, err = all(t, func(r scanner) (dayfly.Sandbox, error) {
			if err := ctx.Err(); err != nil {
				return dayfly.Sandbox{}, err
			}
			row, err := scanSandbox(r)
			return row.Sandbox, err
		}, sqlLiveSandboxes)
		return err
	})
	if err != nil {
		return nil, err
	}
	return live, nil
}

// AdoptSandbox implements dayfly.Store. A name that another live sandbox of the account has by now is dropped: a machine
// that lives must have a record. Env names and labels are kept as given; Rev is at least 1.
func (db *DB) AdoptSandbox(ctx context.Context, sb dayfly.Sandbox) (dayfly.Sandbox, error) {
	if err := validSandbox(sb); err != nil {
		return dayfly.Sandbox{}, err
	}
	var stored dayfly.Sandbox
	err := db.write(ctx, func(t tx) error {
		existing, err := t.sandbox(sb.ID)
		if err == nil {
			stored = existing.Sandbox
			return nil
		}
		if dayfly.ErrorCode(err) != dayfly.CodeNotFound {
			return err
		}
		if err := t.nameFree(sb.Account, sb.Name); !sb.Status.Ended() && dayfly.ErrorCode(err) == dayfly.CodeConflict {
			sb.Name = ""
		} else if err != nil && dayfly.ErrorCode(err) != dayfly.CodeConflict {
			return err
		}
		sb.Rev = max(1, sb.Rev)
		if err := t.dropLabels(sb); err != nil { // the index may outlive a record that was removed by hand
			return err
		}
		if stored, err = t.insertSandbox(sb); err != nil {
			return err
		}
		return t.note(event(stored, dayfly.EventAdopted, time.Now(), ""))
	})
	return stored, err
}

func validSandbox(sb dayfly.Sandbox) error {
	switch {
	case sb.ID == "" || len(sb.ID) > cursorIDMax:
		return dayfly.Errorf(dayfly.CodeInvalid, "a sandbox needs an id of at most %d characters", cursorIDMax)
	case sb.Account == "":
		return dayfly.Errorf(dayfly.CodeInvalid, "a sandbox needs an account")
	case !sb.Status.Valid():
		return dayfly.Errorf(dayfly.CodeInvalid, "%q is no status", sb.Status)
	}
	return validTexts(sb.Labels, &sb.Name)
}

// validTexts refuses what no database keeps unchanged. Lengths and characters are the caller's rules.
func validTexts(labels map[string]string, name *string) error {
	if name != nil && !storable(*name) {
		return dayfly.Errorf(dayfly.CodeInvalid, "a name must be UTF-8 without NUL").WithDetail("field", "name")
	}
	for k, v := range labels {
		if !storable(k) || !storable(v) {
			return dayfly.Errorf(dayfly.CodeInvalid, "label %q must be UTF-8 without NUL", k).WithDetail("field", "labels")
		}
	}
	return nil
}

func storable(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

func noSandbox(id string) *dayfly.Error {
	return dayfly.Errorf(dayfly.CodeNotFound, "there is no sandbox %q", id).
		WithHint("list your sandboxes; ended ones are shown with include_ended")
}

func (t tx) sandbox(id string) (sandboxRow, error) {
	st, err := t.s.stmt(t.ctx, sqlSandbox)
	if err != nil {
		return sandboxRow{}, err
	}
	r, err := scanSandbox(st.QueryRowContext(t.ctx, id))
	if errors.Is(err, sql.ErrNoRows) {
		return sandboxRow{}, noSandbox(id)
	}
	return r, err
}

// sandboxAt reads the record for a write that compares rev.
func (t tx) sandboxAt(id string, rev int64) (sandboxRow, error) {
	st, err := t.s.stmt(t.ctx, sqlSandbox+t.d.lockRow)
	if err != nil {
		return sandboxRow{}, err
	}
	r, err := scanSandbox(st.QueryRowContext(t.ctx, id))
	if errors.Is(err, sql.ErrNoRows) {
		return sandboxRow{}, noSandbox(id)
	}
	if err != nil {
		return sandboxRow{}, err
	}
	if r.Rev != rev {
		return r, dayfly.Errorf(dayfly.CodeConflict, "sandbox %s was changed by another request", id).
			WithDetail("rev", r.Rev).WithHint("read the sandbox again and repeat the change")
	}
	return r, nil
}

// insertSandbox stores a record with its labels and returns it as it will be read.
func (t tx) insertSandbox(sb dayfly.Sandbox) (dayfly.Sandbox, error) {
	r := sandboxRow{Sandbox: sb, imageID: sb.Spec.ImageID}
	if r.imageID == "" {
		err := t.one(sqlImageID, []any{sb.Spec.Image}, &r.imageID)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return dayfly.Sandbox{}, fmt.Errorf("find the image: %w", err)
		}
	}
	args, err := sandboxArgs(r)
	if err != nil {
		return dayfly.Sandbox{}, err
	}
	if _, err := t.exec(sqlInsertSandbox, args...); err != nil {
		if t.d.kind(err) == failUnique {
			return dayfly.Sandbox{}, dayfly.Errorf(dayfly.CodeConflict, "there is a sandbox %s already", sb.ID).WithCause(err)
		}
		return dayfly.Sandbox{}, fmt.Errorf("store the sandbox: %w", err)
	}
	if err := t.addLabels(sb); err != nil {
		return dayfly.Sandbox{}, err
	}
	sb.Spec.ImageID = r.imageID
	return asStored(sb), nil
}

// underQuota counts the live sandboxes of the account. Nobody else writes meanwhile.
func (t tx) underQuota(account string, maxLive int) error {
	if maxLive <= 0 {
		return nil
	}
	var live int
	if err := t.one(sqlCountLive, []any{account}, &live); err != nil {
		return fmt.Errorf("count live sandboxes: %w", err)
	}
	if live < maxLive {
		return nil
	}
	return dayfly.Errorf(dayfly.CodeQuotaExceeded, "the account has %d live sandboxes and may have %d", live, maxLive).
		WithDetail("limit", maxLive).WithDetail("use", live).WithHint("delete sandboxes that are not needed, or ask for a higher quota")
}

// nameFree tells by CodeConflict that a live sandbox of the account has the name.
func (t tx) nameFree(account, name string) error {
	if name == "" {
		return nil
	}
	var holder string
	err := t.one(sqlNameTaken, []any{account, name}, &holder)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the name: %w", err)
	}
	return dayfly.Errorf(dayfly.CodeConflict, "the name %q is taken by a live sandbox", name).WithDetail("sandbox", holder).
		WithHint("use another name, or delete that sandbox")
}

// asStored is sb as a read would give it: without values of env, with times as precise as the database's.
func asStored(sb dayfly.Sandbox) dayfly.Sandbox {
	sb = sb.Clone()
	sb.Spec.Env = nil
	if sb.Labels == nil {
		sb.Labels = make(map[string]string)
	}
	slices.Sort(sb.EnvNames)
	for _, at := range []*time.Time{&sb.Times.CreatedAt, &sb.Times.ReadyAt, &sb.Times.EndedAt} {
		*at = wall(micros(*at))
	}
	return sb
}
