package storetest

import (
	"sync"
	"testing"

	"dayfly.dev/dayfly"
)

func claimCases() []Case {
	return []Case{
		{"the same request gives the sandbox as it is now", claimReplay},
		{"an ended sandbox is given again", claimReplayEnded},
		{"a replay passes quota and name", claimPasses},
		{"another body is refused", claimOtherHash},
		{"another operation is refused", claimOtherOperation},
		{"a key is the account's own", claimOwn},
		{"a failed start is replaced", claimReplaced},
		{"a failed start gives the key back to another body", claimReplacedBody},
		{"another failure is given again", claimCrashed},
		{"a refused create leaves the key free", claimRefused},
		{"parallel creates of one key make one sandbox", claimParallel},
		{"parallel retries of a failed start make one sandbox", claimParallelReplace},
		{"a claim of a purged record is replaced", claimPurged},
		{"a claim can be looked up without making anything", claimLookUp},
	}
}

func claimed(t *testing.T, s dayfly.Store, key, hash string) (dayfly.Sandbox, bool) {
	t.Helper()
	sb, replayed, err := s.CreateSandbox(t.Context(), sandbox(mine, 0), claim(key, hash), 0)
	if err != nil {
		t.Fatalf("CreateSandbox: %v", err)
	}
	return sb, replayed
}

func claimReplay(t *testing.T, s dayfly.Store) {
	first, replayed := claimed(t, s, "k", "h")
	wantEqual(t, "replayed", replayed, false)
	now := move(t, s, first, dayfly.StatusRunning, "")
	again, replayed := claimed(t, s, "k", "h")
	wantEqual(t, "replayed", replayed, true)
	wantEqual(t, "sandbox", again, now)
	wantEqual(t, "live sandboxes", live(t, s), 1)
}

func claimReplayEnded(t *testing.T, s dayfly.Store) {
	first, _ := claimed(t, s, "k", "h")
	ended := end(t, s, first)
	again, replayed := claimed(t, s, "k", "h")
	wantEqual(t, "replayed", replayed, true)
	wantEqual(t, "sandbox", again, ended)
}

func claimPasses(t *testing.T, s dayfly.Store) {
	first, _, err := s.CreateSandbox(t.Context(), named(mine, "web"), claim("k", "h"), 1)
	wantCode(t, err, "")
	again, replayed, err := s.CreateSandbox(t.Context(), named(mine, "web"), claim("k", "h"), 1)
	wantCode(t, err, "")
	wantEqual(t, "replayed", replayed, true)
	wantEqual(t, "sandbox", again, first)
}

func claimOtherHash(t *testing.T, s dayfly.Store) {
	claimed(t, s, "k", "h")
	_, _, err := s.CreateSandbox(t.Context(), sandbox(mine, 0), claim("k", "other"), 0)
	wantCode(t, err, dayfly.CodeKeyReused)
	wantEqual(t, "live sandboxes", live(t, s), 1)
}

func claimOtherOperation(t *testing.T, s dayfly.Store) {
	req := *claim("k", "h")
	req.Operation = "POST /v1/keys"
	_, err := s.BeginRequest(t.Context(), req)
	wantCode(t, err, "")
	_, _, err = s.CreateSandbox(t.Context(), sandbox(mine, 0), claim("k", "h"), 0)
	wantCode(t, err, dayfly.CodeKeyReused)
	claimed(t, s, "k2", "h")
	req.Key = "k2"
	_, err = s.BeginRequest(t.Context(), req)
	wantCode(t, err, dayfly.CodeKeyReused)
}

func claimOwn(t *testing.T, s dayfly.Store) {
	claimed(t, s, "k", "h")
	req := claim("k", "other")
	req.Account = theirs
	_, replayed, err := s.CreateSandbox(t.Context(), sandbox(theirs, 0), req, 0)
	wantCode(t, err, "")
	wantEqual(t, "replayed", replayed, false)
}

func claimReplaced(t *testing.T, s dayfly.Store) {
	first, _ := claimed(t, s, "k", "h")
	failed := move(t, s, first, dayfly.StatusFailed, dayfly.EndStartupFailed)
	second, replayed := claimed(t, s, "k", "h")
	wantEqual(t, "replayed", replayed, false)
	if second.ID == first.ID {
		t.Error("the failed sandbox came back")
	}
	wantStored(t, s, failed)
	again, replayed := claimed(t, s, "k", "h")
	wantEqual(t, "replayed", replayed, true)
	wantEqual(t, "sandbox", again, second)
}

