package e2e_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// endingWays are the ways in which a machine ends under its clients.
var endingWays = []struct {
	name   string
	lease  time.Duration
	end    func(t *testing.T, s *host.Server, b *sdk.Sandbox)
	reason string
	status sdk.Status
}{
	{"its first process is killed", 0, killFirst, "crashed", sdk.StatusFailed},
	{"its lease ends", 6 * time.Second, func(*testing.T, *host.Server, *sdk.Sandbox) {}, "lease_expired", sdk.StatusDeleted},
	{"it is deleted", 0, func(t *testing.T, _ *host.Server, b *sdk.Sandbox) {
		go func() { _ = b.Delete(context.WithoutCancel(t.Context())) }()
	}, "requested", sdk.StatusDeleted},
}

// killFirst ends PID 1 from the host.
func killFirst(t *testing.T, s *host.Server, b *sdk.Sandbox) {
	t.Helper()
	signalFirst(t, s, b, unix.SIGKILL)
}

func signalFirst(t *testing.T, s *host.Server, b *sdk.Sandbox, sig unix.Signal) {
	t.Helper()
	pid, err := s.FirstProcess(b.ID)
	if err == nil {
		err = unix.Kill(pid, sig)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestEveryoneWhoWaitsIsToldHowAMachineEnded(t *testing.T) {
	s, c := shared(t)
	for _, tt := range endingWays {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := box(t, c, sdk.CreateOptions{Timeout: tt.lease})
			calls := busy(t, s, b)
			tt.end(t, s, b)
			death := dead(t, s, b.ID, 20*time.Second)
			within(t, toldMax, "the record tells", func() (bool, string) {
				info := mustGet(t, c, b.ID)
				return info.Status == tt.status && info.EndReason == tt.reason && info.EndedAt != nil, string(info.Status) + " " + info.EndReason
			})
			toldOfTheEnd(t, calls, death, tt.reason)
			everyRouteSaysGone(t, s, b.ID, tt.reason)
		})
	}
}

// everyRouteSaysGone asks an ended sandbox everything that the API can be asked.
func everyRouteSaysGone(t *testing.T, s *host.Server, id, reason string) {
	t.Helper()
	const answerMax = 2 * time.Second
	key := adminKey(t, s)
	const process = "/processes/pr00000000000000000000"
	for _, r := range []struct{ method, path, body string }{
		{"POST", "/exec", `{"command":"true"}`},
		{"POST", "/exec", `{"command":"true","stream":true}`},
		{"POST", "/extend", `{}`},
		{"GET", "/processes", ""},
		{"GET", process, ""},
		{"GET", process + "/output", ""},
		{"GET", process + "/output?follow=true", ""},
		{"POST", process + "/signal", `{"signal":"KILL"}`},
		{"POST", process + "/stdin", "x"},
		{"GET", "/files?path=x", ""},
		{"GET", "/files?path=.&list=true", ""},
		{"PUT", "/files", `{"path":"x","content":"y"}`},
		{"DELETE", "/files?path=x", ""},
		{"GET", "/files/content?path=x", ""},
		{"HEAD", "/files/content?path=x", ""},
		{"PUT", "/files/content?path=x", "x"},
		{"GET", "/files/archive?path=x", ""},
		{"PUT", "/files/archive?path=x", "x"},
	} {
		headers := []string{}
		if r.path == process+"/stdin" || r.method == "PUT" && r.path != "/files" {
			headers = []string{"Content-Type", "application/octet-stream"}
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), answerMax)
		a, err := request(ctx, s, key, r.method, "/v1/sandboxes/"+id+r.path, r.body, headers...)
		cancel()
		if err != nil {
			t.Errorf("%s %s: %v after %s", r.method, r.path, err, time.Since(began))
			continue
		}
		if r.method == "HEAD" && a.status == http.StatusGone {
			continue
		}
		end, at := endOf(a)
		if a.status != http.StatusGone || a.errorType() != "gone" || end != reason || at.IsZero() {
			t.Errorf("%s %s: %d %s", r.method, r.path, a.status, a.body)
		}
	}
}
