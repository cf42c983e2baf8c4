package e2e_test

import (
	"io"
	"net/http"
	"regexp"
	"slices"
	"testing"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// TestEventsAreFollowedOverARestart: one that follows sees each event once, also of what happened while the server was down.
func TestEventsAreFollowedOverARestart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		end  func(t *testing.T, s *host.Server)
	}{
		{"killed", func(t *testing.T, s *host.Server) {
			if err := s.Kill(); err != nil {
				t.Fatal(err)
			}
		}},
		{"drained", func(t *testing.T, s *host.Server) {
			begun := time.Now()
			if out := s.Dayfly(t.Context(), "down"); out.Code != 0 {
				t.Fatalf("down: %+v", out)
			}
			if took := time.Since(begun); took > 5*time.Second { // nobody who follows holds it up
				t.Errorf("down took %s", took)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, c := own(t, fixedPort(t))
			b := box(t, c, sdk.CreateOptions{Timeout: leaseShort})
			var types []sdk.LifeEventType
			var seqs []int64
			var last sdk.LifeEvent
			for e, err := range c.Events(t.Context(), sdk.EventOptions{Sandbox: b.ID, Follow: true}) {
				if err != nil {
					t.Fatal(err)
				}
				last, types, seqs = e, append(types, e.Type), append(seqs, e.Seq)
				if e.Type == sdk.SandboxRunning {
					tt.end(t, s)
					if _, err := s.WaitDead(t.Context(), b.ID); err != nil {
						t.Fatal(err)
					}
					again(t, s)
				}
			}
			if len(types) < 3 || types[0] != sdk.SandboxAccepted || types[1] != sdk.SandboxRunning || last.Type != sdk.SandboxEnded || last.Cause != "lease_expired" {
				t.Errorf("events %v, the last for %s", types, last.Cause)
			}
			if !slices.IsSorted(seqs) || len(slices.Compact(slices.Clone(seqs))) != len(seqs) {
				t.Errorf("seqs %v", seqs)
			}
			deadline := b.Info().ExpiresAt
			if late := last.At.Sub(*deadline); late < -100*time.Millisecond || late > lateMax {
				t.Errorf("ended %s after its deadline", late)
			}
			wantFigures(t, s, `dayfly_reconcile_findings_total\{kind="ended_unseen"\} 1`, `dayfly_sandboxes_ended_total\{reason="lease_expired"\} 1`,
				`dayfly_lease_end_lateness_seconds_count 1`, `dayfly_warden_alive 1`)
		})
	}
}

// wantFigures checks that /metrics has lines.
func wantFigures(t *testing.T, s *host.Server, lines ...string) {
	t.Helper()
	resp, err := http.Get(s.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v", resp.StatusCode, err)
	}
	for _, line := range lines {
		if !regexp.MustCompile("(?m)^" + line + "$").Match(text) {
			t.Errorf("no line %s", line)
		}
	}
}

func TestMetricsOfARealHost(t *testing.T) {
	t.Parallel()
	s, c := own(t)
	b := box(t, c, sdk.CreateOptions{Timeout: time.Minute})
	if _, err := b.Exec(t.Context(), sdk.Command("true"), sdk.ExecOptions{}); err != nil {
		t.Fatal(err)
	}
	wantFigures(t, s, `dayfly_sandboxes\{status="running"\} 1`, `dayfly_exec_seconds_count 1`, `dayfly_execs_running 0`, `dayfly_pool_bytes [1-9].*`,
		`dayfly_pool_free_bytes [1-9].*`, `dayfly_pool_reclaiming_disks [0-9]+`, `dayfly_warden_alive 1`, `dayfly_sandbox_create_seconds_count 1`,
		`process_resident_memory_bytes [1-9].*`, `process_open_fds [1-9].*`)
	if err := b.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantFigures(t, s, `dayfly_sandbox_delete_seconds_count 1`, `dayfly_sandboxes_ended_total\{reason="requested"\} 1`)
}
