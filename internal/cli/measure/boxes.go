package measure

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const (
	boxLease    = 30 * time.Minute // ends what even a killed measurement leaves
	createMax   = 3 * time.Minute
	destroyMax  = 45 * time.Second // of the sweep, and for each sandbox in it
	destroyEach = 200 * time.Millisecond
	sweepAtOnce = 16
)

// label marks every sandbox of a measurement; its value names the measurement.
const label = "dayfly-bench"

// boxes makes sandboxes and knows how to find them all again, also one whose answer was lost.
type boxes struct {
	client *sdk.Client
	mark   string
}

func newBoxes(client *sdk.Client) *boxes {
	return &boxes{client: client, mark: strings.ToLower(rand.Text())}
}

// create makes a sandbox. A signal does not cut the request short, so that no machine is left that nobody knows of.
func (b *boxes) create(ctx context.Context, isolation string) (*sdk.Sandbox, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), createMax)
	defer cancel()
	return b.client.Create(patient, sdk.CreateOptions{Isolation: isolation, Timeout: boxLease, Labels: map[string]string{label: b.mark}})
}

// remove destroys a sandbox and returns once it is gone.
func (b *boxes) remove(ctx context.Context, box *sdk.Sandbox) error {
	info, err := b.client.Delete(ctx, box.ID)
	if err == nil && info.Status != sdk.StatusDeleted {
		err = fmt.Errorf("%s is %s after its deletion", box.ID, info.Status)
	}
	return err
}

// sweep destroys every sandbox of this measurement that lives. It does not need ctx to be alive.
func (b *boxes) sweep(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	listing, cancel := context.WithTimeout(ctx, destroyMax)
	defer cancel()
	var left []*sdk.Sandbox
	for box, err := range b.client.List(listing, sdk.ListOptions{Labels: map[string]string{label: b.mark}}) {
		if err != nil {
			return fmt.Errorf("look for sandboxes that the measurement left: %w", err)
		}
		left = append(left, box)
	}
	ctx, cancel = context.WithTimeout(ctx, destroyMax+time.Duration(len(left))*destroyEach)
	defer cancel()
	failed := together(len(left), sweepAtOnce, func(i int) error { return left[i].Delete(ctx) })
	if failed != nil {
		return fmt.Errorf("destroy the sandboxes with label %s=%s, which their leases end otherwise: %w", label, b.mark, failed)
	}
	return nil
}

// expect runs a command and wants its output.
func expect(ctx context.Context, box *sdk.Sandbox, want string, argv ...string) error {
	res, err := box.Exec(ctx, sdk.Argv(argv...), sdk.ExecOptions{})
	if err != nil {
		return err
	}
	if res.ExitCode != 0 || res.Stdout != want {
		return fmt.Errorf("%s ended with %d and said %.200q%.200q, not %q", argv[0], res.ExitCode, res.Stdout, res.Stderr, want)
	}
	return nil
}

// together runs f n times, at most so many at once, all started at the same instant, and joins the errors.
func together(n, atOnce int, f func(i int) error) error {
	errs := make([]error, n)
	start, done, slots := make(chan struct{}), make(chan struct{}, n), make(chan struct{}, max(1, atOnce))
	for i := range n {
		go func() {
			defer func() { done <- struct{}{} }()
			<-start
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = f(i)
		}()
	}
	close(start)
	for range n {
		<-done
	}
	return errors.Join(errs...)
}
