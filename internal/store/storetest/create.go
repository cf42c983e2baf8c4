package storetest

import (
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func createCases() []Case {
	return []Case{
		{"every field is read as it was stored", everyField},
		{"values of env come back nowhere", noEnvValues},
		{"values that come back belong to the caller", ownValues},
		{"wrong records are refused", wrongRecords},
		{"an id is used once", idOnce},
		{"the quota is exact in parallel", quotaParallel},
		{"the quota error names limit and use", quotaDetails},
		{"a quota of zero is no limit", quotaNone},
		{"the quota is the account's own", quotaOwn},
		{"deleting still counts, the end frees the quota", quotaFreed},
		{"a live name is taken", nameTaken},
		{"a name is the account's own", nameOwn},
		{"the end frees the name", nameFreed},
		{"one of many parallel creates gets the name", nameParallel},
		{"another account's sandbox is not found", notYours},
		{"a missing sandbox is not found", notThere},
		{"live sandboxes are all that have not ended", liveAll},
	}
}

func everyField(t *testing.T, s dayfly.Store) {
	sb := sandbox(mine, 1234567*time.Microsecond)
	sb.Rev = 77 // ignored
	sb.Name, sb.Labels, sb.EnvNames = "näme", map[string]string{"k": "v:w", "<é>": "", "日本": "\"'\\%_"}, []string{"B", "A"}
	sb.Driver, sb.Times.ReadyAt = dayfly.IsolationLinux, epoch.In(time.FixedZone("x", 3600))
	sb.Times.ReadyBoot, sb.Times.EndedBoot = 1<<40, 1<<41+1
	stored := create(t, s, sb)
	want := sb.Clone()
	want.Rev, want.EnvNames, want.Times.ReadyAt = 1, []string{"A", "B"}, epoch
	wantEqual(t, "created sandbox", stored, want)
	wantStored(t, s, want)
}

func noEnvValues(t *testing.T, s dayfly.Store) {
	sb := sandbox(mine, 0)
	sb.Spec.Env, sb.EnvNames = map[string]string{"TOKEN": "canary"}, []string{"TOKEN"}
	stored := create(t, s, sb)
	if stored.Spec.Env != nil || len(stored.EnvNames) != 1 {
		t.Errorf("created: Env = %v, EnvNames = %v", stored.Spec.Env, stored.EnvNames)
	}
	wantStored(t, s, stored)
}

func ownValues(t *testing.T, s dayfly.Store) {
	sb := sandbox(mine, 0)
	sb.Labels, sb.EnvNames = map[string]string{"a": "1"}, []string{"X"}
	stored := create(t, s, sb)
	want := stored.Clone()
	stored.Labels["a"], stored.EnvNames[0], sb.Labels["a"], sb.EnvNames[0] = "2", "Y", "3", "Z"
	wantStored(t, s, want)
	bare := create(t, s, sandbox(mine, 0))
	bare.Labels["may"] = "write" // never nil
}

func wrongRecords(t *testing.T, s dayfly.Store) {
	for name, change := range map[string]func(*dayfly.Sandbox){
		"no id":              func(sb *dayfly.Sandbox) { sb.ID = "" },
		"no account":         func(sb *dayfly.Sandbox) { sb.Account = "" },
		"no status":          func(sb *dayfly.Sandbox) { sb.Status = "" },
		"unknown status":     func(sb *dayfly.Sandbox) { sb.Status = "gone" },
		"ended at birth":     func(sb *dayfly.Sandbox) { sb.Status = dayfly.StatusDeleted },
		"name with NUL":      func(sb *dayfly.Sandbox) { sb.Name = "a\x00b" },
		"label is no UTF-8":  func(sb *dayfly.Sandbox) { sb.Labels = map[string]string{"k": "\xff"} },
		"label key with NUL": func(sb *dayfly.Sandbox) { sb.Labels = map[string]string{"\x00": "v"} },
	} {
		sb := sandbox(mine, 0)
		change(&sb)
		if _, _, err := s.CreateSandbox(t.Context(), sb, nil, 0); dayfly.ErrorCode(err) != dayfly.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := claim("k", "h")
	other.Account = theirs
	_, _, err := s.CreateSandbox(t.Context(), sandbox(mine, 0), other, 0)
	wantCode(t, err, dayfly.CodeInvalid)
	wantEqual(t, "live sandboxes", live(t, s), 0)
}

func idOnce(t *testing.T, s dayfly.Store) {
	sb := create(t, s, sandbox(mine, 0))
	again := sandbox(theirs, 0)
	again.ID = sb.ID
	_, _, err := s.CreateSandbox(t.Context(), again, nil, 0)
	wantCode(t, err, dayfly.CodeConflict)
	wantStored(t, s, sb)
}

func quotaParallel(t *testing.T, s dayfly.Store) {
	const creates, limit = 50, 10
	errs := parallel(creates, func(i int) error {
		_, _, err := s.CreateSandbox(t.Context(), sandbox(mine, time.Duration(i)), nil, limit)
		return err
	})
	wantEqual(t, "successes", count(errs, ""), limit)
	wantEqual(t, "refusals", count(errs, dayfly.CodeQuotaExceeded), creates-limit)
	wantEqual(t, "live sandboxes", live(t, s), limit)
}

func quotaDetails(t *testing.T, s dayfly.Store) {
	create(t, s, sandbox(mine, 0))
	create(t, s, sandbox(mine, 0))
	_, _, err := s.CreateSandbox(t.Context(), sandbox(mine, 0), nil, 1) // lowered below the use
	wantCode(t, err, dayfly.CodeQuotaExceeded)
	wantDetail(t, err, "limit", 1)
	wantDetail(t, err, "use", 2)
}

func quotaNone(t *testing.T, s dayfly.Store) {
	for range 3 {
		create(t, s, sandbox(mine, 0))
	}
	wantEqual(t, "live sandboxes", live(t, s), 3)
}

func quotaOwn(t *testing.T, s dayfly.Store) {
	create(t, s, sandbox(theirs, 0))
	_, _, err := s.CreateSandbox(t.Context(), sandbox(mine, 0), nil, 1)
	wantCode(t, err, "")
}

func quotaFreed(t *testing.T, s dayfly.Store) {
	for _, last := range []dayfly.Status{dayfly.StatusDeleted, dayfly.StatusFailed} {
		sb, _, err := s.CreateSandbox(t.Context(), sandbox(mine, 0), nil, 1)
		wantCode(t, err, "")
		sb = move(t, s, sb, dayfly.StatusDeleting, dayfly.EndRequested)
		_, _, err = s.CreateSandbox(t.Context(), sandbox(mine, 0), nil, 1)
		wantCode(t, err, dayfly.CodeQuotaExceeded)
		move(t, s, sb, last, dayfly.EndRequested)
	}
	_, _, err := s.CreateSandbox(t.Context(), sandbox(mine, 0), nil, 1)
	wantCode(t, err, "")
}

func named(account, name string) dayfly.Sandbox {
	sb := sandbox(account, 0)
	sb.Name = name
	return sb
}

func nameTaken(t *testing.T, s dayfly.Store) {
	first := create(t, s, named(mine, "web"))
	_, _, err := s.CreateSandbox(t.Context(), named(mine, "web"), nil, 0)
	wantCode(t, err, dayfly.CodeConflict)
	wantDetail(t, err, "sandbox", first.ID)
	create(t, s, named(mine, "WEB"))
	create(t, s, named(mine, "")) // no name is never taken
	create(t, s, named(mine, ""))
}

func nameOwn(t *testing.T, s dayfly.Store) {
	create(t, s, named(theirs, "web"))
	create(t, s, named(mine, "web"))
}

func nameFreed(t *testing.T, s dayfly.Store) {
	sb := create(t, s, named(mine, "web"))
	sb = move(t, s, sb, dayfly.StatusDeleting, dayfly.EndRequested)
	_, _, err := s.CreateSandbox(t.Context(), named(mine, "web"), nil, 0)
	wantCode(t, err, dayfly.CodeConflict)
	ended := move(t, s, sb, dayfly.StatusDeleted, dayfly.EndRequested)
	end(t, s, create(t, s, named(mine, "web")))
	create(t, s, named(mine, "web"))
	wantStored(t, s, ended)
}

func nameParallel(t *testing.T, s dayfly.Store) {
	const creates = 20
	errs := parallel(creates, func(int) error {
		_, _, err := s.CreateSandbox(t.Context(), named(mine, "web"), nil, 0)
		return err
	})
	wantEqual(t, "successes", count(errs, ""), 1)
	wantEqual(t, "conflicts", count(errs, dayfly.CodeConflict), creates-1)
}

func notYours(t *testing.T, s dayfly.Store) {
	sb := create(t, s, sandbox(mine, 0))
	_, err := s.Sandbox(t.Context(), theirs, sb.ID)
	wantCode(t, err, dayfly.CodeNotFound)
	got, err := s.Sandbox(t.Context(), "" /* any account */, sb.ID)
	wantCode(t, err, "")
	wantEqual(t, "sandbox", got, sb)
}

func notThere(t *testing.T, s dayfly.Store) {
	for _, id := range []string{"", "sbnothere", "' OR 1=1 --", "\x00"} {
		_, err := s.Sandbox(t.Context(), "", id)
		wantCode(t, err, dayfly.CodeNotFound)
	}
}

func liveAll(t *testing.T, s dayfly.Store) {
	a, b := create(t, s, sandbox(mine, 0)), create(t, s, sandbox(theirs, 0))
	end(t, s, create(t, s, sandbox(mine, 0)))
	move(t, s, create(t, s, sandbox(mine, 0)), dayfly.StatusFailed, dayfly.EndCrashed)
	deleting := move(t, s, create(t, s, sandbox(mine, 0)), dayfly.StatusDeleting, dayfly.EndRequested)
	got, err := s.LiveSandboxes(t.Context())
	wantCode(t, err, "")
	byID := make(map[string]dayfly.Sandbox)
	for _, sb := range got {
		byID[sb.ID] = sb
	}
	wantEqual(t, "live sandboxes", byID, map[string]dayfly.Sandbox{a.ID: a, b.ID: b, deleting.ID: deleting})
}
