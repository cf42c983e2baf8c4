package storetest

import (
	"fmt"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func listCases() []Case {
	return []Case{
		{"newest first, whole pages, then the end", listPages},
		{"equal times are ordered too", listTies},
		{"ending and purging while iterating visits everything once", listDeleting},
		{"creating while iterating repeats nothing", listCreating},
		{"each filter selects exactly", listFilters},
		{"limits are 1 to 100", listLimits},
		{"a cursor of no page is refused", listCursor},
		{"an unknown status is refused", listStatus},
		{"nothing gives an empty page", listEmpty},
	}
}

// pages reads all pages of a filter and gives the ids in order.
func pages(t *testing.T, s dayfly.Store, f dayfly.SandboxFilter, between func(page []dayfly.Sandbox)) []string {
	t.Helper()
	const pagesMax = 1000
	var ids []string
	for range pagesMax {
		page, next, err := s.Sandboxes(t.Context(), f)
		if err != nil {
			t.Fatalf("Sandboxes: %v", err)
		}
		if f.Limit > 0 && len(page) > f.Limit {
			t.Fatalf("a page of %d, limit %d", len(page), f.Limit)
		}
		for _, sb := range page {
			ids = append(ids, sb.ID)
		}
		if between != nil {
			between(page)
		}
		if next == "" {
			return ids
		}
		if len(page) == 0 {
			t.Fatal("an empty page has a next one")
		}
		f.Cursor = next
	}
	t.Fatal("the list does not end")
	return nil
}

func listPages(t *testing.T, s dayfly.Store) {
	const records = 61
	want := make([]string, records)
	for i := range records {
		want[records-1-i] = create(t, s, sandbox(mine, time.Duration(i)*time.Millisecond)).ID
	}
	create(t, s, sandbox(theirs, 0))
	for _, limit := range []int{1, 2, 60, 61, 62, 100, 0} {
		wantEqual(t, fmt.Sprintf("ids by %d", limit), pages(t, s, dayfly.SandboxFilter{Account: mine, Limit: limit}, nil), want)
	}
	page, next, err := s.Sandboxes(t.Context(), dayfly.SandboxFilter{Account: mine})
	if err != nil || len(page) != 50 || next == "" {
		t.Errorf("default page = %d records, next %q, %v", len(page), next, err)
	}
	got, err := s.Sandbox(t.Context(), mine, page[0].ID)
	wantCode(t, err, "")
	wantEqual(t, "listed sandbox", page[0], got)
}

func listTies(t *testing.T, s dayfly.Store) {
	const records = 20
	made := make(map[string]bool)
	for i := range records {
		sb := create(t, s, sandbox(mine, 0))
		if i%2 == 0 {
			move(t, s, sb, dayfly.StatusRunning, "")
		}
		made[sb.ID] = true
	}
	one := pages(t, s, dayfly.SandboxFilter{Account: mine, Limit: 1}, nil)
	wantEqual(t, "records", len(one), records)
	for _, id := range one {
		delete(made, id)
	}
	wantEqual(t, "not visited", len(made), 0)
	wantEqual(t, "ids by 7", pages(t, s, dayfly.SandboxFilter{Account: mine, Limit: 7}, nil), one)
}

func listDeleting(t *testing.T, s dayfly.Store) {
	const records = 30
	for i := range records {
		create(t, s, sandbox(mine, time.Duration(i)*time.Second))
	}
	visited := make(map[string]int)
	for _, id := range pages(t, s, dayfly.SandboxFilter{Account: mine, Limit: 4}, func(page []dayfly.Sandbox) {
		for _, sb := range page {
			end(t, s, sb)
		}
		if _, err := s.PurgeSandboxes(t.Context(), epoch.Add(time.Hour), 100); err != nil {
			t.Fatalf("PurgeSandboxes: %v", err)
		}
	}) {
		visited[id]++
	}
	wantEqual(t, "visited", len(visited), records)
	for id, n := range visited {
		if n != 1 {
			t.Errorf("%s was visited %d times", id, n)
		}
	}
}

func listCreating(t *testing.T, s dayfly.Store) {
	const records = 10
	for i := range records {
		create(t, s, sandbox(mine, time.Duration(i)*time.Second))
	}
	got := pages(t, s, dayfly.SandboxFilter{Account: mine, Limit: 3}, func([]dayfly.Sandbox) {
		create(t, s, sandbox(mine, time.Hour))
	})
	wantEqual(t, "visited", len(got), records)
}

// zoo makes one sandbox of each kind and gives their ids by a nickname.
func zoo(t *testing.T, s dayfly.Store) map[string]string {
	t.Helper()
	ids := make(map[string]string)
	add := func(nick, account string, labels map[string]string, path ...dayfly.Status) {
		sb := sandbox(account, time.Duration(len(ids))*time.Second)
		sb.Labels = labels
		if nick == "named" || nick == "named ended" || nick == "theirs" {
			sb.Name = "web"
		}
		if nick == "imaged" {
			sb.Spec.Image = "other"
		}
		sb = create(t, s, sb)
		for _, to := range path {
			sb = move(t, s, sb, to, "")
		}
		ids[nick] = sb.ID
	}
	blue, both := map[string]string{"team": "blue"}, map[string]string{"team": "blue", "task": "1:2"}
	add("new", mine, nil)
	add("running", mine, blue, dayfly.StatusRunning)
	add("paused", mine, both, dayfly.StatusRunning, dayfly.StatusPaused)
	add("deleting", mine, map[string]string{"team": "red", "task": "1:2"}, dayfly.StatusDeleting)
	add("deleted", mine, both, dayfly.StatusDeleted)
	add("failed", mine, map[string]string{"Team": "blue", "team": "Blue"}, dayfly.StatusFailed)
	add("named ended", mine, nil, dayfly.StatusDeleted)
	add("named", mine, nil)
	add("imaged", mine, map[string]string{"team": ""})
	add("theirs", theirs, both, dayfly.StatusRunning)
	return ids
}

func listFilters(t *testing.T, s dayfly.Store) {
	ids := zoo(t, s)
	nick := make(map[string]string)
	for n, id := range ids {
		nick[id] = n
	}
	const st = dayfly.StatusDeleted
	for _, tt := range []struct {
		name string
		f    dayfly.SandboxFilter
		want []string // newest first
	}{
		{"everything live", dayfly.SandboxFilter{}, []string{"theirs", "imaged", "named", "deleting", "paused", "running", "new"}},
		{"account", dayfly.SandboxFilter{Account: theirs}, []string{"theirs"}},
		{"no such account", dayfly.SandboxFilter{Account: "acnone", IncludeEnded: true}, nil},
		{"with ended", dayfly.SandboxFilter{Account: mine, IncludeEnded: true},
			[]string{"imaged", "named", "named ended", "failed", "deleted", "deleting", "paused", "running", "new"}},
		{"a status", dayfly.SandboxFilter{Account: mine, Statuses: []dayfly.Status{dayfly.StatusPaused}}, []string{"paused"}},
		{"an ended status", dayfly.SandboxFilter{Account: mine, Statuses: []dayfly.Status{st}}, []string{"named ended", "deleted"}},
		{"a status twice", dayfly.SandboxFilter{Account: mine, Statuses: []dayfly.Status{st, st}}, []string{"named ended", "deleted"}},
		{"statuses", dayfly.SandboxFilter{Account: mine, Statuses: []dayfly.Status{dayfly.StatusFailed, dayfly.StatusRunning}},
			[]string{"failed", "running"}},
		{"a live status and ended", dayfly.SandboxFilter{Account: mine, IncludeEnded: true, Statuses: []dayfly.Status{dayfly.StatusPaused}},
			[]string{"paused"}},
		{"a label", dayfly.SandboxFilter{Account: mine, Labels: map[string]string{"team": "blue"}}, []string{"paused", "running"}},
		{"a label of all accounts", dayfly.SandboxFilter{Labels: map[string]string{"team": "blue"}, IncludeEnded: true},
			[]string{"theirs", "deleted", "paused", "running"}},
		{"labels", dayfly.SandboxFilter{Account: mine, Labels: map[string]string{"team": "blue", "task": "1:2"}}, []string{"paused"}},
		{"labels of all accounts", dayfly.SandboxFilter{Labels: map[string]string{"team": "blue", "task": "1:2"}}, []string{"theirs", "paused"}},
		{"an empty value", dayfly.SandboxFilter{Labels: map[string]string{"team": ""}}, []string{"imaged"}},
		{"no such label", dayfly.SandboxFilter{Labels: map[string]string{"none": ""}, IncludeEnded: true}, nil},
		{"no such value", dayfly.SandboxFilter{Labels: map[string]string{"team": "%"}, IncludeEnded: true}, nil},
		{"a label and a status", dayfly.SandboxFilter{Labels: map[string]string{"task": "1:2"}, Statuses: []dayfly.Status{st}}, []string{"deleted"}},
		{"a name", dayfly.SandboxFilter{Account: mine, Name: "web"}, []string{"named"}},
		{"a name of all accounts", dayfly.SandboxFilter{Name: "web"}, []string{"theirs", "named"}},
		{"a name with ended", dayfly.SandboxFilter{Account: mine, Name: "web", IncludeEnded: true}, []string{"named", "named ended"}},
		{"a name and a label", dayfly.SandboxFilter{Name: "web", Labels: map[string]string{"team": "blue"}}, []string{"theirs"}},
		{"no such name", dayfly.SandboxFilter{Name: "we", IncludeEnded: true}, nil},
		{"an image", dayfly.SandboxFilter{Account: mine, Image: "other"}, []string{"imaged"}},
		{"an image and a label", dayfly.SandboxFilter{Image: dayfly.ImageBase, Labels: map[string]string{"team": "red"}}, []string{"deleting"}},
	} {
		for _, tt.f.Limit = range []int{1, 100} {
			var got []string
			for _, id := range pages(t, s, tt.f, nil) {
				got = append(got, nick[id])
			}
			wantEqual(t, fmt.Sprintf("%s by %d", tt.name, tt.f.Limit), got, tt.want)
		}
	}
}

func listLimits(t *testing.T, s dayfly.Store) {
	for _, limit := range []int{-1, 101, 1 << 40} {
		_, _, err := s.Sandboxes(t.Context(), dayfly.SandboxFilter{Limit: limit})
		wantCode(t, err, dayfly.CodeInvalid)
	}
}

func listCursor(t *testing.T, s dayfly.Store) {
	for _, cursor := range []string{"x", "AAAA", "\x00", "' OR 1=1 --"} {
		_, _, err := s.Sandboxes(t.Context(), dayfly.SandboxFilter{Cursor: cursor})
		wantCode(t, err, dayfly.CodeInvalid)
	}
}

func listStatus(t *testing.T, s dayfly.Store) {
	_, _, err := s.Sandboxes(t.Context(), dayfly.SandboxFilter{Statuses: []dayfly.Status{dayfly.StatusRunning, "lost"}})
	wantCode(t, err, dayfly.CodeInvalid)
}

func listEmpty(t *testing.T, s dayfly.Store) {
	page, next, err := s.Sandboxes(t.Context(), dayfly.SandboxFilter{IncludeEnded: true})
	if err != nil || len(page) != 0 || next != "" {
		t.Errorf("Sandboxes = %v, %q, %v", page, next, err)
	}
}
