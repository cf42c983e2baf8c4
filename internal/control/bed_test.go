package control_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
	"dayfly.dev/dayfly/internal/store"
)

var errTest = errors.New("the test breaks this step")

// bed is a control plane on a real store and a node whose machines are entries of a map. It lives in a bubble whose time
// steps only when everybody waits, so waits of minutes cost nothing and happen to the millisecond.
type bed struct {
	t      *testing.T
	store  *flakyStore
	node   *mapNode
	images *mapImages
	plane  *control.Plane
	admin  control.Principal
}

// bubble runs a test case on a bed of its own.
func bubble(t *testing.T, name string, cfg control.Config, run func(t *testing.T, b *bed)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			db, err := store.Open(t.Context(), ":memory:", store.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			b := &bed{t: t, store: &flakyStore{Store: db, fail: map[string]error{}}, node: newMapNode(), images: &mapImages{}}
			b.restart(cfg)
			t.Cleanup(func() { b.plane.Close() })
			if _, err := b.plane.ImportBase(t.Context(), control.ImportImage{Name: dayfly.ImageBase}); err != nil {
				t.Fatal(err)
			}
			key, err := b.plane.IssueAdminKey(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			b.admin = b.principal(key.Secret)
			run(t, b)
		})
	})
}

// restart closes the plane, if there is one, and starts another on the same store and node.
func (b *bed) restart(cfg control.Config) {
	b.t.Helper()
	if b.plane != nil {
		b.plane.Close()
	}
	b.plane = control.New(b.store, b.node, b.images, cfg, slog.New(slog.NewTextHandler(b.t.Output(), nil)))
	if err := b.plane.Start(context.Background()); err != nil {
		b.t.Fatalf("Start: %v", err)
	}
	b.plane.Accept()
}

func (b *bed) principal(secret string) control.Principal {
	b.t.Helper()
	who, err := b.plane.Authenticate(b.t.Context(), secret)
	if err != nil {
		b.t.Fatal(err)
	}
	return who
}

// account makes an account of its own with a key that is no admin's.
func (b *bed) account(name string) control.Principal {
	b.t.Helper()
	key, err := b.plane.CreateKey(b.t.Context(), b.admin, control.NewKey{Account: name})
	if err != nil {
		b.t.Fatal(err)
	}
	return b.principal(key.Secret)
}

func (b *bed) create(r control.CreateSandbox) dayfly.Sandbox {
	b.t.Helper()
	out, err := b.plane.CreateSandbox(b.t.Context(), b.admin, r)
	if err != nil {
		b.t.Fatalf("CreateSandbox: %v", err)
	}
	return out.Value
}

func (b *bed) record(id string) dayfly.Sandbox {
	b.t.Helper()
	sb, err := b.store.Store.Sandbox(context.Background(), "", id)
	if err != nil {
		b.t.Fatal(err)
	}
	return sb
}

// wantEnd checks how a sandbox is recorded to have ended, and that no machine of it is left.
func (b *bed) wantEnd(id string, status dayfly.Status, why dayfly.EndReason) dayfly.Sandbox {
	b.t.Helper()
	sb := b.record(id)
	if sb.Status != status || sb.End != why {
		b.t.Errorf("sandbox is %s (%s), want %s (%s)", sb.Status, sb.End, status, why)
	}
	if status.Ended() && (sb.Times.EndedAt.IsZero() || sb.Wanted != dayfly.StatusDeleted) {
		b.t.Errorf("ended %s, wanted %s", sb.Times.EndedAt, sb.Wanted)
	}
	if status.Ended() && b.node.has(id) {
		b.t.Error("its machine lives")
	}
	return sb
}

func (b *bed) all() []dayfly.Sandbox {
	b.t.Helper()
	page, _, err := b.store.Store.Sandboxes(context.Background(), dayfly.SandboxFilter{IncludeEnded: true, Limit: 100})
	if err != nil {
		b.t.Fatal(err)
	}
	return page
}

