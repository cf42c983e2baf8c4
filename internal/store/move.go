package store

import (
	"context"
	"fmt"
	"maps"
	"time"

	"dayfly.dev/dayfly"
)

const (
	sqlMove = "UPDATE sandboxes SET rev = $2, wanted = $3, status = $4, driver = $5, node = $6, lease_boot = $7, lease_born = $8, " +
		"lease_deadline = $9, lease_ceiling = $10, created_at = $11, ready_at = $12, ended_at = $13, end_reason = $14, ready_boot = $15, ended_boot = $16 WHERE id = $1"
	sqlRenew     = "UPDATE sandboxes SET rev = $2, lease_deadline = $3 WHERE id = $1"
	sqlRelabel   = "UPDATE sandboxes SET rev = $2, name = $3, labels = $4 WHERE id = $1"
	sqlAddLabel  = "INSERT INTO sandbox_labels (account, label, value, status, created_at, sandbox) VALUES ($1, $2, $3, $4, $5, $6)"
	sqlMoveLabel = "UPDATE sandbox_labels SET status = $7, created_at = $8 WHERE " + labelKey
	sqlDropLabel = "DELETE FROM sandbox_labels WHERE " + labelKey
	labelKey     = "account = $1 AND label = $2 AND value = $3 AND status = $4 AND created_at = $5 AND sandbox = $6"
)

// MoveSandbox implements dayfly.Store.
func (db *DB) MoveSandbox(ctx context.Context, sb dayfly.Sandbox) (dayfly.Sandbox, error) {
	if !sb.Status.Valid() {
		return dayfly.Sandbox{}, dayfly.Errorf(dayfly.CodeInvalid, "%q is no status", sb.Status)
	}
	var moved dayfly.Sandbox
	err := db.write(ctx, func(t tx) error {
		r, err := t.sandboxAt(sb.ID, sb.Rev)
		if err != nil {
			return err
		}
		was := r.Sandbox
		if sb.Account != "" && sb.Account != was.Account {
			return noSandbox(sb.ID)
		}
		if sb.Status != was.Status && !dayfly.CanMove(was.Status, sb.Status) {
			return dayfly.Errorf(dayfly.CodeConflict, "a sandbox that is %s cannot become %s", was.Status, sb.Status).
				WithDetail("status", string(was.Status))
		}
		now := was
		now.Rev++
		now.Wanted, now.Status, now.Driver, now.Node = sb.Wanted, sb.Status, sb.Driver, sb.Node
		now.Lease, now.Times, now.End = sb.Lease, sb.Times, sb.End
		moved = asStored(now)
		if err := t.storeMove(was, moved); err != nil {
			return err
		}
		return t.noteMove(was, moved)
	})
	if err != nil {
		return dayfly.Sandbox{}, err
	}
	return moved, nil
}

func (t tx) storeMove(was, now dayfly.Sandbox) error {
	_, err := t.exec(sqlMove, now.ID, now.Rev, string(now.Wanted), string(now.Status), string(now.Driver), now.Node,
		now.Lease.BootID, int64(now.Lease.Born), int64(now.Lease.Deadline), int64(now.Lease.Ceiling),
		micros(now.Times.CreatedAt), micros(now.Times.ReadyAt), micros(now.Times.EndedAt), string(now.End),
		int64(now.Times.ReadyBoot), int64(now.Times.EndedBoot))
	if err != nil {
		return fmt.Errorf("move the sandbox: %w", err)
	}
	if was.Status == now.Status && was.Times.CreatedAt.Equal(now.Times.CreatedAt) {
		return nil
	}
	for k, v := range was.Labels {
		n, err := t.exec(sqlMoveLabel, was.Account, k, v, string(was.Status), micros(was.Times.CreatedAt), was.ID,
			string(now.Status), micros(now.Times.CreatedAt))
		if err != nil {
			return fmt.Errorf("move label %q: %w", k, err)
		}
		if n == 1 {
			continue
		}
		// The index lost a row. That must not keep a sandbox from ending: its labels are the truth.
		if _, err := t.exec(sqlAddLabel, was.Account, k, v, string(now.Status), micros(now.Times.CreatedAt), was.ID); err != nil {
			return fmt.Errorf("index label %q again: %w", k, err)
		}
	}
	return nil
}

