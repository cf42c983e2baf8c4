package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"dayfly.dev/dayfly"
)

const (
	pageDefault = 50
	pageMax     = 100
	// rareEnough is how many records of a label are counted to find which of several labels leads a query.
	rareEnough = 1000
)

// statuses in the order of a sandbox's life; the first four are live.
var statuses = [...]dayfly.Status{
	dayfly.StatusProvisioning, dayfly.StatusRunning, dayfly.StatusPaused, dayfly.StatusDeleting, dayfly.StatusDeleted, dayfly.StatusFailed,
}

// Sandboxes implements dayfly.Store.
//
// A page is the merge of one ordered index range for each status, so it costs the same however many records there are,
// unless further conditions (a second label, Image) leave out most of what the leading one finds.
func (db *DB) Sandboxes(ctx context.Context, f dayfly.SandboxFilter) (page []dayfly.Sandbox, next string, err error) {
	var from *position
	if f.Cursor != "" {
		p, err := parseCursor(f.Cursor)
		if err != nil {
			return nil, "", err
		}
		from = &p
	}
	wanted, err := filterStatuses(f)
	if err != nil {
		return nil, "", err
	}
	if f.Limit < 0 || f.Limit > pageMax {
		return nil, "", dayfly.Errorf(dayfly.CodeInvalid, "limit must be 1 to %d", pageMax).WithDetail("field", "limit")
	}
	if f.Limit == 0 {
		f.Limit = pageDefault
	}
	err = db.read(ctx, func(t tx) error {
		labels, err := t.rarestFirst(f)
		if err != nil {
			return err
		}
		q := newListQuery(f, labels, from)
		text, args := q.build(wanted)
		rows, err := built(t, scanSandbox, text, args...)
		if err != nil {
			return fmt.Errorf("list sandboxes: %w", err)
		}
		for _, r := range rows {
			page = append(page, r.Sandbox)
		}
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	if len(page) > f.Limit {
		page = page[:f.Limit]
		last := page[f.Limit-1]
		next = position{created: micros(last.Times.CreatedAt), id: last.ID}.cursor()
	}
	return page, next, nil
}

func filterStatuses(f dayfly.SandboxFilter) ([]dayfly.Status, error) {
	for _, s := range f.Statuses {
		if !s.Valid() {
			return nil, dayfly.Errorf(dayfly.CodeInvalid, "%q is no status", s).WithDetail("field", "status")
		}
	}
	var out []dayfly.Status
	for _, s := range statuses {
		asked := slices.Contains(f.Statuses, s)
		if len(f.Statuses) == 0 {
			asked = f.IncludeEnded || !s.Ended()
		}
		if asked {
			out = append(out, s)
		}
	}
	return out, nil
}

// label is one condition of a filter.
type label struct{ key, value string }

// rarestFirst orders the filter's labels so that the one with the fewest records leads.
func (t tx) rarestFirst(f dayfly.SandboxFilter) ([]label, error) {
	labels := make([]label, 0, len(f.Labels))
	for k, v := range f.Labels {
		labels = append(labels, label{k, v})
	}
	slices.SortFunc(labels, func(a, b label) int { return strings.Compare(a.key, b.key) })
	if len(labels) < 2 {
		return labels, nil
	}
	count := make(map[label]int, len(labels))
	for _, l := range labels {
		query, args := "SELECT 1 FROM sandbox_labels WHERE label = $1 AND value = $2 LIMIT $3", []any{l.key, l.value, rareEnough}
		if f.Account != "" {
			query, args = "SELECT 1 FROM sandbox_labels WHERE label = $1 AND value = $2 AND account = $4 LIMIT $3", append(args, f.Account)
		}
		var n int
		if err := t.one("SELECT count(*) FROM ("+query+") AS some", args, &n); err != nil {
			return nil, fmt.Errorf("count label %q: %w", l.key, err)
		}
		count[l] = n
	}
	slices.SortStableFunc(labels, func(a, b label) int { return count[a] - count[b] })
	return labels, nil
}

// listQuery builds the text of one page.
type listQuery struct {
	filter dayfly.SandboxFilter
	lead   *label    // the label whose rows give the order, or nil: the sandboxes do
	also   []label   // that a sandbox must have too
	from   *position // or nil for the first page
	args   []any
}

// newListQuery lets the first label lead unless there is a name, which is rarer.
func newListQuery(f dayfly.SandboxFilter, labels []label, from *position) *listQuery {
	q := &listQuery{filter: f, also: labels, from: from}
	if len(labels) > 0 && f.Name == "" {
		q.lead, q.also = &labels[0], labels[1:]
	}
	return q
}

// arg adds an argument and gives its placeholder.
func (q *listQuery) arg(v any) string {
	q.args = append(q.args, v)
	return fmt.Sprintf("$%d", len(q.args))
}

// build makes one ordered SELECT for each status and merges them.
func (q *listQuery) build(wanted []dayfly.Status) (string, []any) {
	from, o := q.source()
	arm := "SELECT " + q.columns() + " FROM " + from + " WHERE " + strings.Join(q.conditions(o), " AND ")
	arms := make([]string, 0, len(wanted))
	for _, s := range wanted {
		arms = append(arms, arm+" AND "+o.table+".status = "+q.arg(string(s)))
	}
	return strings.Join(arms, " UNION ALL ") + " ORDER BY created_at DESC, id DESC LIMIT " + q.arg(q.filter.Limit+1), q.args
}

// order names the table whose index gives the order, and its column with the sandbox's id.
type order struct{ table, id string }

func (q *listQuery) source() (string, order) {
	if q.lead != nil {
		return "sandbox_labels AS l JOIN sandboxes AS s ON s.id = l.sandbox", order{"l", "l.sandbox"}
	}
	return "sandboxes AS s", order{"s", "s.id"}
}

// columns takes what the page is ordered by from the table that gives the order, or the database would sort.
func (q *listQuery) columns() string {
	columns := "s." + strings.ReplaceAll(sandboxColumns, ", ", ", s.")
	if q.lead != nil {
		columns = strings.Replace(columns, "s.id", "l.sandbox AS id", 1)
		columns = strings.Replace(columns, "s.created_at", "l.created_at AS created_at", 1)
	}
	return columns
}

// conditions is everything that an arm asks but its status.
func (q *listQuery) conditions(o order) []string {
	where := []string{"1 = 1"}
	if q.lead != nil {
		where = append(where, "l.label = "+q.arg(q.lead.key), "l.value = "+q.arg(q.lead.value))
	}
	if q.filter.Account != "" {
		where = append(where, o.table+".account = "+q.arg(q.filter.Account))
	}
	if q.filter.Name != "" {
		where = append(where, "s.name = "+q.arg(q.filter.Name), "s.name <> ''")
	}
	if q.filter.Image != "" {
		where = append(where, "s.image = "+q.arg(q.filter.Image))
	}
	for _, l := range q.also {
		where = append(where, "EXISTS (SELECT 1 FROM sandbox_labels AS m WHERE m.account = s.account AND m.label = "+q.arg(l.key)+
			" AND m.value = "+q.arg(l.value)+" AND m.status = s.status AND m.created_at = s.created_at AND m.sandbox = s.id)")
	}
	if q.from != nil {
		where = append(where, fmt.Sprintf("(%s.created_at, %s) < (%s, %s)", o.table, o.id, q.arg(q.from.created), q.arg(q.from.id)))
	}
	return where
}
