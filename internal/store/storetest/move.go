package storetest

import (
	"fmt"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func moveCases() []Case {
	return []Case{
		{"what moves is stored, the rest is kept", moveFields},
		{"each pair of statuses as CanMove says", movePairs},
		{"a stale revision is refused", moveStale},
		{"one of many parallel moves wins", moveParallel},
		{"a missing or another account's sandbox is not found", moveMissing},
		{"an unknown status is refused", moveUnknown},
		{"a later created_at moves the record in the list", moveBirth},
	}
}

func moveFields(t *testing.T, s dayfly.Store) {
	sb := sandbox(mine, 0)
	sb.Name, sb.Labels, sb.EnvNames = "web", map[string]string{"a": "1", "b": "2"}, []string{"X"}
	was := create(t, s, sb)
	ask := was.Clone()
	ask.Wanted, ask.Status, ask.Driver, ask.Node, ask.End = dayfly.StatusDeleted, dayfly.StatusRunning, dayfly.IsolationLinux, "no2", dayfly.EndRequested
	ask.Lease = dayfly.Lease{BootID: "b2", Born: 1, Deadline: 2, Ceiling: 3}
	ask.Times.ReadyAt, ask.Times.EndedAt = epoch.Add(time.Second), epoch.Add(1234567*time.Nanosecond)
	ask.Times.ReadyBoot, ask.Times.EndedBoot = 3, 7
	want := ask.Clone()
	want.Rev, want.Times.EndedAt = 2, epoch.Add(1234*time.Microsecond)
	ask.Name, ask.Labels, ask.EnvNames, ask.Spec = "other", map[string]string{"c": "3"}, nil, dayfly.SandboxSpec{} // not what a move stores
	moved, err := s.MoveSandbox(t.Context(), ask)
	wantCode(t, err, "")
	wantEqual(t, "moved sandbox", moved, want)
	wantStored(t, s, want)
}

// path leads a new sandbox to a status.
var path = map[dayfly.Status][]dayfly.Status{
	dayfly.StatusRunning: {dayfly.StatusRunning}, dayfly.StatusPaused: {dayfly.StatusRunning, dayfly.StatusPaused},
	dayfly.StatusDeleting: {dayfly.StatusDeleting}, dayfly.StatusDeleted: {dayfly.StatusDeleted}, dayfly.StatusFailed: {dayfly.StatusFailed},
}

func movePairs(t *testing.T, s dayfly.Store) {
	all := []dayfly.Status{dayfly.StatusProvisioning, dayfly.StatusRunning, dayfly.StatusPaused, dayfly.StatusDeleting, dayfly.StatusDeleted, dayfly.StatusFailed}
	for _, from := range all {
		for _, to := range all {
			sb := sandbox(mine, 0)
			sb.Labels = map[string]string{"pair": fmt.Sprint(from, to)}
			sb = create(t, s, sb)
			for _, step := range path[from] {
				sb = move(t, s, sb, step, "")
			}
			want := sb.Clone()
			sb.Status = to
			moved, err := s.MoveSandbox(t.Context(), sb)
			if from == to || dayfly.CanMove(from, to) {
				want.Status, want.Rev = to, want.Rev+1
				if err != nil || moved.Rev != want.Rev {
					t.Errorf("%s → %s = rev %d, %v", from, to, moved.Rev, err)
				}
			} else if dayfly.ErrorCode(err) != dayfly.CodeConflict {
				t.Errorf("%s → %s = %v, want a conflict", from, to, err)
			}
			wantStored(t, s, want)
			found := pages(t, s, dayfly.SandboxFilter{Labels: sb.Labels, Statuses: []dayfly.Status{want.Status}}, nil)
			wantEqual(t, fmt.Sprintf("found by label after %s → %s", from, to), found, []string{sb.ID})
		}
	}
}

func moveStale(t *testing.T, s dayfly.Store) {
	old := create(t, s, sandbox(mine, 0))
	now := move(t, s, old, dayfly.StatusRunning, "")
	for _, rev := range []int64{old.Rev, now.Rev + 1, 0, -1} {
		stale := now.Clone()
		stale.Rev, stale.Status = rev, dayfly.StatusPaused
		_, err := s.MoveSandbox(t.Context(), stale)
		wantCode(t, err, dayfly.CodeConflict)
	}
	wantStored(t, s, now)
}

func moveParallel(t *testing.T, s dayfly.Store) {
	const moves = 20
	sb := create(t, s, sandbox(mine, 0))
	errs := parallel(moves, func(i int) error {
		mine := sb.Clone()
		mine.Status, mine.Node = dayfly.StatusRunning, fmt.Sprint("no", i)
		_, err := s.MoveSandbox(t.Context(), mine)
		return err
	})
	wantEqual(t, "successes", count(errs, ""), 1)
	wantEqual(t, "conflicts", count(errs, dayfly.CodeConflict), moves-1)
	got, err := s.Sandbox(t.Context(), mine, sb.ID)
	wantCode(t, err, "")
	wantEqual(t, "rev", got.Rev, sb.Rev+1)
}

func moveMissing(t *testing.T, s dayfly.Store) {
	sb := sandbox(mine, 0)
	sb.Rev = 1
	_, err := s.MoveSandbox(t.Context(), sb)
	wantCode(t, err, dayfly.CodeNotFound)
	sb = create(t, s, sb)
	other := sb.Clone()
	other.Account, other.Status = theirs, dayfly.StatusDeleted
	_, err = s.MoveSandbox(t.Context(), other)
	wantCode(t, err, dayfly.CodeNotFound)
	wantStored(t, s, sb)
}

func moveUnknown(t *testing.T, s dayfly.Store) {
	sb := create(t, s, sandbox(mine, 0))
	bad := sb.Clone()
	bad.Status = "lost"
	_, err := s.MoveSandbox(t.Context(), bad)
	wantCode(t, err, dayfly.CodeInvalid)
	wantStored(t, s, sb)
}

func moveBirth(t *testing.T, s dayfly.Store) {
	sb := sandbox(mine, 0)
	sb.Labels = map[string]string{"a": "1"}
	old, newer := create(t, s, sb), create(t, s, sandbox(mine, time.Second))
	old.Times.CreatedAt = epoch.Add(time.Hour)
	moved := move(t, s, old, dayfly.StatusRunning, "")
	wantEqual(t, "ids", pages(t, s, dayfly.SandboxFilter{Account: mine, Limit: 1}, nil), []string{old.ID, newer.ID})
	page, _, err := s.Sandboxes(t.Context(), dayfly.SandboxFilter{Labels: sb.Labels})
	wantCode(t, err, "")
	wantEqual(t, "by label", page, []dayfly.Sandbox{moved})
}
