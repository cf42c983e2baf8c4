package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	sdk "dayfly.dev/dayfly/sdk/go"
)

func TestBug35ManyCreatesAtOnceAllSucceed(t *testing.T) {
	s, c := shared(t)
	for _, count := range []int{20, 100} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			defer removeAll(t, c)
			began := time.Now()
			addresses := make(chan string, count)
			var g errgroup.Group
			for range count {
				g.Go(func() error {
					b, err := c.Create(t.Context(), sdk.CreateOptions{Timeout: 5 * time.Minute})
					if err != nil {
						return err
					}
					res, err := b.Exec(t.Context(), sdk.Command("hostname -I; hostname"), sdk.ExecOptions{Check: true})
					if err != nil {
						return fmt.Errorf("%s: %w", b.ID, err)
					}
					addresses <- res.Stdout
					return nil
				})
			}
			if err := g.Wait(); err != nil {
				t.Fatalf("bug 35: %v", err)
			}
			t.Logf("%d created and asked in %s", count, time.Since(began))
			close(addresses)
			seen := map[string]bool{}
			for a := range addresses {
				seen[a] = true
			}
			if len(seen) != count {
				t.Errorf("bug 33: %d different addresses and names of %d", len(seen), count)
			}
			sameLists(t, s, c)
		})
	}
}

func TestBug8AClientThatLeavesDuringACreateLeavesNothingUnrecorded(t *testing.T) {
	t.Parallel()
	s, c := own(t)
	key := adminKey(t, s)
	const tries, parallel = 100, 4
	random := rand.New(rand.NewPCG(8, 8))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i := range tries {
		delay := time.Duration(random.IntN(40_000)) * time.Microsecond
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(t.Context(), delay)
			defer cancel()
			_, _ = request(ctx, s, key, "POST", "/v1/sandboxes", `{"timeout_seconds":120}`, "Idempotency-Key", fmt.Sprint("gone-", i))
			return nil
		})
	}
	_ = g.Wait()
	sameLists(t, s, c)
	made := 0
	for i := range tries {
		a, err := request(t.Context(), s, key, "POST", "/v1/sandboxes", `{"timeout_seconds":120}`, "Idempotency-Key", fmt.Sprint("gone-", i))
		if err != nil || a.status != 201 {
			t.Fatalf("try %d again: %d %s (%v)", i, a.status, a.body, err)
		}
		if a.header.Get("Idempotency-Replayed") != "" {
			made++
		}
	}
	t.Logf("%d of %d were made although their client had left", made, tries)
	sameLists(t, s, c)
	if live, err := s.Machines(); err != nil || len(live) != tries {
		t.Errorf("%d machines for %d keys (%v)", len(live), tries, err)
	}
	removeAll(t, c)
	sameLists(t, s, c)
	if a := audit(t, s); a.code != 0 {
		t.Errorf("audit: %+v", a)
	}
}
