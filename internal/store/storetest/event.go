package storetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func eventCases() []Case {
	return []Case{
		{"a sandbox's life is told in order", eventLife},
		{"who did it is told", eventActors},
		{"a change that fails leaves no event", eventFailed},
		{"filters by account, sandbox and cursor", eventFilters},
		{"waiting ends with the next event", eventAwait},
		{"old events are purged, numbers are never given twice", eventPurge},
		{"an event without time or type is refused", eventInvalid},
	}
}

func events(t *testing.T, s dayfly.Store, f dayfly.EventFilter) []dayfly.Event {
	t.Helper()
	found, err := s.Events(t.Context(), f)
	if err != nil {
		t.Fatalf("Events: %v", err)
	}
	return found
}

func types(found []dayfly.Event) []dayfly.EventType {
	var out []dayfly.EventType
	for _, e := range found {
		out = append(out, e.Type)
	}
	return out
}

func eventLife(t *testing.T, s dayfly.Store) {
	sb := create(t, s, sandbox(mine, 0))
	sb = move(t, s, sb, dayfly.StatusRunning, "")
	lease := sb.Lease
	lease.Deadline += time.Hour
	sb, err := s.RenewLease(t.Context(), sb.ID, sb.Rev, lease)
	wantCode(t, err, "")
	sb = move(t, s, sb, dayfly.StatusDeleting, dayfly.EndRequested)
	sb = move(t, s, sb, dayfly.StatusDeleted, dayfly.EndRequested)
	adopted, err := s.AdoptSandbox(t.Context(), sandbox(mine, time.Second))
	wantCode(t, err, "")
	found := events(t, s, dayfly.EventFilter{})
	wantEqual(t, "types", types(found), []dayfly.EventType{
		dayfly.EventAccepted, dayfly.EventRunning, dayfly.EventExtended, dayfly.EventDeleting, dayfly.EventEnded, dayfly.EventAdopted,
	})
	ended := found[4]
	wantEqual(t, "end", ended, dayfly.Event{
		Seq: ended.Seq, At: sb.Times.EndedAt, Account: mine, Sandbox: sb.ID, Type: dayfly.EventEnded,
		Actor: dayfly.ActorServer, Cause: string(dayfly.EndRequested),
	})
	wantEqual(t, "adopted", found[5].Sandbox, adopted.ID)
	if !slices.IsSortedFunc(found, func(a, b dayfly.Event) int { return int(a.Seq - b.Seq) }) {
		t.Errorf("not in order of seq: %+v", found)
	}
}

func eventActors(t *testing.T, s dayfly.Store) {
	ctx := dayfly.WithActor(t.Context(), "ke1")
	sb, _, err := s.CreateSandbox(ctx, sandbox(mine, 0), nil /* no key */, 0)
	wantCode(t, err, "")
	sb.Status = dayfly.StatusRunning
	_, err = s.MoveSandbox(dayfly.WithActor(t.Context(), dayfly.ActorReaper), sb)
	wantCode(t, err, "")
	found := events(t, s, dayfly.EventFilter{})
	wantEqual(t, "actors", []dayfly.Actor{found[0].Actor, found[1].Actor}, []dayfly.Actor{"ke1", dayfly.ActorReaper})
}

func eventFailed(t *testing.T, s dayfly.Store) {
	sb := create(t, s, sandbox(mine, 0))
	move(t, s, sb, dayfly.StatusRunning, "")
	before := len(events(t, s, dayfly.EventFilter{}))
	sb.Status = dayfly.StatusDeleting // with a stale revision
	_, err := s.MoveSandbox(t.Context(), sb)
	wantCode(t, err, dayfly.CodeConflict)
	wantEqual(t, "events", len(events(t, s, dayfly.EventFilter{})), before)
}

func eventFilters(t *testing.T, s dayfly.Store) {
	a := create(t, s, sandbox(mine, 0))
	b := create(t, s, sandbox(theirs, 0))
	_, err := s.AddEvent(t.Context(), dayfly.Event{At: epoch, Type: dayfly.EventStarted, Message: "hello"})
	wantCode(t, err, "")
	all := events(t, s, dayfly.EventFilter{})
	for _, tt := range []struct {
		name string
		f    dayfly.EventFilter
		want []dayfly.Event
	}{
		{"account", dayfly.EventFilter{Account: mine}, all[:1]},
		{"sandbox", dayfly.EventFilter{Sandbox: b.ID}, all[1:2]},
		{"own sandbox", dayfly.EventFilter{Account: mine, Sandbox: a.ID}, all[:1]},
		{"another's sandbox", dayfly.EventFilter{Account: mine, Sandbox: b.ID}, nil},
		{"after", dayfly.EventFilter{After: all[0].Seq}, all[1:]},
		{"limit", dayfly.EventFilter{Limit: 2}, all[:2]},
	} {
		wantEqual(t, tt.name, events(t, s, tt.f), tt.want)
	}
}

func eventAwait(t *testing.T, s dayfly.Store) {
	create(t, s, sandbox(mine, 0))
	last := events(t, s, dayfly.EventFilter{})[0].Seq
	newest, err := s.AwaitEvents(t.Context(), last-1) // there is one already
	wantCode(t, err, "")
	wantEqual(t, "newest", newest, last)
	type heard struct {
		last int64
		err  error
	}
	done := make(chan heard, 1)
	go func() {
		last, err := s.AwaitEvents(t.Context(), last)
		done <- heard{last, err}
	}()
	create(t, s, sandbox(mine, time.Second))
	woken := <-done
	wantCode(t, woken.err, "")
	wantEqual(t, "events after the newest known", len(events(t, s, dayfly.EventFilter{After: woken.last})), 0)
	wantEqual(t, "the newest is later", woken.last > last, true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.AwaitEvents(ctx, 1<<40); err == nil {
		t.Error("AwaitEvents returned no error after its context ended")
	}
}

func eventPurge(t *testing.T, s dayfly.Store) {
	for i := range 3 {
		_, err := s.AddEvent(t.Context(), dayfly.Event{At: epoch.Add(time.Duration(i) * time.Hour), Type: dayfly.EventStarted})
		wantCode(t, err, "")
	}
	last := events(t, s, dayfly.EventFilter{})[2].Seq
	n, err := s.PurgeEvents(t.Context(), epoch.Add(90*time.Minute), 1)
	wantCode(t, err, "")
	wantEqual(t, "removed by a bounded pass", n, 1)
	n, err = s.PurgeEvents(t.Context(), epoch.Add(24*time.Hour), 100)
	wantCode(t, err, "")
	wantEqual(t, "removed by the rest", n, 2)
	next, err := s.AddEvent(t.Context(), dayfly.Event{At: epoch, Type: dayfly.EventStarted})
	wantCode(t, err, "")
	if next.Seq <= last {
		t.Errorf("seq %d was given again after %d was purged", next.Seq, last)
	}
}

func eventInvalid(t *testing.T, s dayfly.Store) {
	for _, e := range []dayfly.Event{{Type: dayfly.EventStarted}, {At: epoch}} {
		_, err := s.AddEvent(t.Context(), e)
		wantCode(t, err, dayfly.CodeInvalid)
	}
}
