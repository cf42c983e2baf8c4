package control_test

import (
	"context"
	"testing"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// slowReader is a store whose answers about keys and sandboxes come late: after has been called.
type slowReader struct {
	dayfly.Store
	after func() // called once between a read and its answer, or nil
}

func (s *slowReader) pass() {
	if after := s.after; after != nil {
		s.after = nil
		after()
	}
}

func (s *slowReader) KeyByHash(ctx context.Context, hash string) (dayfly.Key, dayfly.Account, error) {
	defer s.pass()
	return s.Store.KeyByHash(ctx, hash)
}

func (s *slowReader) Sandbox(ctx context.Context, account, id string) (dayfly.Sandbox, error) {
	defer s.pass()
	return s.Store.Sandbox(ctx, account, id)
}

// TestNothingStale holds what is answered from memory to the database: a removed key and an ended sandbox are gone at once, also when
// the removal happened while the answer was being read.
func TestNothingStale(t *testing.T) {
	bubble(t, "a key that is removed after it was used", control.Config{}, func(t *testing.T, b *bed) {
		key, err := b.plane.CreateKey(t.Context(), b.admin, control.NewKey{Account: "team"})
		wantCode(t, err, "")
		b.principal(key.Secret)
		b.principal(key.Secret)
		wantCode(t, b.plane.RemoveKey(t.Context(), b.admin, key.Key.ID), "")
		_, err = b.plane.Authenticate(t.Context(), key.Secret)
		wantCode(t, err, dayfly.CodeUnauthorized)
	})
	bubble(t, "a key that is removed while it is looked up", control.Config{}, func(t *testing.T, b *bed) {
		key, err := b.plane.CreateKey(t.Context(), b.admin, control.NewKey{Account: "team"})
		wantCode(t, err, "")
		b.store.Store = &slowReader{Store: b.store.Store, after: func() {
			wantCode(t, b.plane.RemoveKey(t.Context(), b.admin, key.Key.ID), "")
		}}
		b.principal(key.Secret) // it was one when it was read
		_, err = b.plane.Authenticate(t.Context(), key.Secret)
		wantCode(t, err, dayfly.CodeUnauthorized)
	})
	bubble(t, "a sandbox that is deleted after it was used", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		for range 2 {
			_, err := b.plane.Machine(t.Context(), b.admin, sb.ID)
			wantCode(t, err, "")
		}
		_, err := b.plane.DeleteSandbox(t.Context(), b.admin, sb.ID)
		wantCode(t, err, "")
		_, err = b.plane.Machine(t.Context(), b.admin, sb.ID)
		wantCode(t, err, dayfly.CodeGone)
	})
	bubble(t, "a sandbox that is deleted while it is looked up", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		b.store.Store = &slowReader{Store: b.store.Store, after: func() {
			_, err := b.plane.DeleteSandbox(t.Context(), b.admin, sb.ID)
			wantCode(t, err, "")
		}}
		for range 2 {
			_, err := b.plane.Machine(t.Context(), b.admin, sb.ID)
			wantCode(t, err, dayfly.CodeGone)
		}
	})
	bubble(t, "another account's sandbox", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		_, err := b.plane.Machine(t.Context(), b.admin, sb.ID)
		wantCode(t, err, "")
		_, err = b.plane.Machine(t.Context(), b.account("team"), sb.ID)
		wantCode(t, err, dayfly.CodeNotFound)
	})
}
