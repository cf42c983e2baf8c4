package storetest

import (
	"fmt"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func accountCases() []Case {
	return []Case{
		{"the first key of a name makes the account", keyFirst},
		{"later keys find the account", keyLater},
		{"a key and its account are found by hash", keyFound},
		{"an unknown hash is unauthorized", keyUnknown},
		{"ids and secrets are used once", keyOnce},
		{"keys are listed oldest first, of one account or all", keyList},
		{"a removed key is unauthorized, its account stays", keyRemoved},
		{"another account's key is not removed", keyNotYours},
		{"the last admin key stays", keyLastAdmin},
		{"parallel removals leave an admin key", keyParallel},
		{"parallel first keys make one account", accountParallel},
		{"accounts are listed oldest first", accountList},
		{"incomplete keys are refused", keyIncomplete},
	}
}

func account(n int, admin bool) dayfly.Account {
	return dayfly.Account{ID: fmt.Sprint("ac", n), Name: fmt.Sprint("name", n), Admin: admin, MaxLive: 100 + n, CreatedAt: epoch.Add(time.Duration(-n) * time.Second)}
}

// key is the nth key; its hint is what the secret's last characters would be.
func key(n int, admin bool) dayfly.Key {
	return dayfly.Key{ID: fmt.Sprint("ke", n), Admin: admin, Hash: fmt.Sprint("hash", n), Hint: fmt.Sprint("h", n), CreatedAt: epoch.Add(time.Duration(n) * time.Second)}
}

func addKey(t *testing.T, s dayfly.Store, a dayfly.Account, k dayfly.Key) dayfly.Key {
	t.Helper()
	stored, err := s.CreateKey(t.Context(), a, k)
	if err != nil {
		t.Fatalf("CreateKey: %v", err)
	}
	k.Account, k.Name = stored.ID, stored.Name
	return k
}

func keyFirst(t *testing.T, s dayfly.Store) {
	want := account(1, true)
	got, err := s.CreateKey(t.Context(), want, key(1, true))
	wantCode(t, err, "")
	wantEqual(t, "account", got, want)
	got, err = s.Account(t.Context(), want.ID)
	wantCode(t, err, "")
	wantEqual(t, "account", got, want)
	_, err = s.Account(t.Context(), "acnone")
	wantCode(t, err, dayfly.CodeNotFound)
}

func keyLater(t *testing.T, s dayfly.Store) {
	want := account(1, true)
	addKey(t, s, want, key(1, true))
	other := dayfly.Account{ID: "acother", Name: want.Name, MaxLive: 7, CreatedAt: epoch.Add(time.Hour)}
	got, err := s.CreateKey(t.Context(), other, key(2, false))
	wantCode(t, err, "")
	wantEqual(t, "account", got, want)
	other.ID = want.ID
	other.Name = "another name with an id that is taken"
	_, err = s.CreateKey(t.Context(), other, key(3, false))
	wantCode(t, err, dayfly.CodeConflict)
}

func keyFound(t *testing.T, s dayfly.Store) {
	a := account(1, false)
	want := addKey(t, s, a, key(1, true))
	addKey(t, s, account(2, true), key(2, false))
	k, acc, err := s.KeyByHash(t.Context(), want.Hash)
	wantCode(t, err, "")
	wantEqual(t, "key", k, want)
	wantEqual(t, "account", acc, a)
}

func keyUnknown(t *testing.T, s dayfly.Store) {
	addKey(t, s, account(1, true), key(1, true))
	for _, hash := range []string{"", "hash", "HASH1", "' OR 1=1 --", "%"} {
		k, acc, err := s.KeyByHash(t.Context(), hash)
		wantCode(t, err, dayfly.CodeUnauthorized)
		wantEqual(t, "key", k, dayfly.Key{})
		wantEqual(t, "account", acc, dayfly.Account{})
	}
}

func keyOnce(t *testing.T, s dayfly.Store) {
	addKey(t, s, account(1, true), key(1, true))
	sameID, sameHash := key(2, false), key(3, false)
	sameID.ID, sameHash.Hash = "ke1", "hash1"
	for _, k := range []dayfly.Key{sameID, sameHash} {
		_, err := s.CreateKey(t.Context(), account(2, false), k)
		wantCode(t, err, dayfly.CodeConflict)
	}
	_, err := s.Account(t.Context(), "ac2") // was not made either
	wantCode(t, err, dayfly.CodeNotFound)
}

func keyList(t *testing.T, s dayfly.Store) {
	k3 := addKey(t, s, account(1, true), key(3, true))
	k1 := addKey(t, s, account(1, true), key(1, false))
	k2 := addKey(t, s, account(2, false), key(2, false))
	for account, want := range map[string][]dayfly.Key{"ac1": {k1, k3}, "": {k1, k2, k3}, "ac2": {k2}, "acnone": nil} {
		got, err := s.Keys(t.Context(), account)
		wantCode(t, err, "")
		wantEqual(t, "keys of "+account, got, want)
	}
}

func keyRemoved(t *testing.T, s dayfly.Store) {
	addKey(t, s, account(1, true), key(1, true))
	k := addKey(t, s, account(2, false), key(2, false))
	wantCode(t, s.RemoveKey(t.Context(), "ac2", k.ID), "")
	_, _, err := s.KeyByHash(t.Context(), k.Hash)
	wantCode(t, err, dayfly.CodeUnauthorized)
	wantCode(t, s.RemoveKey(t.Context(), "ac2", k.ID), dayfly.CodeNotFound)
	_, err = s.Account(t.Context(), "ac2")
	wantCode(t, err, "")
}

func keyNotYours(t *testing.T, s dayfly.Store) {
	addKey(t, s, account(1, true), key(1, true))
	k := addKey(t, s, account(2, false), key(2, false))
	wantCode(t, s.RemoveKey(t.Context(), "ac1", k.ID), dayfly.CodeNotFound)
	_, _, err := s.KeyByHash(t.Context(), k.Hash)
	wantCode(t, err, "")
	wantCode(t, s.RemoveKey(t.Context(), "" /* any account's */, k.ID), "")
}

func keyLastAdmin(t *testing.T, s dayfly.Store) {
	addKey(t, s, account(1, true), key(1, true))
	addKey(t, s, account(1, true), key(2, false))
	wantCode(t, s.RemoveKey(t.Context(), "", "ke1"), dayfly.CodeConflict)
	addKey(t, s, account(2, true), key(3, true))
	wantCode(t, s.RemoveKey(t.Context(), "ac1", "ke1"), "")
	wantCode(t, s.RemoveKey(t.Context(), "ac2", "ke3"), dayfly.CodeConflict)
	wantCode(t, s.RemoveKey(t.Context(), "ac1", "ke2"), "")
}

func keyParallel(t *testing.T, s dayfly.Store) {
	const keys = 10
	for i := range keys {
		addKey(t, s, account(1, true), key(i, true))
	}
	errs := parallel(keys, func(i int) error { return s.RemoveKey(t.Context(), "", fmt.Sprint("ke", i)) })
	wantEqual(t, "removed", count(errs, ""), keys-1)
	wantEqual(t, "refused", count(errs, dayfly.CodeConflict), 1)
}

func accountParallel(t *testing.T, s dayfly.Store) {
	const keys = 10
	errs := parallel(keys, func(i int) error {
		a := account(1, true)
		a.ID = fmt.Sprint("ac", i)
		_, err := s.CreateKey(t.Context(), a, key(i, true))
		return err
	})
	wantEqual(t, "successes", count(errs, ""), keys)
	got, err := s.Accounts(t.Context())
	wantCode(t, err, "")
	wantEqual(t, "accounts", len(got), 1)
}

func accountList(t *testing.T, s dayfly.Store) {
	got, err := s.Accounts(t.Context())
	wantCode(t, err, "")
	wantEqual(t, "accounts of a new store", len(got), 0)
	for i := range 3 {
		addKey(t, s, account(i, false), key(i, false))
	}
	got, err = s.Accounts(t.Context())
	wantCode(t, err, "")
	wantEqual(t, "accounts", got, []dayfly.Account{account(2, false), account(1, false), account(0, false)})
}

func keyIncomplete(t *testing.T, s dayfly.Store) {
	for _, tt := range []struct {
		a dayfly.Account
		k dayfly.Key
	}{
		{dayfly.Account{ID: "ac1"}, key(1, true)},
		{dayfly.Account{Name: "n"}, key(1, true)},
		{account(1, true), dayfly.Key{ID: "ke1"}},
		{account(1, true), dayfly.Key{Hash: "h"}},
	} {
		_, err := s.CreateKey(t.Context(), tt.a, tt.k)
		wantCode(t, err, dayfly.CodeInvalid)
	}
}
