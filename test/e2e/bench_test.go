package e2e_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// benched is what of bench's JSON scripts rely on.
type benched struct {
	Version       string
	ServerVersion string `json:"server_version"`
	Host          struct {
		CPUs   int
		Kernel string
	}
	Isolations []string
	Figures    []struct {
		ID, Isolation, Unit string
		N                   int
		P50, P95, P99       float64
		Floor               *struct{ ID string }
	}
	Skipped []struct{ ID, Isolation, Reason string }
}

func TestBenchMeasuresAndLeavesNothing(t *testing.T) {
	s, c := own(t)
	out := s.Dayfly(t.Context(), "bench", "-n", "2", "--burst", "3", "--idle", "4", "-o", "json")
	if out.Code != 0 {
		t.Fatalf("exit %d: %s", out.Code, out.Stderr)
	}
	var b benched
	if err := json.Unmarshal([]byte(out.Stdout), &b); err != nil {
		t.Fatalf("%v: %s", err, out.Stdout)
	}
	if b.Version == "" || b.Host.CPUs == 0 || b.Host.Kernel == "" || len(b.Isolations) != 1 {
		t.Errorf("%+v", b)
	}
	told := map[string]bool{}
	for _, f := range b.Figures {
		if f.Isolation != "bare" {
			told[f.ID] = true
		}
		if f.N == 0 || f.Unit == "" || f.P50 <= 0 || f.P95 < f.P50 || f.P99 < f.P95 {
			t.Errorf("%+v", f)
		}
	}
	for _, sk := range b.Skipped {
		told[sk.ID] = true
		if sk.Reason == "" {
			t.Errorf("%+v has no reason", sk)
		}
	}
	for _, id := range []string{"first_output", "create", "exec_true", "exec_python", "request", "pause", "resume", "delete", "burst",
		"burst_delete", "idle_memory", "idle_pss", "idle_threads", "idle_alive", "idle_exec", "idle_density", "cost_cpu", "cost_syscalls", "cost_processes", "cost_files", "cost_tree", "cost_network"} {
		if !told[id] {
			t.Errorf("nothing is told of %s", id)
		}
	}
	noneLives(t, c)
}

func TestBenchSkipsWhatCannotBeMeasured(t *testing.T) {
	s, c := shared(t)
	t.Run("the host has no python3", func(t *testing.T) {
		if _, err := os.Stat("/usr/bin/python3"); err == nil {
			t.Skip("this host has /usr/bin/python3, which is found without PATH")
		}
		out := s.Run(t.Context(), host.Command{Args: []string{"bench", "-n", "1", "--only", "rounds"}, Env: []string{"PATH=/nowhere"}})
		if out.Code != 0 || !strings.Contains(out.Stdout, "no python3") {
			t.Errorf("exit %d: %s%s", out.Code, out.Stdout, out.Stderr)
		}
	})
	t.Run("an isolation that there is not", func(t *testing.T) {
		out := s.Dayfly(t.Context(), "bench", "--isolation", "nope")
		if out.Code != 1 || !strings.Contains(out.Stderr, "nope") {
			t.Errorf("exit %d: %s%s", out.Code, out.Stdout, out.Stderr)
		}
	})
	for _, args := range [][]string{{"-n", "0"}, {"--burst", "-1"}, {"--idle", "4097"}, {"--only", "rounds,nope"}, {"extra"}} {
		t.Run("wrong use: "+strings.Join(args, " "), func(t *testing.T) {
			if out := s.Dayfly(t.Context(), append([]string{"bench"}, args...)...); out.Code != 2 {
				t.Errorf("exit %d: %s%s", out.Code, out.Stdout, out.Stderr)
			}
		})
	}
	sameLists(t, s, c)
}

func noneLives(t *testing.T, c *sdk.Client) {
	t.Helper()
	for b, err := range c.List(t.Context(), sdk.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if b.Info().Labels["dayfly-bench"] != "" && !slices.Contains([]sdk.Status{sdk.StatusDeleted, sdk.StatusDeleting}, b.Info().Status) {
			t.Errorf("%s is left: %+v", b.ID, b.Info())
		}
	}
}

func TestCtrlCEndsABenchAndItsSandboxes(t *testing.T) {
	s, c := own(t)
	cmd := s.Cmd(t.Context(), host.Command{Args: []string{"bench", "-n", "1000", "--only", "rounds"}})
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(stderr)
	for line := ""; !strings.Contains(line, "round 1 "); {
		if line, err = said.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(said)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 128+int(unix.SIGINT) || !strings.Contains(string(rest), "interrupted") {
		t.Errorf("exit %d: %s", code, rest)
	}
	noneLives(t, c)
}
