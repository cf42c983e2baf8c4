package e2e_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

func TestBug6TheSandboxOfAKilledClientEndsWithItsDefaultLease(t *testing.T) {
	t.Parallel()
	const most = 8 * time.Second // the default lease is no longer than the longest
	s, c := own(t, "--lease-max", most.String())
	cmd := s.Cmd(t.Context(), host.Command{Args: []string{"run", "--label", "bug=6", "--", "sleep", "1000"}})
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var b *sdk.Sandbox
	within(t, 10*time.Second, "the command runs", func() (bool, string) {
		for got, err := range c.List(t.Context(), sdk.ListOptions{Labels: map[string]string{"bug": "6"}}) {
			if err == nil && got.Info().Status == sdk.StatusRunning {
				b = got
			}
		}
		return b != nil, ""
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	alive(t, s, b.ID)
	dead(t, s, b.ID, 2*most)
	within(t, reclaimMax, "the record closes", func() (bool, string) { return mustGet(t, c, b.ID).Status.Ended(), "" })
	wantEnd(t, c, b.ID, "lease_expired", deadline(b, most))
	within(t, reclaimMax, "nothing is left", func() (bool, string) {
		left := traces(t, s, b.ID)
		return len(left) == 0, strings.Join(left, "\n")
	})
}

// TestBug116ASandboxThatDestroyedItselfSaysSo has commands break what commands need. Afterwards commands and files work, or say
// that they cannot; nothing is passed on as a program's own result.
func TestBug116ASandboxThatDestroyedItselfSaysSo(t *testing.T) {
	_, c := shared(t)
	for _, tt := range []struct {
		name, command string
		works         bool // commands still do
	}{
		{"every process killed", "sudo kill -9 -1", true},
		{"no programs", "sudo rm -rf /bin /usr/bin /usr/local/bin", false},
		{"a shell that may not run", "sudo sh -c 'for f in sh bash dash; do chmod 000 /bin/$f /usr/bin/$f; done'", false},
		{"no libraries", "sudo rm -rf /lib /lib64 /usr/lib /usr/lib64", false},
		{"a root that is read-only", "sudo mount -o remount,ro /", true},
		{"the platform's own files", "sudo rm -rf /run/dayfly /.dayfly; sudo umount -l /run/dayfly", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := box(t, c, sdk.CreateOptions{})
			sh(t, b, "echo mine > kept")
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if _, err := b.Exec(ctx, sdk.Command(tt.command), sdk.ExecOptions{Timeout: 10 * time.Second}); err != nil {
				t.Logf("the command itself: %v", err)
			}
			res, err := b.Exec(ctx, sdk.Command("echo ok"), sdk.ExecOptions{Timeout: 5 * time.Second})
			var typed *sdk.Error
			switch {
			case err == nil && res.ExitCode == 0 && res.Stdout == "ok\n":
			case tt.works, err != nil && !errors.As(err, &typed):
				t.Errorf("afterwards: %+v, %v", res, err)
			case err == nil && (res.ExitCode != 126 && res.ExitCode != 127 || res.Stdout != "" || res.Stderr == ""):
				t.Errorf("afterwards: %+v", res)
			default:
				t.Logf("afterwards: %+v, %v", res, err)
			}
			if got, err := b.ReadFile(ctx, "kept", 1<<20); err != nil || string(got) != "mine\n" {
				t.Errorf("the file afterwards: %q, %v", got, err)
			}
		})
	}
}