func claimReplacedBody(t *testing.T, s dayfly.Store) {
	first, _ := claimed(t, s, "k", "h")
	move(t, s, first, dayfly.StatusFailed, dayfly.EndStartupFailed)
	_, replayed := claimed(t, s, "k", "other")
	wantEqual(t, "replayed", replayed, false)
}

func claimCrashed(t *testing.T, s dayfly.Store) {
	first, _ := claimed(t, s, "k", "h")
	crashed := move(t, s, first, dayfly.StatusFailed, dayfly.EndCrashed)
	again, replayed := claimed(t, s, "k", "h")
	wantEqual(t, "replayed", replayed, true)
	wantEqual(t, "sandbox", again, crashed)
}

func claimRefused(t *testing.T, s dayfly.Store) {
	holder := create(t, s, named(mine, "web"))
	_, _, err := s.CreateSandbox(t.Context(), sandbox(mine, 0), claim("k", "h"), 1)
	wantCode(t, err, dayfly.CodeQuotaExceeded)
	_, _, err = s.CreateSandbox(t.Context(), named(mine, "web"), claim("k", "h2"), 0)
	wantCode(t, err, dayfly.CodeConflict)
	again := sandbox(mine, 0)
	again.ID = holder.ID
	_, _, err = s.CreateSandbox(t.Context(), again, claim("k", "h3"), 0)
	wantCode(t, err, dayfly.CodeConflict)
	_, replayed := claimed(t, s, "k", "h4")
	wantEqual(t, "replayed", replayed, false)
}

func claimParallel(t *testing.T, s dayfly.Store) {
	const creates = 20
	ids, fresh := raced(t, s, creates)
	wantEqual(t, "fresh sandboxes", fresh, 1)
	wantEqual(t, "different ids", len(ids), 1)
	wantEqual(t, "live sandboxes", live(t, s), 1)
}

func claimParallelReplace(t *testing.T, s dayfly.Store) {
	first, _ := claimed(t, s, "k", "h")
	move(t, s, first, dayfly.StatusFailed, dayfly.EndStartupFailed)
	ids, fresh := raced(t, s, 20)
	wantEqual(t, "fresh sandboxes", fresh, 1)
	wantEqual(t, "different ids", len(ids), 1)
	if ids[first.ID] {
		t.Error("the failed sandbox came back")
	}
}

// raced creates n times at once with the same key.
func raced(t *testing.T, s dayfly.Store, n int) (ids map[string]bool, fresh int) {
	t.Helper()
	ids = make(map[string]bool)
	var mu sync.Mutex
	errs := parallel(n, func(int) error {
		sb, replayed, err := s.CreateSandbox(t.Context(), sandbox(mine, 0), claim("k", "h"), 0)
		mu.Lock()
		defer mu.Unlock()
		ids[sb.ID] = true
		if !replayed {
			fresh++
		}
		return err
	})
	wantEqual(t, "successes", count(errs, ""), n)
	return ids, fresh
}

func claimLookUp(t *testing.T, s dayfly.Store) {
	want := func(key, hash string, sb dayfly.Sandbox, found bool, code dayfly.Code) {
		t.Helper()
		got, ok, err := s.ClaimedSandbox(t.Context(), *claim(key, hash))
		wantCode(t, err, code)
		wantEqual(t, "found", ok, found)
		wantEqual(t, "sandbox", got, sb)
	}
	want("k", "h", dayfly.Sandbox{}, false, "")
	first, replayed := claimed(t, s, "k", "h")
	wantEqual(t, "replayed", replayed, false)
	want("k", "h", first, true, "")
	want("k", "other", dayfly.Sandbox{}, false, dayfly.CodeKeyReused)
	want("k2", "h", dayfly.Sandbox{}, false, "")
	move(t, s, first, dayfly.StatusFailed, dayfly.EndStartupFailed)
	want("k", "h", dayfly.Sandbox{}, false, "")
	want("k", "other", dayfly.Sandbox{}, false, "")
	wantEqual(t, "live sandboxes", live(t, s), 0)
}

func claimPurged(t *testing.T, s dayfly.Store) {
	first, _ := claimed(t, s, "k", "h")
	end(t, s, first)
	n, err := s.PurgeSandboxes(t.Context(), epoch.Add(dayfly.RequestKept), 10)
	wantCode(t, err, "")
	wantEqual(t, "purged", n, 1)
	second, replayed := claimed(t, s, "k", "h") // nothing is left to show
	wantEqual(t, "replayed", replayed, false)
	again, replayed := claimed(t, s, "k", "h")
	wantEqual(t, "replayed", replayed, true)
	wantEqual(t, "sandbox", again, second)
}
