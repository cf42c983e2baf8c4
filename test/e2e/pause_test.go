package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

func pause(t *testing.T, s *host.Server, b *sdk.Sandbox) {
	t.Helper()
	if info, err := b.Pause(t.Context()); err != nil || info.Status != sdk.StatusPaused {
		t.Fatalf("pause: %s, %v", info.Status, err)
	}
	wantFrozen(t, s, b.ID, true)
}

func resume(t *testing.T, s *host.Server, b *sdk.Sandbox) {
	t.Helper()
	if info, err := b.Resume(t.Context()); err != nil || info.Status != sdk.StatusRunning {
		t.Fatalf("resume: %s, %v", info.Status, err)
	}
	wantFrozen(t, s, b.ID, false)
}

func wantFrozen(t *testing.T, s *host.Server, id string, want bool) {
	t.Helper()
	if frozen, err := s.Frozen(id); err != nil || frozen != want {
		t.Errorf("%s: frozen %t, %v, want %t", id, frozen, err, want)
	}
}

// TestAPausedSandboxKeepsEveryClock: the lease runs on while paused, and an extend counts for the agent's own clock too.
func TestAPausedSandboxKeepsEveryClock(t *testing.T) {
	t.Parallel()
	s, c := shared(t)
	longer, ends := box(t, c, sdk.CreateOptions{Timeout: leaseShort}), box(t, c, sdk.CreateOptions{Timeout: leaseShort})
	pause(t, s, longer)
	pause(t, s, ends)
	if _, _, err := longer.Extend(t.Context(), 2*time.Minute); err != nil {
		t.Fatal(err)
	}
	at := dead(t, s, ends.ID, 2*leaseShort)
	if late := at.Sub(deadline(ends, leaseShort)); late < 0 || late >= lateMax {
		t.Errorf("a frozen machine ended %s after its deadline", late)
	}
	within(t, 10*time.Second, "the record closes", func() (bool, string) {
		info, err := ends.Refresh(t.Context())
		return err == nil && info.Status.Ended(), string(info.Status)
	})
	wantEnd(t, c, ends.ID, "lease_expired", deadline(ends, leaseShort))
	if _, err := ends.Resume(t.Context()); !sdk.IsGone(err) {
		t.Errorf("resume of an ended one: %v", err)
	}
	<-time.After(time.Until(deadline(longer, leaseShort).Add(agentLateMax)))
	resume(t, s, longer) // the agent's clock fires now, for the grant that it knew
	<-time.After(agentLateMax)
	if got := sh(t, longer, "echo lives"); got != "lives" {
		t.Errorf("said %q", got)
	}
}

// TestBug65TheWallClockIsRightAfterAResume compares it with the host's at once.
func TestBug65TheWallClockIsRightAfterAResume(t *testing.T) {
	t.Parallel()
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	pause(t, s, b)
	<-time.After(3 * time.Second)
	resume(t, s, b)
	earliest := time.Now()
	ns, err := strconv.ParseInt(sh(t, b, "date +%s%N"), 10, 64)
	if inside := time.Unix(0, ns); err != nil || inside.Before(earliest.Add(-time.Second)) || inside.After(time.Now().Add(time.Second)) {
		t.Errorf("inside it is %s, outside %s (%v)", inside, earliest, err)
	}
}

