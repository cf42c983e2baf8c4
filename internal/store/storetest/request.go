package storetest

import (
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func requestCases() []Case {
	return []Case{
		{"a new key is claimed, the first record comes back", requestClaim},
		{"another hash or operation is refused", requestReused},
		{"a key is the account's own", requestOwn},
		{"the outcome is stored", requestFinish},
		{"no answer stays no answer", requestNoAnswer},
		{"only the claim's own request is finished", requestFinishOther},
		{"an abandoned key can be used again", requestAbandon},
		{"a finished request is not abandoned", requestAbandonDone},
		{"parallel claims have one winner", requestParallel},
		{"a purge removes what was made before, no more than the limit", requestPurge},
		{"the claim of a create is kept after the sandbox's end", requestKept},
		{"wrong keys are refused", requestWrong},
	}
}

func exec(k, hash string) dayfly.Request {
	return dayfly.Request{Account: mine, Key: k, Operation: "POST /v1/sandboxes/sb1/exec", Hash: hash, Resource: "pr1", CreatedAt: epoch}
}

func begin(t *testing.T, s dayfly.Store, req dayfly.Request) *dayfly.Request {
	t.Helper()
	prior, err := s.BeginRequest(t.Context(), req)
	if err != nil {
		t.Fatalf("BeginRequest: %v", err)
	}
	return prior
}

// wantPrior repeats a request and compares the record of the first one.
func wantPrior(t *testing.T, s dayfly.Store, again, want dayfly.Request) {
	t.Helper()
	prior := begin(t, s, again)
	if prior == nil {
		t.Fatal("the key was free")
	}
	wantEqual(t, "prior", *prior, want)
}

func requestClaim(t *testing.T, s dayfly.Store) {
	first := exec(strings.Repeat("é", 255), "h")
	if prior := begin(t, s, first); prior != nil {
		t.Fatalf("prior = %+v", prior)
	}
	again := first
	again.Resource, again.CreatedAt = "pr2", epoch.Add(time.Hour)
	wantPrior(t, s, again, first)
}

func requestReused(t *testing.T, s dayfly.Store) {
	begin(t, s, exec("k", "h"))
	hash, operation := exec("k", "h2"), exec("k", "h")
	operation.Operation = "POST /v1/sandboxes/sb2/exec"
	for _, req := range []dayfly.Request{hash, operation} {
		_, err := s.BeginRequest(t.Context(), req)
		wantCode(t, err, dayfly.CodeKeyReused)
	}
	wantPrior(t, s, exec("k", "h"), exec("k", "h"))
}

func requestOwn(t *testing.T, s dayfly.Store) {
	begin(t, s, exec("k", "h"))
	other := exec("k", "h2")
	other.Account = theirs
	if prior := begin(t, s, other); prior != nil {
		t.Errorf("prior = %+v", prior)
	}
	wantCode(t, s.AbandonRequest(t.Context(), theirs, "k"), "")
	wantPrior(t, s, exec("k", "h"), exec("k", "h"))
}

func requestFinish(t *testing.T, s dayfly.Store) {
	req := exec("k", "h")
	begin(t, s, req)
	req.Done, req.Status, req.Response, req.Resource = true, 201, []byte("{\x00\xff}"), "ke9"
	wantCode(t, s.FinishRequest(t.Context(), req), "")
	wantPrior(t, s, exec("k", "h"), req)
	wantCode(t, s.FinishRequest(t.Context(), req), "") // a repeated finish after a lost answer
	bare := exec("k2", "h")
	begin(t, s, bare)
	bare.Resource, bare.Status = "", 200
	wantCode(t, s.FinishRequest(t.Context(), bare), "")
	bare.Resource, bare.Done = "pr1", true
	wantPrior(t, s, exec("k2", "h"), bare)
	bare.Response = make([]byte, 8<<20)
	wantCode(t, s.FinishRequest(t.Context(), bare), dayfly.CodeTooLarge)
}

func requestNoAnswer(t *testing.T, s dayfly.Store) {
	req := exec("k", "h")
	begin(t, s, req)
	req.Done, req.Status = true, 200
	wantCode(t, s.FinishRequest(t.Context(), req), "")
	wantPrior(t, s, exec("k", "h"), req)
}

func requestFinishOther(t *testing.T, s dayfly.Store) {
	wantCode(t, s.FinishRequest(t.Context(), exec("k", "h")), dayfly.CodeNotFound)
	begin(t, s, exec("k", "h"))
	wantCode(t, s.FinishRequest(t.Context(), exec("k", "h2")), dayfly.CodeNotFound)
	wantPrior(t, s, exec("k", "h"), exec("k", "h"))
}

func requestAbandon(t *testing.T, s dayfly.Store) {
	begin(t, s, exec("k", "h"))
	wantCode(t, s.AbandonRequest(t.Context(), mine, "k"), "")
	wantCode(t, s.AbandonRequest(t.Context(), mine, "k"), "") // twice is no error
	if prior := begin(t, s, exec("k", "h2")); prior != nil {
		t.Errorf("prior = %+v", prior)
	}
}

func requestAbandonDone(t *testing.T, s dayfly.Store) {
	req := exec("k", "h")
	begin(t, s, req)
	req.Done, req.Status = true, 200
	wantCode(t, s.FinishRequest(t.Context(), req), "")
	wantCode(t, s.AbandonRequest(t.Context(), mine, "k"), "")
	wantPrior(t, s, exec("k", "h"), req)
}

func requestParallel(t *testing.T, s dayfly.Store) {
	const claims = 20
	won := make([]bool, claims)
	errs := parallel(claims, func(i int) error {
		prior, err := s.BeginRequest(t.Context(), exec("k", "h"))
		won[i] = prior == nil
		return err
	})
	wantEqual(t, "successes", count(errs, ""), claims)
	winners := 0
	for _, w := range won {
		if w {
			winners++
		}
	}
	wantEqual(t, "winners", winners, 1)
}

func requestPurge(t *testing.T, s dayfly.Store) {
	for i := range 5 {
		req := exec(strings.Repeat("k", i+1), "h")
		req.CreatedAt = epoch.Add(time.Duration(i) * time.Hour)
		begin(t, s, req)
	}
	for _, tt := range []struct {
		before      time.Time
		limit, want int
	}{
		{epoch, 10, 0},
		{epoch.Add(24 * time.Hour), 0, 0},
		{epoch.Add(time.Hour), 10, 1},
		{epoch.Add(24 * time.Hour), 3, 3},
		{epoch.Add(24 * time.Hour), 3, 1},
	} {
		n, err := s.PurgeRequests(t.Context(), tt.before, tt.limit)
		wantCode(t, err, "")
		wantEqual(t, "purged", n, tt.want)
	}
	if prior := begin(t, s, exec("k", "other")); prior != nil {
		t.Errorf("prior = %+v", prior)
	}
}

func requestKept(t *testing.T, s dayfly.Store) {
	sb, _ := claimed(t, s, "k", "h")
	ended := end(t, s, sb)
	n, err := s.PurgeRequests(t.Context(), epoch, 10) // now − RequestKept, when the claim is exactly that old
	wantCode(t, err, "")
	wantEqual(t, "purged", n, 0)
	again, replayed := claimed(t, s, "k", "h")
	wantEqual(t, "replayed", replayed, true)
	wantEqual(t, "sandbox", again, ended)
	n, err = s.PurgeRequests(t.Context(), epoch.Add(time.Microsecond), 10)
	wantCode(t, err, "")
	wantEqual(t, "purged", n, 1)
	_, replayed = claimed(t, s, "k", "other")
	wantEqual(t, "replayed", replayed, false)
}

func requestWrong(t *testing.T, s dayfly.Store) {
	for _, k := range []string{"", strings.Repeat("é", 256), "a\x00", "\xff"} {
		_, err := s.BeginRequest(t.Context(), exec(k, "h"))
		wantCode(t, err, dayfly.CodeInvalid)
		_, _, err = s.CreateSandbox(t.Context(), sandbox(mine, 0), claim(k, "h"), 0)
		wantCode(t, err, dayfly.CodeInvalid)
	}
	nobody := exec("k", "h")
	nobody.Account = ""
	_, err := s.BeginRequest(t.Context(), nobody)
	wantCode(t, err, dayfly.CodeInvalid)
	wantEqual(t, "live sandboxes", live(t, s), 0)
}
