package storetest

import (
	"fmt"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func changeCases() []Case {
	return []Case{
		{"a later deadline is stored", renewLater},
		{"a lease is never shortened, moved past its ceiling or to another boot", renewWrong},
		{"an ended sandbox is not renewed", renewEnded},
		{"one of many parallel renewals wins", renewParallel},
		{"labels are replaced, nil keeps them", labelReplace},
		{"a name is replaced, nil keeps it", labelName},
		{"labels compare the revision", labelStale},
		{"an adopted record is stored", adoptNew},
		{"a record that exists wins over an adopted one", adoptExisting},
		{"an adopted record yields a name that is taken", adoptName},
		{"parallel adoptions make one record", adoptParallel},
		{"a purge removes what ended before, no more than the limit", purgeBounded},
		{"a purge leaves live and younger records", purgeLeaves},
		{"a purged record is gone from every list", purgeGone},
	}
}

func later(l dayfly.Lease, d time.Duration) dayfly.Lease {
	l.Deadline += d
	return l
}

func renewLater(t *testing.T, s dayfly.Store) {
	for _, status := range []dayfly.Status{dayfly.StatusProvisioning, dayfly.StatusRunning, dayfly.StatusDeleting} {
		sb := create(t, s, sandbox(mine, 0))
		if status != sb.Status {
			sb = move(t, s, sb, status, "")
		}
		want := sb.Clone()
		want.Rev, want.Lease = sb.Rev+1, later(sb.Lease, time.Minute)
		got, err := s.RenewLease(t.Context(), sb.ID, sb.Rev, want.Lease)
		wantCode(t, err, "")
		wantEqual(t, "renewed", got, want)
		wantStored(t, s, want)
	}
}

func renewWrong(t *testing.T, s dayfly.Store) {
	sb := create(t, s, sandbox(mine, 0))
	boot := later(sb.Lease, time.Minute)
	boot.BootID = "b2"
	for _, tt := range []struct {
		name  string
		id    string
		rev   int64
		lease dayfly.Lease
		want  dayfly.Code
	}{
		{"earlier", sb.ID, sb.Rev, later(sb.Lease, -1), dayfly.CodeConflict},
		{"the same", sb.ID, sb.Rev, sb.Lease, dayfly.CodeConflict},
		{"past the ceiling", sb.ID, sb.Rev, later(sb.Lease, sb.Lease.Ceiling), dayfly.CodeLeaseCeiling},
		{"another boot", sb.ID, sb.Rev, boot, dayfly.CodeConflict},
		{"another revision", sb.ID, sb.Rev + 1, later(sb.Lease, 1), dayfly.CodeConflict},
		{"missing", "sbnothere", sb.Rev, later(sb.Lease, 1), dayfly.CodeNotFound},
	} {
		if _, err := s.RenewLease(t.Context(), tt.id, tt.rev, tt.lease); dayfly.ErrorCode(err) != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
	wantStored(t, s, sb)
}

func renewEnded(t *testing.T, s dayfly.Store) {
	sb := create(t, s, sandbox(mine, 0))
	ended := move(t, s, sb, dayfly.StatusDeleted, dayfly.EndLeaseExpired)
	for _, rev := range []int64{sb.Rev, ended.Rev} { // a race that the end has won is told as such
		_, err := s.RenewLease(t.Context(), sb.ID, rev, later(sb.Lease, time.Minute))
		wantCode(t, err, dayfly.CodeGone)
		wantDetail(t, err, "end_reason", dayfly.EndLeaseExpired)
	}
	wantStored(t, s, ended)
}

func renewParallel(t *testing.T, s dayfly.Store) {
	const renewals = 20
	sb := create(t, s, sandbox(mine, 0))
	errs := parallel(renewals, func(i int) error {
		_, err := s.RenewLease(t.Context(), sb.ID, sb.Rev, later(sb.Lease, time.Duration(i+1)))
		return err
	})
	wantEqual(t, "successes", count(errs, ""), 1)
	wantEqual(t, "conflicts", count(errs, dayfly.CodeConflict), renewals-1)
}

func labelReplace(t *testing.T, s dayfly.Store) {
	sb := sandbox(mine, 0)
	sb.Labels = map[string]string{"a": "1", "b": "2"}
	sb = create(t, s, sb)
	for _, tt := range []struct{ labels, want map[string]string }{
		{map[string]string{"a": "3", "c": "4"}, map[string]string{"a": "3", "c": "4"}},
		{nil, map[string]string{"a": "3", "c": "4"}},
		{map[string]string{}, map[string]string{}},
		{map[string]string{"a": "1"}, map[string]string{"a": "1"}},
	} {
		want := sb.Clone()
		want.Rev, want.Labels = sb.Rev+1, tt.want
		got, err := s.LabelSandbox(t.Context(), sb.ID, sb.Rev, tt.labels, nil)
		wantCode(t, err, "")
		wantEqual(t, "labelled", got, want)
		wantStored(t, s, want)
		sb = got
	}
	for value, found := range map[string]int{"1": 1, "3": 0} {
		f := dayfly.SandboxFilter{Account: mine, Labels: map[string]string{"a": value}}
		wantEqual(t, "found by a:"+value, len(pages(t, s, f, nil)), found)
	}
	_, err := s.LabelSandbox(t.Context(), sb.ID, sb.Rev, map[string]string{"k": "\xff"}, nil)
	wantCode(t, err, dayfly.CodeInvalid)
}

func labelName(t *testing.T, s dayfly.Store) {
	holder := create(t, s, named(mine, "web"))
	create(t, s, named(theirs, "db"))
	sb := create(t, s, named(mine, "old"))
	rename := func(name string) (err error) {
		got, err := s.LabelSandbox(t.Context(), sb.ID, sb.Rev, nil, &name)
		if err == nil {
			wantEqual(t, "name", got.Name, name)
			sb = got
			wantStored(t, s, sb)
		}
		return err
	}
	err := rename("web")
	wantCode(t, err, dayfly.CodeConflict)
	wantDetail(t, err, "sandbox", holder.ID)
	wantStored(t, s, sb)
	for _, name := range []string{"db", "db", "", "new"} {
		wantCode(t, rename(name), "")
	}
	create(t, s, named(mine, "old")) // was given up
	sb = end(t, s, sb)
	wantCode(t, rename("web"), "") // an ended one holds no name
}

func labelStale(t *testing.T, s dayfly.Store) {
	sb := create(t, s, sandbox(mine, 0))
	_, err := s.LabelSandbox(t.Context(), sb.ID, sb.Rev+1, map[string]string{"a": "1"}, nil)
	wantCode(t, err, dayfly.CodeConflict)
	_, err = s.LabelSandbox(t.Context(), "sbnothere", 1, nil, nil)
	wantCode(t, err, dayfly.CodeNotFound)
	wantStored(t, s, sb)
}

func adoptNew(t *testing.T, s dayfly.Store) {
	sb := sandbox("acunknown", 0)
	sb.Status, sb.Name, sb.Labels, sb.EnvNames = dayfly.StatusRunning, "web", map[string]string{"a": "1"}, []string{"X"}
	sb.Spec.Env, sb.Rev = map[string]string{"X": "canary"}, 5
	got, err := s.AdoptSandbox(t.Context(), sb)
	wantCode(t, err, "")
	want := sb.Clone()
	want.Spec.Env = nil
	wantEqual(t, "adopted", got, want)
	wantStored(t, s, want)
	wantEqual(t, "found by label", len(pages(t, s, dayfly.SandboxFilter{Labels: sb.Labels}, nil)), 1)
	_, _, err = s.CreateSandbox(t.Context(), sandbox("acunknown", 0), nil, 1)
	wantCode(t, err, dayfly.CodeQuotaExceeded) // it counts
	bare := sandbox(mine, 0)
	got, err = s.AdoptSandbox(t.Context(), bare)
	wantCode(t, err, "")
	wantEqual(t, "rev of a first record", got.Rev, 1)
	bad := sandbox("", 0)
	_, err = s.AdoptSandbox(t.Context(), bad)
	wantCode(t, err, dayfly.CodeInvalid)
}

func adoptExisting(t *testing.T, s dayfly.Store) {
	for _, sb := range []dayfly.Sandbox{create(t, s, sandbox(mine, 0)), end(t, s, create(t, s, sandbox(mine, 0)))} {
		rebuilt := sandbox(mine, time.Hour)
		rebuilt.ID, rebuilt.Status, rebuilt.Rev = sb.ID, dayfly.StatusRunning, 99
		got, err := s.AdoptSandbox(t.Context(), rebuilt)
		wantCode(t, err, "")
		wantEqual(t, "record", got, sb)
		wantStored(t, s, sb)
	}
}

func adoptName(t *testing.T, s dayfly.Store) {
	create(t, s, named(mine, "web"))
	got, err := s.AdoptSandbox(t.Context(), named(mine, "web"))
	wantCode(t, err, "")
	wantEqual(t, "name", got.Name, "")
	ended := named(mine, "web")
	ended.Status = dayfly.StatusDeleted
	got, err = s.AdoptSandbox(t.Context(), ended)
	wantCode(t, err, "")
	wantEqual(t, "name of an ended one", got.Name, "web")
}

func adoptParallel(t *testing.T, s dayfly.Store) {
	sb := sandbox(mine, 0)
	errs := parallel(20, func(i int) error {
		mine := sb.Clone()
		mine.Node = fmt.Sprint("no", i)
		_, err := s.AdoptSandbox(t.Context(), mine)
		return err
	})
	wantEqual(t, "successes", count(errs, ""), 20)
	wantEqual(t, "live sandboxes", live(t, s), 1)
}

func purgeBounded(t *testing.T, s dayfly.Store) {
	const records = 7
	for i := range records {
		end(t, s, create(t, s, sandbox(mine, time.Duration(i)*time.Hour)))
	}
	for _, tt := range []struct {
		before      time.Time
		limit, want int
	}{
		{epoch, 10, 0},
		{epoch.Add(24 * time.Hour), 0, 0},
		{epoch.Add(24 * time.Hour), -1, 0},
		{epoch.Add(90 * time.Minute), 10, 2},
		{epoch.Add(24 * time.Hour), 3, 3},
		{epoch.Add(24 * time.Hour), 3, 2},
		{epoch.Add(24 * time.Hour), 3, 0},
	} {
		n, err := s.PurgeSandboxes(t.Context(), tt.before, tt.limit)
		wantCode(t, err, "")
		wantEqual(t, fmt.Sprintf("purged before %s by %d", tt.before, tt.limit), n, tt.want)
	}
}

func purgeLeaves(t *testing.T, s dayfly.Store) {
	alive := create(t, s, sandbox(mine, 0))
	deleting := move(t, s, create(t, s, sandbox(mine, 0)), dayfly.StatusDeleting, dayfly.EndRequested)
	old, young := create(t, s, sandbox(mine, 0)), create(t, s, sandbox(mine, 0))
	old.Status, old.Times.EndedAt = dayfly.StatusDeleted, epoch.Add(time.Hour-time.Microsecond)
	young.Status, young.Times.EndedAt = dayfly.StatusFailed, epoch.Add(time.Hour)
	if _, err := s.MoveSandbox(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	young, err := s.MoveSandbox(t.Context(), young)
	wantCode(t, err, "")
	n, err := s.PurgeSandboxes(t.Context(), epoch.Add(time.Hour), 10)
	wantCode(t, err, "")
	wantEqual(t, "purged", n, 1)
	_, err = s.Sandbox(t.Context(), mine, old.ID)
	wantCode(t, err, dayfly.CodeNotFound)
	for _, sb := range []dayfly.Sandbox{alive, deleting, young} {
		wantStored(t, s, sb)
	}
}

func purgeGone(t *testing.T, s dayfly.Store) {
	sb := sandbox(mine, 0)
	sb.Labels = map[string]string{"a": "1", "b": "2"}
	sb = end(t, s, create(t, s, sb))
	if n, err := s.PurgeSandboxes(t.Context(), epoch.Add(time.Hour), 1); n != 1 || err != nil {
		t.Fatalf("PurgeSandboxes = %d, %v", n, err)
	}
	for _, f := range []dayfly.SandboxFilter{{}, {Account: mine}, {Labels: map[string]string{"a": "1"}}, {Labels: sb.Labels}} {
		f.IncludeEnded = true
		wantEqual(t, fmt.Sprintf("found by %+v", f), len(pages(t, s, f, nil)), 0)
	}
	again, err := s.AdoptSandbox(t.Context(), sb) // nothing of it is in the way
	wantCode(t, err, "")
	wantEqual(t, "stored again", again, sb)
}
