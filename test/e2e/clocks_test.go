package e2e_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// agentLateMax is how late the agent's own clock may be: it fires 2 s after the grant.
const agentLateMax = 3 * time.Second

// leaseShort is long enough to do something to the server meanwhile on a busy machine.
const leaseShort = 8 * time.Second

// TestTheWardenAloneEndsEverySandbox is bug 30 too: nothing runs after the lease, and the record ends there without a DELETE.
func TestTheWardenAloneEndsEverySandbox(t *testing.T) {
	for _, tt := range []struct {
		name string
		stop func(*host.Server) error
		back func(*testing.T, *host.Server) *sdk.Client
	}{
		{"server killed", (*host.Server).Kill, again},
		{"server stopped by SIGSTOP", (*host.Server).Stop, func(t *testing.T, s *host.Server) *sdk.Client {
			if err := s.Continue(); err != nil {
				t.Fatal(err)
			}
			return client(t, s)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, c := own(t)
			const count = 5
			boxes := make([]*sdk.Sandbox, count)
			for i := range boxes {
				boxes[i] = box(t, c, sdk.CreateOptions{Timeout: leaseShort})
				sh(t, boxes[i], "(trap '' TERM HUP; setsid sleep 1000) >/dev/null 2>&1 & true")
			}
			if err := tt.stop(s); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Continue() }) // before the sandboxes are removed
			for _, b := range boxes {
				alive(t, s, b.ID)
			}
			for _, b := range boxes {
				at := dead(t, s, b.ID, 2*leaseShort)
				if late := at.Sub(deadline(b, leaseShort)); late < 0 || late >= lateMax {
					t.Errorf("the last process of %s ended %s after the deadline", b.ID, late)
				}
			}
			c = tt.back(t, s)
			for _, b := range boxes {
				within(t, 10*time.Second, "the record closes", func() (bool, string) {
					got, err := c.Get(t.Context(), b.ID)
					return err == nil && got.Info().Status.Ended(), ""
				})
				wantEnd(t, c, b.ID, "lease_expired", deadline(b, leaseShort))
			}
		})
	}
}

func TestTheReaperAloneEndsEverySandbox(t *testing.T) {
	t.Parallel()
	base, _ := shared(t)
	binary := copyBinary(t)
	s := host.StartFor(t, host.Options{Image: base, Binary: binary})
	c := client(t, s)
	b := box(t, c, sdk.CreateOptions{Timeout: leaseShort})
	death := watchDead(t, s, b.ID, 2*leaseShort) // what is tried meanwhile may take longer than the lease
	keep := box(t, c, sdk.CreateOptions{Timeout: time.Minute})
	if err := os.Rename(binary, binary+".away"); err != nil { // no other warden can start
		t.Fatal(err)
	}
	restore := func() { _ = os.Rename(binary+".away", binary) }
	t.Cleanup(restore)
	first, err := s.KillWarden()
	if err != nil {
		t.Fatal(err)
	}

	_, err = c.Create(t.Context(), sdk.CreateOptions{Timeout: time.Minute})
	if e := wantCode(t, "create without a warden", patient(err), sdk.CodeUnavailable); e.Status != http.StatusServiceUnavailable || e.RetryAfter == 0 {
		t.Errorf("create without a warden: status %d, Retry-After %s", e.Status, e.RetryAfter)
	}
	_, _, err = keep.Extend(t.Context(), time.Minute)
	wantCode(t, "extend without a warden", patient(err), sdk.CodeUnavailable)
	if res := try(t, keep, "echo ok"); res.Stdout != "ok\n" {
		t.Errorf("exec without a warden: %q", res.Stdout)
	}
	ready, err := c.Ready(t.Context())
	if err != nil || ready.Ready || len(ready.Problems) == 0 || ready.Problems[0].Component != "warden" {
		t.Errorf("readyz without a warden: %+v, %v", ready, err)
	}

	at := death()
	if late := at.Sub(deadline(b, leaseShort)); late < 0 || late >= lateMax {
		t.Errorf("the server's reaper was %s late", late)
	}
	within(t, 5*time.Second, "the record closes", func() (bool, string) {
		info, err := b.Refresh(t.Context())
		return err == nil && info.Status.Ended(), string(info.Status)
	})
	wantEnd(t, c, b.ID, "lease_expired", deadline(b, leaseShort))

	restore()
	within(t, 15*time.Second, "a new warden comes by itself", func() (bool, string) {
		pid := s.Warden()
		return pid != 0 && pid != first, ""
	})
	within(t, 5*time.Second, "the server is ready again", func() (bool, string) {
		r, err := c.Ready(t.Context())
		return err == nil && r.Ready, ""
	})
	if _, _, err := keep.Extend(t.Context(), time.Minute); err != nil {
		t.Errorf("extend with the new warden: %v", err)
	}
	box(t, c, sdk.CreateOptions{})
}

// patient gives the error itself: the client has tried again for a while before it gave up.
func patient(err error) error { return err }

