package e2e_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"dayfly.dev/dayfly"
	sdk "dayfly.dev/dayfly/sdk/go"
)

// limits of a planted group: none but the default number of processes.
var limits dayfly.Limits

// TestBug24MemoryExhaustionEndsTheCommandAlone holds where the driver says so; of gVisor it is another test that tells.
func TestBug24MemoryExhaustionEndsTheCommandAlone(t *testing.T) {
	_, c := shared(t)
	b := box(t, c, sdk.CreateOptions{Isolation: linux, MemoryMB: 256})
	sh(t, b, "setsid sleep 1000 >/dev/null 2>&1 & echo $! > pid")
	for command, itself := range map[string]bool{
		"python3 -c 'x = bytearray(10**10)'":                              true,
		"python3 -c 'x = []\nwhile True: x.append(b\"y\" * 10**7)'":       true,
		"for i in $(seq 16); do tail /dev/zero & done; wait; echo waited": false, // its children die, the shell does not
	} {
		res, err := b.Exec(t.Context(), sdk.Command(command), sdk.ExecOptions{Timeout: time.Minute})
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		t.Logf("exit %d, signal %q, oom_killed %v", res.ExitCode, res.Signal, res.OOMKilled)
		if res.TimedOut || itself && (!res.OOMKilled || res.ExitCode != 137) || !itself && (res.Stdout != "waited\n" || !strings.Contains(res.Stderr, "Killed")) {
			t.Errorf("%s: %+v", command, res)
		}
		if got := sh(t, b, "echo ok; kill -0 $(cat pid)"); got != "ok" {
			t.Errorf("afterwards it says %q", got)
		}
	}
	t.Run("nobody follows it", func(t *testing.T) {
		b := box(t, c, sdk.CreateOptions{Isolation: linux, MemoryMB: 256}) // where only one command at a time has processes
		for _, command := range []string{"exec python3 -c 'x = bytearray(10**10)'", "python3 -c 'x = bytearray(10**10)'; exit 3"} {
			started, err := b.Start(t.Context(), sdk.Command(command), sdk.ProcessOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var p sdk.Process
			within(t, time.Minute, "it ends", func() (bool, string) {
				var err error
				p, err = b.Process(t.Context(), started.ID)
				return err == nil && p.Status == sdk.ProcessExited, fmt.Sprint(p.Status, err)
			})
			if !p.OOMKilled {
				t.Errorf("bug 24: %s: its record does not tell: %+v", command, p)
			}
		}
	})
	if info := mustGet(t, c, b.ID); info.Status != sdk.StatusRunning {
		t.Errorf("the sandbox is %s", info.Status)
	}
}

func TestBug38AForkBombIsContained(t *testing.T) {
	s, c := shared(t)
	bomb, neighbour := box(t, c, sdk.CreateOptions{}), box(t, c, sdk.CreateOptions{})
	res, err := bomb.Exec(t.Context(), sdk.Command(`python3 -c '
import os, time
n = 0
while True:
    try:
        if os.fork() == 0: time.sleep(600)
        n += 1
    except OSError as e:
        print(n, e.strerror, flush=True); break
os._exit(3)'`), sdk.ExecOptions{Timeout: time.Minute})
	ended := sdk.ErrorCode(err) == sdk.CodeGone && mustGet(t, c, bomb.ID).EndReason == "oom"
	switch {
	case ended && bomb.Info().Isolation == gvisor: // its kernel's own memory for so many processes is the machine's
	case err != nil:
		t.Fatal(err)
	default:
		number, _, _ := strings.Cut(res.Stdout, " ")
		if n, _ := strconv.Atoi(number); res.ExitCode != 3 || n < 1900 || n >= 2048 {
			t.Errorf("%d: %q %q", res.ExitCode, res.Stdout, res.Stderr)
		}
	}
	// The shell's own bomb, that never stops by itself.
	if _, err := bomb.Exec(t.Context(), sdk.Command("f() { f | f & }; f; sleep 3"), sdk.ExecOptions{Timeout: 5 * time.Second}); err != nil && sdk.ErrorCode(err) == "" {
		t.Error(err)
	}
	began := time.Now()
	if got := sh(t, neighbour, "echo ok"); got != "ok" || time.Since(began) > 5*time.Second {
		t.Errorf("the neighbour says %q after %s", got, time.Since(began))
	}
	box(t, c, sdk.CreateOptions{})
	if err := bomb.Delete(t.Context()); err != nil {
		t.Errorf("delete: %v", err)
	}
	if lives, err := s.Lives(bomb.ID); lives || err != nil {
		t.Errorf("the bomb lives (%v)", err)
	}
}

func TestBug121AFullDiskIsOneClearError(t *testing.T) {
	_, c := shared(t)
	b, neighbour := box(t, c, sdk.CreateOptions{DiskMB: 256}), box(t, c, sdk.CreateOptions{})
	if got := sh(t, b, "echo $DAYFLY_DISK_MB $DAYFLY_MEMORY_MB $DAYFLY_VCPU"); got != "256 1024 1" {
		t.Errorf("the environment tells %q", got)
	}
	if info := b.Info(); info.DiskMB != 256 {
		t.Errorf("the API tells %d", info.DiskMB)
	}
	res := try(t, b, "dd if=/dev/zero of=big bs=1M count=1000")
	if res.ExitCode == 0 || !strings.Contains(res.Stderr, "Disk quota exceeded") && !strings.Contains(res.Stderr, "No space left on device") {
		t.Errorf("exit %d: %s", res.ExitCode, res.Stderr)
	}
	size, _ := strconv.Atoi(sh(t, b, "sync; stat -c %s big"))
	if got := size >> 20; got < 200 || got > 260 {
		t.Errorf("it could write %d MiB of 256", got)
	}
	if got := sh(t, b, "echo ok"); got != "ok" {
		t.Errorf("a command on the full disk says %q", got)
	}
	if _, err := b.WriteFile(t.Context(), "more", make([]byte, 8<<20), 0); err != nil {
		wantCode(t, "write a file on a full disk", err, sdk.CodeDiskFull)
	} else {
		t.Error("8 MiB more could be written")
	}
	if got := sh(t, neighbour, "dd if=/dev/zero of=big bs=1M count=300 status=none && echo ok"); got != "ok" {
		t.Errorf("the neighbour says %q", got)
	}
	if err := b.RemoveFile(t.Context(), "big", false); err != nil {
		t.Errorf("remove a file on the full disk: %v", err)
	}
	within(t, 10*time.Second, "there is room again", func() (bool, string) {
		res := try(t, b, "sync; dd if=/dev/zero of=again bs=1M count=50 status=none")
		return res.ExitCode == 0, res.Stderr
	})
	if err := b.Delete(t.Context()); err != nil {
		t.Errorf("delete: %v", err)
	}
}

func TestTheQuotaIsExactUnderParallelCreates(t *testing.T) {
	t.Parallel()
	config := writeFile(t, "config.yaml", "sandbox:\n  max_live: 10\n")
	s, admin := own(t, "--config", config)
	key, err := admin.CreateKey(t.Context(), "tenant", false)
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.ClientWith(key.Secret)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 2 { // bug 37: what is gone does not count, whether it failed, was deleted or a crash came in between
		type made struct {
			b   *sdk.Sandbox
			err error
		}
		results := make(chan made, 30)
		var g errgroup.Group
		for range cap(results) {
			g.Go(func() error {
				b, err := c.Create(t.Context(), sdk.CreateOptions{})
				results <- made{b, err}
				return nil
			})
		}
		_ = g.Wait()
		close(results)
		ok := 0
		for r := range results {
			if r.err == nil {
				ok++
				continue
			}
			e := wantCode(t, "over the quota", r.err, sdk.CodeQuotaExceeded)
			if e.Status != http.StatusConflict || !strings.Contains(fmt.Sprint(e.Details), "10") {
				t.Errorf("over the quota: %d %s %v", e.Status, e.Message, e.Details)
			}
		}
		if ok != 10 {
			t.Errorf("round %d: %d of 30 creates succeeded, the quota is 10", round, ok)
		}
		if machines, err := s.Machines(); err != nil || len(machines) != 10 {
			t.Errorf("round %d: %d machines (%v)", round, len(machines), err)
		}
		failing := live(t, c)[:2]
		for _, b := range failing {
			killFirst(t, s, b)
		}
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		admin = again(t, s)
		if c, err = s.ClientWith(key.Secret); err != nil {
			t.Fatal(err)
		}
		within(t, 10*time.Second, "those that failed do not count", func() (bool, string) {
			n := len(live(t, c))
			return n == 10-len(failing), fmt.Sprint(n)
		})
		removeAll(t, c)
	}
	box(t, admin, sdk.CreateOptions{})
}

// live lists a client's sandboxes that have not ended.
func live(t *testing.T, c *sdk.Client) []*sdk.Sandbox {
	t.Helper()
	var all []*sdk.Sandbox
	for b, err := range c.List(t.Context(), sdk.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

func TestWhatNoNodeCanHoldIsToldFromWhatDoesNotFitNow(t *testing.T) {
	s, c := shared(t)
	for name, o := range map[string]sdk.CreateOptions{"memory": {MemoryMB: 1 << 30}, "cpus": {VCPU: 4096}, "disk": {DiskMB: 1 << 30}} {
		_, err := c.Create(t.Context(), o)
		if e := wantCode(t, name, err, sdk.CodeSizeUnavailable); e.Status != http.StatusConflict || e.Retryable || e.Hint == "" {
			t.Errorf("%s: %+v", name, e)
		}
	}
	sameLists(t, s, c)
}

func TestNoCapacityIsAnsweredWhileThePoolIsFull(t *testing.T) {
	t.Parallel()
	config := writeFile(t, "config.yaml", "disk:\n  size_gb: 1\n")
	s, c := own(t, "--config", config)
	b := box(t, c, sdk.CreateOptions{DiskMB: 900})
	try(t, b, "dd if=/dev/zero of=big bs=1M count=850 status=none; sync")
	key := adminKey(t, s)
	var a answer
	within(t, 10*time.Second, "the pool is full", func() (bool, string) {
		var err error
		a, err = request(t.Context(), s, key, "POST", "/v1/sandboxes", `{"disk_mb":256,"timeout_seconds":60}`)
		if err != nil {
			t.Fatal(err)
		}
		return a.status != http.StatusCreated, a.body
	})
	if a.status != http.StatusServiceUnavailable || a.errorType() != "no_capacity" || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, "disk") {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
	_, err := c.Create(t.Context(), sdk.CreateOptions{DiskMB: 4096})
	wantCode(t, "more than the whole pool", err, sdk.CodeSizeUnavailable)
	if err := b.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "space comes back", func() (bool, string) {
		a, err := request(t.Context(), s, key, "POST", "/v1/sandboxes", `{"disk_mb":256}`)
		return err == nil && a.status == http.StatusCreated, a.body
	})
}
