package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// lateMax is how late an enforcer on this host may be: between the deadline and the last process's end.
const lateMax = time.Second

// removeMax is how long the end of a test waits for its sandbox's server.
const removeMax = 10 * time.Second

// common is the server that tests share when they do nothing to it, and whose image the others link.
var common struct {
	sync.Mutex
	server *host.Server
	err    error
}

func TestMain(m *testing.M) {
	host.Parallel()
	code := m.Run()
	if s := common.server; s != nil {
		if err := s.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "take the shared server away:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// shared gives the common server and a client of its first account.
func shared(t *testing.T) (*host.Server, *sdk.Client) {
	t.Helper()
	host.Need(t)
	common.Lock()
	defer common.Unlock()
	if common.server == nil && common.err == nil {
		common.server, common.err = host.Start(context.Background(), host.Options{})
	}
	if common.err != nil {
		t.Fatalf("start the shared server: %v", common.err)
	}
	return common.server, client(t, common.server)
}

// own gives a server for this test alone.
func own(t *testing.T, flags ...string) (*host.Server, *sdk.Client) {
	t.Helper()
	base, _ := shared(t)
	s := host.StartFor(t, host.Options{Image: base, Flags: flags})
	return s, client(t, s)
}

func client(t *testing.T, s *host.Server) *sdk.Client {
	t.Helper()
	c, err := s.Client()
	if err != nil {
		t.Fatalf("make a client: %v", err)
	}
	return c
}

// again starts a server that was ended and gives a client for its new address.
func again(t *testing.T, s *host.Server) *sdk.Client {
	t.Helper()
	if err := s.Up(t.Context()); err != nil {
		t.Fatalf("start the server again: %v", err)
	}
	return client(t, s)
}

// box makes a sandbox that is gone after the test.
func box(t *testing.T, c *sdk.Client, o sdk.CreateOptions) *sdk.Sandbox {
	t.Helper()
	b, err := c.Create(t.Context(), o)
	if err != nil {
		t.Fatalf("create: %v (code %s)", err, sdk.ErrorCode(err))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), removeMax)
		defer cancel()
		_ = b.Delete(ctx) // a dead server cannot, and goes with everything after the test
	})
	return b
}

// sh runs a command and fails the test unless it exits with 0.
func sh(t *testing.T, b *sdk.Sandbox, command string) string {
	t.Helper()
	res := try(t, b, command)
	if res.ExitCode != 0 {
		t.Fatalf("%s: exit %d: %s%s", command, res.ExitCode, res.Stdout, res.Stderr)
	}
	return strings.TrimSpace(res.Stdout)
}

// try runs a command whatever it exits with.
func try(t *testing.T, b *sdk.Sandbox, command string) *sdk.Result {
	t.Helper()
	res, err := b.Exec(t.Context(), sdk.Command(command), sdk.ExecOptions{Timeout: time.Minute})
	if err != nil {
		t.Fatalf("%s: %v (code %s)", command, err, sdk.ErrorCode(err))
	}
	return res
}

// within fails the test unless cond comes true in time. It is for what no event tells.
func within(t *testing.T, limit time.Duration, what string, cond func() (bool, string)) {
	t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, saw := cond()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %s", what, limit, saw)
		}
		<-tick.C
	}
}

// dead waits until the kernel says that the sandbox has no process.
func dead(t *testing.T, s *host.Server, id string, limit time.Duration) time.Time {
	t.Helper()
	return watchDead(t, s, id, limit)()
}

// watchDead begins to wait like dead; what it gives waits for that.
func watchDead(t *testing.T, s *host.Server, id string, limit time.Duration) func() time.Time {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	type result struct {
		at  time.Time
		err error
	}
	done := make(chan result, 1)
	go func() {
		at, err := s.WaitDead(ctx, id)
		done <- result{at, err}
	}()
	return func() time.Time {
		t.Helper()
		got := <-done
		if got.err != nil {
			t.Fatalf("wait for the end of %s: %v", id, got.err)
		}
		return got.at
	}
}

// alive fails the test unless a process of the sandbox lives.
func alive(t *testing.T, s *host.Server, id string) {
	t.Helper()
	if lives, err := s.Lives(id); err != nil || !lives {
		t.Fatalf("%s does not live (%v)", id, err)
	}
}

// wantEnd fails the test unless the record says how and when a sandbox ended; deadline is by the wall clock of the record.
func wantEnd(t *testing.T, c *sdk.Client, id, reason string, deadline time.Time) {
	t.Helper()
	b, err := c.Get(t.Context(), id)
	if err != nil {
		t.Fatalf("read %s: %v", id, err)
	}
	info := b.Info()
	if info.Status != sdk.StatusDeleted || info.EndReason != reason || info.EndedAt == nil {
		t.Fatalf("%s: status %s, end reason %q, ended at %v; want deleted, %s", id, info.Status, info.EndReason, info.EndedAt, reason)
	}
	late := info.EndedAt.Sub(deadline)
	t.Logf("%s: %s, %s after its deadline", id, info.EndReason, late)
	if late < -5*time.Millisecond || late >= lateMax { // stamps are whole milliseconds
		t.Errorf("%s ended %s after its deadline, want 0 to %s", id, late, lateMax)
	}
}

// deadline is when the lease of a fresh sandbox ends.
func deadline(b *sdk.Sandbox, lease time.Duration) time.Time { return b.Info().CreatedAt.Add(lease) }

// wantCode fails the test unless err has the code.
func wantCode(t *testing.T, what string, err error, want sdk.Code) *sdk.Error {
	t.Helper()
	if got := sdk.ErrorCode(err); got != want {
		t.Fatalf("%s: code %q (%v), want %q", what, got, err, want)
	}
	var e *sdk.Error
	errors.As(err, &e)
	return e
}
