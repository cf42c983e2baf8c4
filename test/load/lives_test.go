package load_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// parallel is how many lives go on at once.
const parallel = 20

// TestManyLivesLeaveNothingAndTheServerAsItWas is bug 108, and bug 118 as far as lives after one another go.
func TestManyLivesLeaveNothingAndTheServerAsItWas(t *testing.T) {
	s, c := shared(t)
	warm, cycles := length(100, 300), length(200, 2000)
	live(t, c, warm)
	nothingOf(t, s)
	routines := goroutines(t, s)
	before, warden := usage(t, s.PID), usage(t, s.Warden())
	began := time.Now()
	took := live(t, c, cycles)
	all := time.Since(began)
	nothingOf(t, s)
	slices.Sort(took)
	t.Logf("%d lives, %d at once, in %s: %.0f a second; one took %s (p50), %s (p99), %s (max)", cycles, parallel, all.Round(time.Millisecond),
		float64(cycles)/all.Seconds(), took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	flat(t, "server", before, usage(t, s.PID))
	if now := goroutines(t, s); now > routines+growthRoutine {
		t.Errorf("the server had %d goroutines and has %d", routines, now)
	} else {
		t.Logf("server: %d goroutines, then %d", routines, now)
	}
	flat(t, "warden", warden, usage(t, s.Warden()))
}

// live has count sandboxes made, used and deleted, and tells how long each took.
func live(t *testing.T, c *sdk.Client, count int) []time.Duration {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(parallel)
	var mu sync.Mutex
	var took []time.Duration
	for i := range count {
		g.Go(func() error {
			began := time.Now()
			if err := life(t.Context(), c, i); err != nil {
				return fmt.Errorf("life %d: %w", i, err)
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(began).Round(time.Millisecond))
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return took
}

func life(ctx context.Context, c *sdk.Client, i int) error {
	b, err := c.Create(ctx, sdk.CreateOptions{Timeout: 5 * time.Minute})
	if err != nil {
		return err
	}
	res, err := b.Exec(ctx, sdk.Command(fmt.Sprintf("echo %d | tee kept", i)), sdk.ExecOptions{Check: true})
	if err == nil && res.Stdout != fmt.Sprintln(i) {
		err = fmt.Errorf("it says %q", res.Stdout)
	}
	if err != nil {
		return err
	}
	return b.Delete(ctx)
}

// TestManyCommandsLeaveAgentAndServerAsTheyWere is bug 109; the agent's own test has the commands that fail.
func TestManyCommandsLeaveAgentAndServerAsTheyWere(t *testing.T) {
	s, c := shared(t)
	b, err := c.Create(t.Context(), sdk.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := s.FirstProcess(b.ID)
	if err != nil {
		t.Fatal(err)
	}
	// The records of 1,000 finished commands are kept: the warm-up fills them.
	warm, commands := max(1200, length(1200, 2500)), length(2000, 20000)
	execs(t, b, warm)
	routines := goroutines(t, s)
	before, inside := usage(t, s.PID), usage(t, agent)
	began := time.Now()
	execs(t, b, commands)
	all := time.Since(began)
	t.Logf("%d commands, %d at once, in %s: %.0f a second", commands, atOnce, all.Round(time.Millisecond), float64(commands)/all.Seconds())
	flat(t, "server", before, usage(t, s.PID))
	if now := goroutines(t, s); now > routines+growthRoutine {
		t.Errorf("the server had %d goroutines and has %d", routines, now)
	} else {
		t.Logf("server: %d goroutines, then %d", routines, now)
	}
	flat(t, "agent", inside, usage(t, agent))
	if err := b.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothingOf(t, s)
}

// atOnce is how many commands run at once in one sandbox.
const atOnce = 8

func execs(t *testing.T, b *sdk.Sandbox, count int) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i := range count {
		g.Go(func() error {
			want := fmt.Sprintln(i)
			res, err := b.Exec(t.Context(), sdk.Argv("echo", fmt.Sprint(i)), sdk.ExecOptions{})
			if err == nil && (res.ExitCode != 0 || res.Stdout != want) {
				err = fmt.Errorf("%+v", res)
			}
			if err != nil {
				return fmt.Errorf("command %d: %w", i, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}