// TestAPausedSandboxOutlivesTheServer kills the server while a sandbox is paused and a command runs in it.
func TestAPausedSandboxOutlivesTheServer(t *testing.T) {
	t.Parallel()
	s, c := own(t)
	b := box(t, c, sdk.CreateOptions{})
	p, err := b.Start(t.Context(), sdk.Command("for i in $(seq 1000); do echo $i; sleep 0.1; done"), sdk.ProcessOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pause(t, s, b)
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	c = again(t, s)
	got, err := c.Get(t.Context(), b.ID)
	if err != nil || got.Info().Status != sdk.StatusPaused {
		t.Fatalf("after the restart: %+v, %v", got.Info(), err)
	}
	wantFrozen(t, s, b.ID, true)
	_, err = got.Exec(t.Context(), sdk.Command("true"), sdk.ExecOptions{})
	wantCode(t, "exec", err, sdk.CodeNotRunning)
	if _, _, err := got.Extend(t.Context(), time.Minute); err != nil {
		t.Error(err)
	}
	resume(t, s, got)
	sh(t, got, "true")
	if was, err := got.Process(t.Context(), p.ID); err != nil || was.Status != "running" {
		t.Errorf("the command: %+v, %v", was, err)
	}
	pause(t, s, got)
	if err := got.Delete(t.Context()); err != nil {
		t.Error(err)
	}
	alone(t, s, got.ID)
}

// alone fails the test if a process of the sandbox lives.
func alone(t *testing.T, s *host.Server, id string) {
	t.Helper()
	if lives, err := s.Lives(id); err != nil || lives {
		t.Errorf("%s lives (%v)", id, err)
	}
}

// TestBug21ADeletedSandboxIsNotResumed deletes while a resume is in flight.
func TestBug21ADeletedSandboxIsNotResumed(t *testing.T) {
	t.Parallel()
	s, c := shared(t)
	for i := range 20 {
		b := box(t, c, sdk.CreateOptions{})
		pause(t, s, b)
		var g sync.WaitGroup
		g.Go(func() {
			if _, err := b.Resume(t.Context()); err != nil && !sdk.IsGone(err) {
				t.Errorf("resume: %v", err)
			}
		})
		<-time.After(time.Duration(i) * 500 * time.Microsecond)
		if info, err := c.Delete(t.Context(), b.ID); err != nil || info.Status != sdk.StatusDeleted {
			t.Errorf("delete: %s, %v", info.Status, err)
		}
		alone(t, s, b.ID)
		g.Wait()
		if got, err := c.Get(t.Context(), b.ID); err != nil || got.Info().Status != sdk.StatusDeleted {
			t.Errorf("it is %s after its end (%v)", got.Info().Status, err)
		}
		alone(t, s, b.ID)
	}
}

// TestBug71StormOnOneSandbox lets everything loose on one sandbox; then record and host agree, and it works.
func TestBug71StormOnOneSandbox(t *testing.T) {
	t.Parallel()
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	var g sync.WaitGroup
	for worker := range 20 {
		g.Go(func() {
			handle := c.Sandbox(b.ID)
			for range 10 {
				var err error
				switch rand.IntN(4) {
				case 0:
					_, err = handle.Pause(t.Context())
				case 1:
					_, err = handle.Resume(t.Context())
				case 2:
					_, _, err = handle.Extend(t.Context(), time.Second)
				case 3:
					name := fmt.Sprint("worker-", worker)
					_, err = handle.Update(t.Context(), sdk.UpdateOptions{Name: &name})
				}
				if err != nil {
					t.Errorf("worker %d: %v", worker, err)
				}
			}
		})
	}
	g.Wait()
	info, err := b.Refresh(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantFrozen(t, s, b.ID, info.Status == sdk.StatusPaused)
	resume(t, s, b)
	if got := sh(t, b, "echo on > f; cat f"); got != "on" {
		t.Errorf("said %q", got)
	}
}

// TestACommandWaitsForTheResume: a command under way and its stream stay, and go on; its timeout counts the pause.
func TestACommandWaitsForTheResume(t *testing.T) {
	t.Parallel()
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	stream, err := b.ExecStream(t.Context(), sdk.Command("echo one; sleep 1; echo two; sleep 100"), sdk.ExecOptions{Timeout: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	out := make(chan string, 1)
	var exit *sdk.Exit
	go func() {
		var got strings.Builder
		exit, err = stream.CopyTo(&got, &got)
		out <- got.String()
	}()
	within(t, 10*time.Second, "it runs", func() (bool, string) {
		for p, err := range b.Processes(t.Context(), sdk.ProcessListOptions{}) {
			return err == nil && p.Status == "running" && p.StdoutBytes > 0, ""
		}
		return false, ""
	})
	pause(t, s, b)
	select {
	case got := <-out:
		t.Fatalf("the stream ended while paused: %q, %v", got, err)
	case <-time.After(5 * time.Second):
	}
	resume(t, s, b)
	select {
	case got := <-out:
		if err != nil || !exit.TimedOut || !strings.HasPrefix(got, "one\n") {
			t.Errorf("%q, %+v, %v", got, exit, err)
		}
	case <-time.After(10 * time.Second):
		t.Error("its timeout passed while paused, and it goes on after the resume")
	}
}
