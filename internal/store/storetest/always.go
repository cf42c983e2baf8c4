package storetest

import (
	"context"
	"errors"
	"testing"

	"dayfly.dev/dayfly"
)

func alwaysCases() []Case {
	return []Case{
		{"every method obeys its context", obeysContext},
		{"every method of a closed store is unavailable", closedStore},
		{"the store answers a ping", ping},
		{"close can be called twice", closeTwice},
	}
}

// methods calls every method that takes a context, with arguments that would succeed or not be found.
func methods(s dayfly.Store) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"CreateSandbox": func(ctx context.Context) error {
			_, _, err := s.CreateSandbox(ctx, sandbox(mine, 0), claim("k", "h"), 0)
			return err
		},
		"ClaimedSandbox": func(ctx context.Context) error { _, _, err := s.ClaimedSandbox(ctx, *claim("k", "h")); return err },
		"Sandbox":        func(ctx context.Context) error { _, err := s.Sandbox(ctx, "", "sb1"); return err },
		"Sandboxes":      func(ctx context.Context) error { _, _, err := s.Sandboxes(ctx, dayfly.SandboxFilter{}); return err },
		"LiveSandboxes":  func(ctx context.Context) error { _, err := s.LiveSandboxes(ctx); return err },
		"MoveSandbox":    func(ctx context.Context) error { _, err := s.MoveSandbox(ctx, sandbox(mine, 0)); return err },
		"RenewLease":     func(ctx context.Context) error { _, err := s.RenewLease(ctx, "sb1", 1, dayfly.Lease{}); return err },
		"LabelSandbox":   func(ctx context.Context) error { _, err := s.LabelSandbox(ctx, "sb1", 1, nil, nil); return err },
		"AdoptSandbox":   func(ctx context.Context) error { _, err := s.AdoptSandbox(ctx, sandbox(mine, 0)); return err },
		"PurgeSandboxes": func(ctx context.Context) error { _, err := s.PurgeSandboxes(ctx, epoch, 1); return err },
		"CreateKey": func(ctx context.Context) error {
			_, err := s.CreateKey(ctx, account(1, true), key(1, true))
			return err
		},
		"KeyByHash":      func(ctx context.Context) error { _, _, err := s.KeyByHash(ctx, "h"); return err },
		"Keys":           func(ctx context.Context) error { _, err := s.Keys(ctx, ""); return err },
		"RemoveKey":      func(ctx context.Context) error { return s.RemoveKey(ctx, "", "ke1") },
		"Accounts":       func(ctx context.Context) error { _, err := s.Accounts(ctx); return err },
		"Account":        func(ctx context.Context) error { _, err := s.Account(ctx, "ac1"); return err },
		"PutImage":       func(ctx context.Context) error { _, err := s.PutImage(ctx, image(1, "i")); return err },
		"Image":          func(ctx context.Context) error { _, err := s.Image(ctx, "i"); return err },
		"Images":         func(ctx context.Context) error { _, err := s.Images(ctx); return err },
		"RemoveImage":    func(ctx context.Context) error { return s.RemoveImage(ctx, "im1") },
		"BeginRequest":   func(ctx context.Context) error { _, err := s.BeginRequest(ctx, exec("k2", "h")); return err },
		"FinishRequest":  func(ctx context.Context) error { return s.FinishRequest(ctx, exec("k2", "h")) },
		"AbandonRequest": func(ctx context.Context) error { return s.AbandonRequest(ctx, mine, "k2") },
		"PurgeRequests":  func(ctx context.Context) error { _, err := s.PurgeRequests(ctx, epoch, 1); return err },
		"Ping":           s.Ping,
	}
}

func obeysContext(t *testing.T, s dayfly.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range methods(s) {
		if err := call(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s = %v, want the context's error", name, err)
		}
	}
	wantEqual(t, "live sandboxes", live(t, s), 0)
}

func closedStore(t *testing.T, s dayfly.Store) {
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	for name, call := range methods(s) {
		if err := call(t.Context()); dayfly.ErrorCode(err) != dayfly.CodeUnavailable {
			t.Errorf("%s = %v, want %s", name, err, dayfly.CodeUnavailable)
		}
	}
}

func ping(t *testing.T, s dayfly.Store) { wantCode(t, s.Ping(t.Context()), "") }

func closeTwice(t *testing.T, s dayfly.Store) {
	wantCode(t, s.Close(), "")
	wantCode(t, s.Close(), "")
}