func TestAKilledWardenComesBackAndMissesNothing(t *testing.T) {
	t.Parallel()
	s, c := own(t)
	b := box(t, c, sdk.CreateOptions{Timeout: leaseShort})
	for range 3 {
		pid, err := s.KillWarden()
		if err != nil {
			t.Fatal(err)
		}
		within(t, 10*time.Second, "a new warden comes by itself", func() (bool, string) {
			now := s.Warden()
			return now != 0 && now != pid, ""
		})
	}
	if err := s.Kill(); err != nil { // only the new warden is left
		t.Fatal(err)
	}
	dead(t, s, b.ID, 2*leaseShort)
	wantEnd(t, again(t, s), b.ID, "lease_expired", deadline(b, leaseShort))
}

func TestTheAgentsClockEndsItAfterAllOthersDied(t *testing.T) {
	for _, tt := range []struct {
		name   string
		extend time.Duration
	}{
		{"as created", 0},
		{"an extended grant is honoured", 6 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, c := own(t)
			b := box(t, c, sdk.CreateOptions{Timeout: leaseShort})
			end := deadline(b, leaseShort+tt.extend)
			sh(t, b, "(trap '' TERM HUP; setsid sleep 1000) >/dev/null 2>&1 & true")
			if tt.extend > 0 {
				if _, _, err := b.Extend(t.Context(), tt.extend); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Kill(); err != nil { // first, or it would start another warden
				t.Fatal(err)
			}
			if _, err := s.KillWarden(); err != nil {
				t.Fatal(err)
			}
			alive(t, s, b.ID)
			at := dead(t, s, b.ID, time.Until(end)+agentLateMax+5*time.Second)
			late := at.Sub(end)
			t.Logf("ended %s after the deadline", late)
			if late < 0 || late > agentLateMax {
				t.Errorf("the agent's clock was %s late, want 0 to %s", late, agentLateMax)
			}
			info := mustGet(t, again(t, s), b.ID)
			if info.Status != sdk.StatusDeleted || info.EndReason != "lease_expired" {
				t.Errorf("on record: %s, %s", info.Status, info.EndReason)
			}
		})
	}
}

func mustGet(t *testing.T, c *sdk.Client, id string) sdk.Info {
	t.Helper()
	b, err := c.Get(t.Context(), id)
	if err != nil {
		t.Fatalf("read %s: %v", id, err)
	}
	return b.Info()
}

func TestLeaseMaxLowersTheCeiling(t *testing.T) {
	t.Parallel()
	_, c := own(t, "--lease-max", "20s")
	b := box(t, c, sdk.CreateOptions{Timeout: 15 * time.Second})
	if got := b.Info().CeilingAt.Sub(*b.Info().CreatedAt); got != 20*time.Second {
		t.Errorf("ceiling_at is %s after created_at", got)
	}
	info, clamped, err := b.Extend(t.Context(), 15*time.Minute)
	if err != nil || !clamped {
		t.Fatalf("bug 46: extend beyond the ceiling: clamped %v, %v", clamped, err)
	}
	if got := info.Remaining(); got > 20*time.Second || got < 10*time.Second {
		t.Errorf("clamped to %s", got)
	}
	_, _, err = b.Extend(t.Context(), time.Minute)
	wantCode(t, "bug 46: extend at the ceiling", err, sdk.CodeLeaseCeiling)
	_, err = c.Create(t.Context(), sdk.CreateOptions{Timeout: 365 * 24 * time.Hour})
	wantCode(t, "bug 46: a year", err, sdk.CodeInvalid)
	_, err = c.Create(t.Context(), sdk.CreateOptions{Timeout: 21 * time.Second})
	wantCode(t, "bug 47: a lease beyond the ceiling is refused, not cut", err, sdk.CodeInvalid)
	fresh := box(t, c, sdk.CreateOptions{})
	if got := fresh.Info().Remaining(); got > 20*time.Second || got < 15*time.Second {
		t.Errorf("the default lease is %s", got)
	}
}

func TestAnExtendThatRacesTheDeadlineWinsOrLosesWholly(t *testing.T) {
	t.Parallel()
	s, c := own(t)
	const count, lease, more = 12, 5 * time.Second, 30 * time.Second
	var g errgroup.Group
	for range count {
		b := box(t, c, sdk.CreateOptions{Timeout: lease})
		end := deadline(b, lease)
		g.Go(func() error {
			timer := time.NewTimer(time.Until(end.Add(-25 * time.Millisecond)))
			defer timer.Stop()
			<-timer.C
			won := false
			for !won {
				_, _, err := b.Extend(context.WithoutCancel(t.Context()), more)
				if sdk.IsGone(err) {
					break
				}
				if err != nil {
					t.Errorf("bug 4: extend: %v", err)
					return nil
				}
				won = time.Now().After(end.Add(-2 * time.Millisecond)) // until it is close
			}
			lives, err := s.Lives(b.ID)
			if err != nil || lives != won {
				t.Errorf("bug 4: %s: extend answered 200: %v; lives: %v (%v)", b.ID, won, lives, err)
			}
			return nil
		})
	}
	_ = g.Wait()
}

// copyBinary copies the program and gives its path, in a directory that goes with the test.
func copyBinary(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(host.Bin(), "dayfly"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "dayfly")
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(path, " ") {
		t.Fatalf("an odd path: %q", path)
	}
	return path
}
