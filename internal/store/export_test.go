package store

import (
	"context"
	"strings"

	"dayfly.dev/dayfly"
)

// Plan tells how the database runs the query of the first or a later page, one step a line.
func (db *DB) Plan(ctx context.Context, f dayfly.SandboxFilter, first bool) (string, error) {
	var plan string
	err := db.read(ctx, func(t tx) error {
		labels, err := t.rarestFirst(f)
		if err != nil {
			return err
		}
		wanted, err := filterStatuses(f)
		if err != nil {
			return err
		}
		var from *position
		if !first {
			from = &position{created: 1 << 60, id: "z"}
		}
		q := newListQuery(f, labels, from)
		text, args := q.build(wanted)
		steps, err := built(t, func(r scanner) (step string, err error) {
			var id, parent, unused int
			err = r.Scan(&id, &parent, &unused, &step)
			return step, err
		}, "EXPLAIN QUERY PLAN "+text, args...)
		plan = strings.Join(steps, "\n")
		return err
	})
	return plan, err
}

// ParseCursor is parseCursor for the fuzz target: it gives the cursor that the position makes.
func ParseCursor(s string) (string, error) {
	p, err := parseCursor(s)
	if err != nil {
		return "", err
	}
	return p.cursor(), nil
}