func wantCode(t testing.TB, err error, code dayfly.Code) {
	t.Helper()
	if got := dayfly.ErrorCode(err); got != code {
		t.Errorf("error = %v (%s), want %q", err, got, code)
	}
}

// wantGone checks that an error tells how and when a sandbox ended.
func wantGone(t testing.TB, err error, why dayfly.EndReason) {
	t.Helper()
	wantCode(t, err, dayfly.CodeGone)
	if e := dayfly.AsError(err); e != nil && (e.Details["end_reason"] != string(why) || e.Details["ended_at"] == nil) {
		t.Errorf("details = %v, want end_reason %s and ended_at", e.Details, why)
	}
}

func idempotent(key string) control.Idempotency {
	return control.Idempotency{Key: key, Operation: "POST /v1/x", Hash: "h"}
}

// flakyStore is a real store whose methods a test makes fail.
type flakyStore struct {
	dayfly.Store
	mu   sync.Mutex
	fail map[string]error // by method
	hook func(method string)
}

func (s *flakyStore) set(method string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail[method] = err
}

// watch has hook called, under the lock, before each method.
func (s *flakyStore) watch(hook func(method string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}

func (s *flakyStore) broken(method string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hook != nil {
		s.hook(method)
	}
	return s.fail[method]
}

func (s *flakyStore) MoveSandbox(ctx context.Context, sb dayfly.Sandbox) (dayfly.Sandbox, error) {
	if err := s.broken("MoveSandbox"); err != nil {
		return dayfly.Sandbox{}, err
	}
	return s.Store.MoveSandbox(ctx, sb)
}

func (s *flakyStore) RenewLease(ctx context.Context, id string, rev int64, l dayfly.Lease) (dayfly.Sandbox, error) {
	if err := s.broken("RenewLease"); err != nil {
		return dayfly.Sandbox{}, err
	}
	return s.Store.RenewLease(ctx, id, rev, l)
}

func (s *flakyStore) LiveSandboxes(ctx context.Context) ([]dayfly.Sandbox, error) {
	if err := s.broken("LiveSandboxes"); err != nil {
		return nil, err
	}
	return s.Store.LiveSandboxes(ctx)
}

func (s *flakyStore) CreateSandbox(ctx context.Context, sb dayfly.Sandbox, req *dayfly.Request, maxLive int) (dayfly.Sandbox, bool, error) {
	if err := s.broken("CreateSandbox"); err != nil {
		return dayfly.Sandbox{}, false, err
	}
	return s.Store.CreateSandbox(ctx, sb, req, maxLive)
}

func (s *flakyStore) FinishRequest(ctx context.Context, req dayfly.Request) error {
	if err := s.broken("FinishRequest"); err != nil {
		return err
	}
	return s.Store.FinishRequest(ctx, req)
}

func (s *flakyStore) AdoptSandbox(ctx context.Context, sb dayfly.Sandbox) (dayfly.Sandbox, error) {
	if err := s.broken("AdoptSandbox"); err != nil {
		return dayfly.Sandbox{}, err
	}
	return s.Store.AdoptSandbox(ctx, sb)
}

func (s *flakyStore) Ping(ctx context.Context) error {
	return errors.Join(s.broken("Ping"), s.Store.Ping(ctx))
}

// mapImages unpacks nothing.
type mapImages struct {
	mu      sync.Mutex
	removed []string
}

func (m *mapImages) Import(_ context.Context, r control.ImportImage) (dayfly.Image, error) {
	if r.Name == "bad" {
		return dayfly.Image{}, dayfly.Errorf(dayfly.CodeInvalid, "bad entry")
	}
	return dayfly.Image{ID: dayfly.NewID(dayfly.PrefixImage), Name: r.Name, CreatedAt: time.Now()}, nil
}

func (m *mapImages) Remove(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removed = append(m.removed, id)
	return nil
}

func (m *mapImages) gone() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.removed, " ")
}
