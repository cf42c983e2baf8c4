package store

import (
	"context"
	"fmt"
	"time"

	"dayfly.dev/dayfly"
)

// A record without an end time sorts first and goes by its creation.
const (
	sqlPurgeable = "SELECT " + sandboxColumns + " FROM sandboxes WHERE status IN " + endedStatuses +
		" AND ended_at < $1 AND created_at < $1 ORDER BY ended_at LIMIT $2"
	sqlRemoveSandbox = "DELETE FROM sandboxes WHERE id = $1"
)

// PurgeSandboxes implements dayfly.Store. The claim of the sandbox's idempotency key stays until PurgeRequests.
func (db *DB) PurgeSandboxes(ctx context.Context, before time.Time, limit int) (int, error) {
	if limit <= 0 {
		return 0, nil
	}
	var removed int
	err := db.write(ctx, func(t tx) error {
		old, err := all(t, scanSandbox, sqlPurgeable, micros(before), min(limit, purgeMax))
		if err != nil {
			return fmt.Errorf("find old sandboxes: %w", err)
		}
		for _, r := range old {
			if err := t.removeSandbox(r.Sandbox); err != nil {
				return err
			}
		}
		removed = len(old)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}

func (t tx) removeSandbox(sb dayfly.Sandbox) error {
	if err := t.dropLabels(sb); err != nil {
		return err
	}
	if _, err := t.exec(sqlRemoveSandbox, sb.ID); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", sb.ID, err)
	}
	return nil
}