// RenewLease implements dayfly.Store. Only the deadline is stored. CodeGone: the sandbox has ended. CodeConflict: rev is not
// current, the deadline is not later, or the lease is of another boot. CodeLeaseCeiling: the deadline is past the ceiling.
func (db *DB) RenewLease(ctx context.Context, id string, rev int64, lease dayfly.Lease) (dayfly.Sandbox, error) {
	var renewed dayfly.Sandbox
	err := db.write(ctx, func(t tx) error {
		r, err := t.sandboxAt(id, rev)
		if r.Status.Ended() {
			return gone(r.Sandbox)
		}
		if err != nil {
			return err
		}
		if err := renewable(r.Lease, lease); err != nil {
			return err
		}
		r.Rev++
		r.Lease.Deadline = lease.Deadline
		renewed = r.Sandbox
		if _, err := t.exec(sqlRenew, id, r.Rev, int64(lease.Deadline)); err != nil {
			return fmt.Errorf("renew the lease: %w", err)
		}
		return t.note(event(renewed, dayfly.EventExtended, time.Now(), ""))
	})
	if err != nil {
		return dayfly.Sandbox{}, err
	}
	return renewed, nil
}

func renewable(has, wants dayfly.Lease) error {
	switch {
	case wants.BootID != has.BootID:
		return dayfly.Errorf(dayfly.CodeConflict, "the lease is of another boot of the host")
	case wants.Deadline <= has.Deadline:
		return dayfly.Errorf(dayfly.CodeConflict, "the new deadline is not later than the lease's")
	case wants.Deadline > has.Ceiling:
		return dayfly.Errorf(dayfly.CodeLeaseCeiling, "the new deadline is past the lease's ceiling of %s in all", has.Ceiling-has.Born)
	}
	return nil
}

func gone(sb dayfly.Sandbox) *dayfly.Error {
	e := dayfly.Errorf(dayfly.CodeGone, "sandbox %s has ended", sb.ID).WithDetail("end_reason", string(sb.End))
	if sb.Status.Ended() && !sb.Times.EndedAt.IsZero() {
		e = e.WithDetail("ended_at", sb.Times.EndedAt)
	}
	return e
}

// LabelSandbox implements dayfly.Store. CodeConflict also tells that the name is taken, as CreateSandbox does.
func (db *DB) LabelSandbox(ctx context.Context, id string, rev int64, labels map[string]string, name *string) (dayfly.Sandbox, error) {
	if err := validTexts(labels, name); err != nil {
		return dayfly.Sandbox{}, err
	}
	var labelled dayfly.Sandbox
	err := db.write(ctx, func(t tx) error {
		r, err := t.sandboxAt(id, rev)
		if err != nil {
			return err
		}
		now := r.Sandbox
		now.Rev++
		if name != nil && *name != now.Name {
			if !now.Status.Ended() {
				if err := t.nameFree(now.Account, *name); err != nil {
					return err
				}
			}
			now.Name = *name
		}
		if labels != nil {
			if err := t.dropLabels(r.Sandbox); err != nil {
				return err
			}
			now.Labels = maps.Clone(labels)
			if err := t.addLabels(now); err != nil {
				return err
			}
		}
		text, err := encodeLabels(now.Labels)
		if err != nil {
			return err
		}
		if _, err := t.exec(sqlRelabel, id, now.Rev, now.Name, text); err != nil {
			return fmt.Errorf("label the sandbox: %w", err)
		}
		labelled = now
		return nil
	})
	if err != nil {
		return dayfly.Sandbox{}, err
	}
	return labelled, nil
}

func (t tx) addLabels(sb dayfly.Sandbox) error {
	for k, v := range sb.Labels {
		if _, err := t.exec(sqlAddLabel, sb.Account, k, v, string(sb.Status), micros(sb.Times.CreatedAt), sb.ID); err != nil {
			return fmt.Errorf("store label %q: %w", k, err)
		}
	}
	return nil
}

func (t tx) dropLabels(sb dayfly.Sandbox) error {
	for k, v := range sb.Labels {
		if _, err := t.exec(sqlDropLabel, sb.Account, k, v, string(sb.Status), micros(sb.Times.CreatedAt), sb.ID); err != nil {
			return fmt.Errorf("drop label %q: %w", k, err)
		}
	}
	return nil
}
