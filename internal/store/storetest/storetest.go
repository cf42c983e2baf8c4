// Package storetest is the conformance suite of dayfly.Store: every sentence of the seam is a case here. It knows no
// technology; what a file or a server may suffer is tested beside its implementation.
//
// To add a case, add a function to the list of its noun. To add an implementation, call Run with a function that opens an
// empty store.
package storetest

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

// Case is one promise of the seam.
type Case struct {
	Name string
	Test func(t *testing.T, s dayfly.Store)
}

// Run runs every case on an empty store of its own. open registers the store's end with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) dayfly.Store) {
	for _, group := range []struct {
		name  string
		cases []Case
	}{
		{"create", createCases()},
		{"claim", claimCases()},
		{"list", listCases()},
		{"move", moveCases()},
		{"change", changeCases()},
		{"account", accountCases()},
		{"image", imageCases()},
		{"request", requestCases()},
		{"event", eventCases()},
		{"always", alwaysCases()},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.cases {
				t.Run(c.Name, func(t *testing.T) {
					t.Parallel()
					c.Test(t, open(t))
				})
			}
		})
	}
}

// The records of a test have these accounts and are made around this time.
const (
	mine   = "acmine"
	theirs = "actheirs"
)

var epoch = time.Date(2031, 5, 1, 12, 0, 0, 0, time.UTC)

// sandbox is a new record of an account, made age after the epoch.
func sandbox(account string, age time.Duration) dayfly.Sandbox {
	return dayfly.Sandbox{
		ID: dayfly.NewID(dayfly.PrefixSandbox), Account: account,
		Status: dayfly.StatusProvisioning, Wanted: dayfly.StatusRunning, Node: "no1",
		Spec: dayfly.SandboxSpec{
			Size: "medium", Image: dayfly.ImageBase, Isolation: dayfly.IsolationLinux, Timeout: 90 * time.Second,
			Limits:  dayfly.Limits{VCPU: 2, MemoryBytes: 4 << 30, DiskBytes: 16 << 30, PIDs: 99},
			Network: dayfly.Network{Internet: true},
		},
		Lease: dayfly.Lease{BootID: "b1", Born: time.Hour, Deadline: 2 * time.Hour, Ceiling: 25*time.Hour + 1},
		Times: dayfly.SandboxTimes{CreatedAt: epoch.Add(age)},
	}
}

func claim(key, hash string) *dayfly.Request {
	return &dayfly.Request{Account: mine, Key: key, Operation: "POST /v1/sandboxes", Hash: hash, CreatedAt: epoch}
}

// create stores a sandbox without a key and without a quota.
func create(t *testing.T, s dayfly.Store, sb dayfly.Sandbox) dayfly.Sandbox {
	t.Helper()
	stored, replayed, err := s.CreateSandbox(t.Context(), sb, nil /* no key */, 0)
	if err != nil || replayed {
		t.Fatalf("CreateSandbox = replayed %v, %v", replayed, err)
	}
	return stored
}

// move brings a sandbox to a status, with the times and the reason that belong to it.
func move(t *testing.T, s dayfly.Store, sb dayfly.Sandbox, to dayfly.Status, end dayfly.EndReason) dayfly.Sandbox {
	t.Helper()
	sb.Status, sb.End = to, end
	if to.Ended() {
		sb.Times.EndedAt = sb.Times.CreatedAt.Add(time.Minute)
	}
	moved, err := s.MoveSandbox(t.Context(), sb)
	if err != nil {
		t.Fatalf("MoveSandbox to %s: %v", to, err)
	}
	return moved
}

func end(t *testing.T, s dayfly.Store, sb dayfly.Sandbox) dayfly.Sandbox {
	t.Helper()
	return move(t, s, sb, dayfly.StatusDeleted, dayfly.EndRequested)
}

func wantCode(t *testing.T, err error, want dayfly.Code) {
	t.Helper()
	if got := dayfly.ErrorCode(err); got != want {
		t.Errorf("code = %q (%v), want %q", got, err, want)
	}
}

func wantDetail(t *testing.T, err error, key string, want any) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with detail %s", key)
	}
	if got := dayfly.AsError(err).Details[key]; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("detail %s = %v, want %v", key, got, want)
	}
}

func wantEqual[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

// wantStored reads a sandbox and compares it.
func wantStored(t *testing.T, s dayfly.Store, want dayfly.Sandbox) {
	t.Helper()
	got, err := s.Sandbox(t.Context(), want.Account, want.ID)
	if err != nil {
		t.Fatalf("Sandbox: %v", err)
	}
	wantEqual(t, "stored sandbox", got, want)
}

// parallel runs f n times at once and gives the errors in order.
func parallel(n int, f func(i int) error) []error {
	errs := make([]error, n)
	start, done := make(chan struct{}), make(chan struct{}, n)
	for i := range n {
		go func() {
			<-start
			errs[i] = f(i)
			done <- struct{}{}
		}()
	}
	close(start)
	for range n {
		<-done
	}
	return errs
}

// count tells how many errors have a code; "" counts successes.
func count(errs []error, code dayfly.Code) int {
	n := 0
	for _, err := range errs {
		if dayfly.ErrorCode(err) == code {
			n++
		}
	}
	return n
}

func live(t *testing.T, s dayfly.Store) int {
	t.Helper()
	l, err := s.LiveSandboxes(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatalf("LiveSandboxes: %v", err)
	}
	return len(l)
}
