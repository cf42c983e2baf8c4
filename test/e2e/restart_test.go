package e2e_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	sdk "dayfly.dev/dayfly/sdk/go"
)

func TestARestartEndsNoSandboxAndNoCommand(t *testing.T) {
	t.Parallel()
	s, c := own(t, fixedPort(t))
	labels := map[string]string{"repo": "shop", "pr": "418:2"}
	boxes := map[string]sdk.Info{}
	for i := range 3 {
		b := box(t, c, sdk.CreateOptions{Name: fmt.Sprint("box-", i), Labels: labels, Timeout: 5 * time.Minute, Env: map[string]string{"KEPT": "yes"}})
		boxes[b.ID] = b.Info()
	}
	extended, _, err := c.Sandbox(slices.Sorted(maps.Keys(boxes))[0]).Extend(t.Context(), 20*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	boxes[extended.ID] = extended

	const lines = 400
	b := c.Sandbox(extended.ID)
	stream, err := b.ExecStream(t.Context(), sdk.Command(fmt.Sprintf("for i in $(seq %d); do echo out $i; echo err $i >&2; sleep 0.01; done; exit 7", lines)), sdk.ExecOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[sdk.EventType]*strings.Builder{sdk.EventStdout: {}, sdk.EventStderr: {}}
	killed := false
	var exit *sdk.Exit
	for ev, err := range stream.All() {
		if err != nil {
			t.Fatalf("the stream over a restart: %v", err)
		}
		switch ev.Type {
		case sdk.EventStdout, sdk.EventStderr:
			got[ev.Type].Write(ev.Data)
		case sdk.EventDropped:
			t.Errorf("%d bytes of %s were dropped", ev.Bytes, ev.Of)
		case sdk.EventExit:
			exit = ev.Exit
		}
		if !killed && got[sdk.EventStdout].Len() > 300 {
			killed = true
			if err := s.Kill(); err != nil {
				t.Fatal(err)
			}
			for id := range boxes {
				alive(t, s, id)
			}
			again(t, s)
		}
	}
	wantOut, wantErr := numbered("out", lines), numbered("err", lines)
	if !killed || exit == nil || exit.ExitCode != 7 {
		t.Errorf("killed %v, exit %+v", killed, exit)
	}
	if got[sdk.EventStdout].String() != wantOut || got[sdk.EventStderr].String() != wantErr {
		t.Errorf("bug 42: over a restart %d of %d bytes of stdout and %d of %d of stderr came", got[sdk.EventStdout].Len(), len(wantOut), got[sdk.EventStderr].Len(), len(wantErr))
	}
	for _, from := range []int64{0, 1, 17, int64(len(wantOut)) - 3, int64(len(wantOut))} {
		rest, err := b.Output(t.Context(), stream.ID(), sdk.OutputOptions{From: sdk.Offsets{Stdout: from, Stderr: int64(len(wantErr))}})
		if err != nil {
			t.Fatalf("bug 89: output from %d: %v", from, err)
		}
		var out strings.Builder
		if _, err := rest.CopyTo(&out, nil); err != nil || out.String() != wantOut[from:] {
			t.Errorf("bug 89: output from %d gave %d bytes, want %d (%v)", from, out.Len(), len(wantOut)-int(from), err)
		}
		rest.Close()
	}

	seen := 0
	for l, err := range c.List(t.Context(), sdk.ListOptions{Labels: labels}) {
		if err != nil {
			t.Fatal(err)
		}
		was, now := boxes[l.ID], l.Info()
		seen++
		moved := now.ExpiresAt.Sub(*was.ExpiresAt).Abs()
		if now.Name != was.Name || !maps.Equal(now.Labels, was.Labels) || !now.CreatedAt.Equal(*was.CreatedAt) || now.Status != sdk.StatusRunning || moved > 300*time.Millisecond {
			t.Errorf("bug 20: before %+v\nafter %+v (deadline moved by %s)", was, now, moved)
		}
		if out := sh(t, l, "echo $KEPT; cat /proc/1/comm"); !strings.HasPrefix(out, "yes\n") {
			t.Errorf("after the restart %s says %q", l.ID, out)
		}
	}
	if seen != len(boxes) {
		t.Errorf("bug 20: %d of %d are listed", seen, len(boxes))
	}
}

func numbered(word string, n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&b, word, i)
	}
	return b.String()
}

