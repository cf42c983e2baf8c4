package control_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

func TestKeys(t *testing.T) {
	bubble(t, "who may do what", control.Config{MaxLive: 3}, func(t *testing.T, b *bed) {
		user := b.account("team")
		if user.Account.MaxLive != 3 || b.admin.Account.MaxLive != 0 || user.Key.Admin || !b.admin.Key.Admin {
			t.Errorf("user %+v, admin %+v", user, b.admin)
		}
		own, err := b.plane.CreateKey(t.Context(), user, control.NewKey{})
		if err != nil || own.Key.Account != user.Account.ID || !strings.HasPrefix(own.Secret, "dfk_") || strings.Contains(fmt.Sprintf("%+v", own.Key), own.Secret) {
			t.Errorf("own key: %+v, %v", own, err)
		}
		for name, r := range map[string]control.NewKey{"an admin key": {Admin: true}, "another account": {Account: "new"}, "the first account": {Account: control.FirstAccount}} {
			_, err := b.plane.CreateKey(t.Context(), user, r)
			wantCode(t, err, dayfly.CodeForbidden)
			if err == nil {
				t.Errorf("a user made %s", name)
			}
		}
		_, err = b.plane.Accounts(t.Context(), user)
		wantCode(t, err, dayfly.CodeForbidden)
		if keys, err := b.plane.Keys(t.Context(), user); err != nil || len(keys) != 2 {
			t.Errorf("the user sees %d keys, %v", len(keys), err)
		}
		if keys, err := b.plane.Keys(t.Context(), b.admin); err != nil || len(keys) != 3 {
			t.Errorf("the admin sees %d keys, %v", len(keys), err)
		}
		wantCode(t, b.plane.RemoveKey(t.Context(), user, b.admin.Key.ID), dayfly.CodeNotFound)
		wantCode(t, b.plane.RemoveKey(t.Context(), user, own.Key.ID), "")
		_, err = b.plane.Authenticate(t.Context(), own.Secret)
		wantCode(t, err, dayfly.CodeUnauthorized)
		for _, r := range []func() error{
			func() error { return b.plane.RemoveImage(t.Context(), user, dayfly.ImageBase) },
			func() error {
				_, err := b.plane.ImportImage(t.Context(), user, control.ImportImage{Name: "x"})
				return err
			},
		} {
			wantCode(t, r(), dayfly.CodeForbidden)
		}
	})
	bubble(t, "the last admin key stays", control.Config{}, func(t *testing.T, b *bed) {
		wantCode(t, b.plane.RemoveKey(t.Context(), b.admin, b.admin.Key.ID), dayfly.CodeConflict)
		second, err := b.plane.IssueAdminKey(t.Context())
		wantCode(t, err, "")
		wantCode(t, b.plane.RemoveKey(t.Context(), b.admin, b.admin.Key.ID), "")
		wantCode(t, b.plane.RemoveKey(t.Context(), b.principal(second.Secret), second.Key.ID), dayfly.CodeConflict)
	})
	bubble(t, "what is no key", control.Config{}, func(t *testing.T, b *bed) {
		for _, secret := range []string{"", "dfk_", "x", "dfk_" + strings.Repeat("a", 40), b.admin.Key.Hash} {
			_, err := b.plane.Authenticate(t.Context(), secret)
			wantCode(t, err, dayfly.CodeUnauthorized)
		}
	})
}

