package e2e_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

const (
	linux, gvisor = "linux", "gvisor"
	// exhaustor has the user-space kernel fill the memory, which is then its own; exhausted is a program that does it itself.
	exhaustor = "tail /dev/zero"
	exhausted = "exec python3 -c 'x = []\nwhile True: x.append(b\"y\" * 10**6)'"
	oomMax    = time.Minute // for a machine of 128 MiB to have ended so
)

// TestUnderGVisorMemoryExhaustionEndsTheCommand: whose memory it is ends, and is told why. A crash of the machine after that is
// a crash.
func TestUnderGVisorMemoryExhaustionEndsTheCommand(t *testing.T) {
	s, c := shared(t)
	b := ofGVisor(t, c)
	sh(t, b, "setsid sleep 1000 >/dev/null 2>&1 & echo $! > pid")
	for range 5 {
		res, err := b.Exec(t.Context(), sdk.Command(exhausted), sdk.ExecOptions{Timeout: oomMax})
		if err != nil || res.ExitCode != 137 || res.Signal != "KILL" || !res.OOMKilled {
			t.Fatalf("%+v, %v", res, err)
		}
		if got := sh(t, b, "echo ok; kill -0 $(cat pid)"); got != "ok" {
			t.Errorf("afterwards it says %q", got)
		}
	}
	killSentry(t, b.ID)
	dead(t, s, b.ID, toldMax)
	within(t, toldMax, "the record tells", func() (bool, string) {
		info := mustGet(t, c, b.ID)
		return info.Status == sdk.StatusFailed && info.EndReason == "crashed", string(info.Status) + " " + info.EndReason
	})
}

// killSentry kills the user-space kernel of a sandbox.
func killSentry(t *testing.T, id string) {
	t.Helper()
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range groups {
		group, _ := os.ReadFile(path)
		line, _ := os.ReadFile(filepath.Dir(path) + "/cmdline")
		if !strings.Contains(string(group), id) || !strings.HasPrefix(string(line), "runsc-sandbox\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil {
			err = unix.Kill(pid, unix.SIGKILL)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("no process of it is the user-space kernel")
}

// TestUnderGVisorMemoryExhaustionEndsTheSandbox: where it is the user-space kernel's, the machine is gone, and everybody is told
// why.
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
