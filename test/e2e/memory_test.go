package e2e_test

import (
	"testing"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

const (
	linux, gvisor = "linux", "gvisor"
	// exhaustor fills the memory again and again: the kernel may choose a program alone as its victim, or the sentry.
	exhaustor = "while :; do python3 -c 'x = bytearray(10**10)'; done"
	oomMax    = time.Minute // for a machine of 128 MiB to have ended so
)

// TestUnderGVisorMemoryExhaustionEndsTheSandbox: where the kernel kills the sentry, the
// machine is gone, and everybody is told why.
func TestUnderGVisorMemoryExhaustionEndsTheSandbox(t *testing.T) {
	t.Run("an exec waits", func(t *testing.T) {
		t.Parallel()
		s, c := shared(t)
		b := ofGVisor(t, c)
		answered := make(chan error, 1)
		go func() {
			_, err := b.Exec(t.Context(), sdk.Command(exhaustor), sdk.ExecOptions{Timeout: oomMax})
			answered <- err
		}()
		death := dead(t, s, b.ID, oomMax)
		err := <-answered
		if late := time.Since(death); late > toldMax {
			t.Errorf("it was answered %s after the end", late)
		}
		wantCode(t, "the exec", err, sdk.CodeGone)
		saysOOM(t, s, c, b.ID)
		_, err = b.Exec(t.Context(), sdk.Command("true"), sdk.ExecOptions{})
		wantCode(t, "an exec afterwards", err, sdk.CodeGone)
	})
	t.Run("the server is dead meanwhile", func(t *testing.T) {
		t.Parallel()
		s, c := own(t)
		b := ofGVisor(t, c)
		if _, err := b.Start(t.Context(), sdk.Command("sleep 1; "+exhaustor), sdk.ProcessOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		dead(t, s, b.ID, oomMax)
		saysOOM(t, s, again(t, s), b.ID)
	})
}

// ofGVisor makes a small sandbox of gVisor's, whatever isolation auto means.
func ofGVisor(t *testing.T, c *sdk.Client) *sdk.Sandbox {
	t.Helper()
	b, err := c.Create(t.Context(), sdk.CreateOptions{Isolation: gvisor, MemoryMB: 128})
	if sdk.ErrorCode(err) == sdk.CodeInvalid || sdk.ErrorCode(err) == sdk.CodeUnavailable {
		t.Skipf("no gVisor here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// saysOOM waits until a sandbox's record and its routes tell of the lack of memory.
func saysOOM(t *testing.T, s *host.Server, c *sdk.Client, id string) {
	t.Helper()
	within(t, toldMax, "the record tells", func() (bool, string) {
		info := mustGet(t, c, id)
		return info.Status == sdk.StatusFailed && info.EndReason == "oom" && info.EndedAt != nil, string(info.Status) + " " + info.EndReason
	})
	everyRouteSaysGone(t, s, id, "oom")
}