func TestARestartCountsAsTheClientLeaving(t *testing.T) {
	t.Parallel()
	const grace = 30 * time.Second
	s, c := own(t, fixedPort(t))
	b := box(t, c, sdk.CreateOptions{})
	start := func(policy sdk.OnDisconnect) string {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		st, err := b.ExecStream(ctx, sdk.Argv("sleep", "600"), sdk.ExecOptions{OnDisconnect: policy})
		if err != nil {
			t.Fatal(err)
		}
		if ev, err := st.Next(); err != nil || ev.Type != sdk.EventStart {
			t.Fatalf("%+v, %v", ev, err)
		}
		return st.ID() // nobody reads on, so nobody comes back
	}
	byDefault, kill, goOn := start(""), start(sdk.DisconnectKill), start(sdk.DisconnectContinue)
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	c = again(t, s)
	restarted := time.Now()
	b = c.Sandbox(b.ID)
	ended := func(id string) (bool, string) {
		p, err := b.Process(t.Context(), id)
		if err != nil {
			t.Fatalf("read %s: %v", id, err)
		}
		return p.Status == "exited", p.Signal
	}
	within(t, 5*time.Second, "on_disconnect kill", func() (bool, string) { return ended(kill) })
	timer := time.NewTimer(time.Until(restarted.Add(grace - 5*time.Second)))
	defer timer.Stop()
	<-timer.C
	if gone, _ := ended(byDefault); gone {
		t.Errorf("killed %s after the restart; the client has %s to come back", time.Since(restarted), grace)
	}
	within(t, 15*time.Second, "bug 92: nobody came back", func() (bool, string) { return ended(byDefault) })
	if took := time.Since(restarted); took < grace-time.Second || took > grace+5*time.Second {
		t.Errorf("killed %s after the restart, want %s", took, grace)
	}
	if gone, _ := ended(goOn); gone {
		t.Error("on_disconnect continue was killed")
	}
}