func TestImages(t *testing.T) {
	bubble(t, "a name moves; the old image goes once nothing runs from it", control.Config{}, func(t *testing.T, b *bed) {
		old, err := b.plane.Image(t.Context(), b.admin, dayfly.ImageBase)
		wantCode(t, err, "")
		sb := b.create(control.CreateSandbox{Image: old.ID})
		wantCode(t, b.plane.RemoveImage(t.Context(), b.admin, dayfly.ImageBase), dayfly.CodeConflict)
		im, err := b.plane.ImportImage(t.Context(), b.admin, control.ImportImage{Name: dayfly.ImageBase})
		wantCode(t, err, "")
		if b.images.gone() != "" {
			t.Error("an image in use was removed")
		}
		if next := b.create(control.CreateSandbox{}); next.Spec.ImageID != im.ID {
			t.Errorf("made from %s, want %s", next.Spec.ImageID, im.ID)
		}
		_, err = b.plane.DeleteSandbox(t.Context(), b.admin, sb.ID)
		wantCode(t, err, "")
		time.Sleep(time.Minute)
		if b.images.gone() != old.ID {
			t.Errorf("removed %q, want %s", b.images.gone(), old.ID)
		}
		if all, err := b.plane.Images(t.Context(), b.admin); err != nil || len(all) != 1 {
			t.Errorf("images = %v, %v", all, err)
		}
	})
	bubble(t, "import and remove", control.Config{}, func(t *testing.T, b *bed) {
		im, err := b.plane.ImportImage(t.Context(), b.admin, control.ImportImage{Name: "tool"})
		wantCode(t, err, "")
		wantCode(t, b.plane.RemoveImage(t.Context(), b.admin, "tool"), "")
		wantCode(t, b.plane.RemoveImage(t.Context(), b.admin, "tool"), dayfly.CodeNotFound)
		if b.images.gone() != im.ID {
			t.Errorf("removed %q", b.images.gone())
		}
		_, err = b.plane.ImportImage(t.Context(), b.admin, control.ImportImage{Name: "bad"})
		wantCode(t, err, dayfly.CodeInvalid)
	})
}

func TestPhases(t *testing.T) {
	bubble(t, "starting, open, draining, closed", control.Config{}, func(t *testing.T, b *bed) {
		sb := b.create(control.CreateSandbox{})
		key, err := b.plane.IssueAdminKey(t.Context())
		wantCode(t, err, "")
		b.plane.Close()
		b.node.found.Running = []dayfly.Sandbox{sb}
		b.plane = control.New(b.store, b.node, b.images, control.Config{}, discard())
		busy := func(code dayfly.Code) {
			t.Helper()
			_, err := b.plane.CreateSandbox(t.Context(), b.admin, control.CreateSandbox{})
			wantCode(t, err, code)
			_, err = b.plane.Exec(t.Context(), b.admin, sb.ID, dayfly.ProcessSpec{}, nil, control.Idempotency{})
			wantCode(t, err, code)
			_, err = b.plane.ImportImage(t.Context(), b.admin, control.ImportImage{Name: "y"})
			wantCode(t, err, code)
		}
		ready := func(want ...string) {
			t.Helper()
			var got []string
			for _, p := range b.plane.Ready(t.Context()) {
				got = append(got, p.Component)
			}
			if fmt.Sprint(got) != fmt.Sprint(append(want, "warden")) {
				t.Errorf("not ready: %v, want %v", got, want)
			}
		}
		busy(dayfly.CodeUnavailable)
		ready("server")
		_, err = b.plane.Authenticate(t.Context(), key.Secret)
		wantCode(t, err, dayfly.CodeUnavailable)
		wantCode(t, b.plane.Start(t.Context()), "")
		busy(dayfly.CodeUnavailable)
		b.plane.Accept()
		busy("")
		ready()
		b.store.set("Ping", errTest)
		ready("database")
		b.store.set("Ping", nil)
		b.plane.Drain()
		busy(dayfly.CodeUnavailable)
		ready("server")
		b.plane.Accept() // draining does not end
		busy(dayfly.CodeUnavailable)
		if _, err := b.plane.ExtendSandbox(t.Context(), b.admin, sb.ID, time.Minute); err != nil {
			t.Errorf("extend while draining: %v", err)
		}
		if got, err := b.plane.DeleteSandbox(t.Context(), b.admin, sb.ID); err != nil || got.Status != dayfly.StatusDeleted {
			t.Errorf("delete while draining: %+v, %v", got, err)
		}
		b.plane.Close()
		b.plane.Close()
	})
}