func TestBug5AnExtendedLeaseSurvivesARestart(t *testing.T) {
	t.Parallel()
	s, c := own(t)
	b := box(t, c, sdk.CreateOptions{Timeout: 5 * time.Second})
	passed := box(t, c, sdk.CreateOptions{Timeout: 5 * time.Second})
	end := deadline(b, 15*time.Second)
	if _, _, err := b.Extend(t.Context(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	dead(t, s, passed.ID, 10*time.Second)
	c = again(t, s)
	wantEnd(t, c, passed.ID, "lease_expired", deadline(passed, 5*time.Second))
	alive(t, s, b.ID)
	dead(t, s, b.ID, 20*time.Second)
	within(t, 5*time.Second, "the record closes", func() (bool, string) { return mustGet(t, c, b.ID).Status.Ended(), "" })
	wantEnd(t, c, b.ID, "lease_expired", end)
}

func TestAMachineWithoutARecordIsAdopted(t *testing.T) {
	t.Parallel()
	s, c := own(t)
	const lease = 12 * time.Second
	b := box(t, c, sdk.CreateOptions{Timeout: lease, Labels: map[string]string{"a": "b"}})
	sh(t, b, "echo mine > kept")
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(s.Data, "dayfly.db*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no database files (%v)", err)
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	c = again(t, s)
	alive(t, s, b.ID)
	if out := s.Dayfly(t.Context(), "audit"); out.Code != 0 || !strings.Contains(out.Stdout, b.ID) {
		t.Errorf("audit: exit %d: %s%s", out.Code, out.Stdout, out.Stderr)
	}
	end := deadline(b, lease)
	adopted, err := c.Get(t.Context(), b.ID)
	if err != nil {
		t.Fatalf("the new database's admin does not see it: %v", err)
	}
	if got := adopted.Info(); got.Labels["a"] != "b" || !got.CreatedAt.Equal(*b.Info().CreatedAt) {
		t.Errorf("adopted as %+v", got)
	}
	if got := sh(t, adopted, "cat kept"); got != "mine" {
		t.Errorf("its file says %q", got)
	}
	at := dead(t, s, b.ID, 2*lease)
	if late := at.Sub(end); late < 0 || late > lateMax {
		t.Errorf("its lease ended it %s late", late)
	}
}

// TestARecordThatIsRemovedComesBack: the next pass of the running server adopts the machine.
func TestARecordThatIsRemovedComesBack(t *testing.T) {
	t.Parallel()
	s, c := own(t)
	b := box(t, c, sdk.CreateOptions{Labels: map[string]string{"a": "b"}})
	sh(t, b, "echo mine > kept")
	db, err := sql.Open("sqlite", "file:"+filepath.Join(s.Data, "dayfly.db")+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.Exec("DELETE FROM sandboxes WHERE id = $1", b.ID)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), b.ID); err == nil {
		t.Fatal("the record is still there")
	}
	if _, err := c.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	info := mustGet(t, c, b.ID)
	if info.Status != sdk.StatusRunning || info.Labels["a"] != "b" || !info.CreatedAt.Equal(*b.Info().CreatedAt) || info.ExpiresAt.Sub(*b.Info().ExpiresAt).Abs() > time.Second {
		t.Errorf("adopted as %+v, was %+v", info, b.Info())
	}
	if got := sh(t, c.Sandbox(b.ID), "cat kept"); got != "mine" {
		t.Errorf("its file says %q", got)
	}
	if out := s.Dayfly(t.Context(), "audit"); out.Code != 0 {
		t.Errorf("audit: exit %d: %s%s", out.Code, out.Stdout, out.Stderr)
	}
	if err := c.Sandbox(b.ID).Delete(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAMachineWithoutALeaseIsDestroyed(t *testing.T) {
	t.Parallel()
	s, c := own(t)
	stray, kept := box(t, c, sdk.CreateOptions{}), box(t, c, sdk.CreateOptions{})
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(s.Data, "leases", stray.ID)); err != nil {
		t.Fatal(err)
	}
	alive(t, s, stray.ID) // until somebody notices
	c = again(t, s)
	if lives, err := s.Lives(stray.ID); lives || err != nil {
		t.Errorf("lives after the start (%v)", err)
	}
	if info := mustGet(t, c, stray.ID); !info.Status.Ended() {
		t.Errorf("on record as %s", info.Status)
	}
	if got := sh(t, c.Sandbox(kept.ID), "echo ok"); got != "ok" {
		t.Errorf("its neighbour says %q", got)
	}
	if out := s.Dayfly(t.Context(), "audit"); out.Code != 0 {
		t.Errorf("audit: exit %d: %s", out.Code, out.Stdout)
	}
}

func TestBug7ACreateThatACrashCutOffIsOneMachine(t *testing.T) {
	t.Parallel()
	s, c := own(t, fixedPort(t))
	key := adminKey(t, s)
	for _, delay := range []time.Duration{0, 2, 5, 8, 12, 18, 30} {
		delay *= time.Millisecond
		t.Run(delay.String(), func(t *testing.T) {
			body := fmt.Sprintf(`{"labels":{"delay":%q}}`, delay)
			create := func(ctx context.Context) (answer, error) {
				return request(ctx, s, key, "POST", "/v1/sandboxes", body, "Idempotency-Key", "crash-"+delay.String())
			}
			cut := make(chan error, 1)
			go func() {
				_, err := create(context.WithoutCancel(t.Context()))
				cut <- err
			}()
			timer := time.NewTimer(delay)
			<-timer.C
			if err := s.Kill(); err != nil {
				t.Fatal(err)
			}
			t.Logf("the first answer: %v", <-cut)
			again(t, s)
			first, err := create(t.Context())
			if err != nil || first.status != 201 {
				t.Fatalf("the retry: %d %s (%v)", first.status, first.body, err)
			}
			second, err := create(t.Context())
			if err != nil || second.field("id") != first.field("id") {
				t.Errorf("a second retry: %d %s (%v)", second.status, second.body, err)
			}
			var live []string
			for b, err := range c.List(t.Context(), sdk.ListOptions{Labels: map[string]string{"delay": delay.String()}}) {
				if err != nil {
					t.Fatal(err)
				}
				live = append(live, b.ID)
			}
			if !slices.Equal(live, []string{first.field("id")}) {
				t.Errorf("live: %v, answered: %s", live, first.field("id"))
			}
			if got := sh(t, c.Sandbox(first.field("id")), "echo ok"); got != "ok" {
				t.Errorf("it says %q", got)
			}
			sameLists(t, s, c)
		})
	}
}
