package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// toldMax is how long after a machine's death those who wait for something in it are told.
const toldMax = time.Second

// call is something that a client waits for in a sandbox.
type call struct {
	what string
	done chan outcome
}

// outcome is what a waiting client was told, and when.
type outcome struct {
	fault apiError // the error, however it was sent, or a zero one
	cut   error    // the transport's
	at    time.Time
}

// apiError is an error of the API.
type apiError struct {
	Type    string
	Status  int
	Details map[string]any
}

func (o outcome) String() string { return fmt.Sprintf("%+v (%v)", o.fault, o.cut) }

// busy has clients wait for a sandbox in every way there is: a plain exec, a streamed one, another's output, an upload and a
// download. All are under way when it returns.
func busy(t *testing.T, s *host.Server, b *sdk.Sandbox) []call {
	t.Helper()
	key, base := adminKey(t, s), "/v1/sandboxes/"+b.ID
	sh(t, b, "truncate -s 8G large")
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	followed, err := b.ExecStream(ctx, sdk.Argv("sleep", "600"), sdk.ExecOptions{OnDisconnect: "continue"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = followed.Close() })
	if _, err := followed.Next(); err != nil { // the start, which tells its id
		t.Fatal(err)
	}

	upload := &endless{left: 8 << 20, drained: make(chan struct{}), ctx: ctx}
	first := make(chan string, 2) // calls whose answer has begun
	var calls []call
	begin := func(what string, f func() outcome) {
		c := call{what, make(chan outcome, 1)}
		calls = append(calls, c)
		go func() { c.done <- f() }()
	}
	begin("exec", func() outcome {
		return answered(ctx, s, key, "POST", base+"/exec", strings.NewReader(`{"command":"sleep 600"}`), nil)
	})
	begin("exec stream", func() outcome {
		return answered(ctx, s, key, "POST", base+"/exec", strings.NewReader(`{"command":"sleep 600","stream":true}`), first)
	})
	begin("output", func() outcome {
		return answered(ctx, s, key, "GET", base+"/processes/"+followed.ID()+"/output?follow=true", nil, nil)
	})
	begin("upload", func() outcome { return answered(ctx, s, key, "PUT", base+"/files/content?path=up", upload, nil) })
	begin("download", func() outcome { return answered(ctx, s, key, "GET", base+"/files/content?path=large", nil, first) })

	for range cap(first) {
		<-first
	}
	<-upload.drained
	within(t, 10*time.Second, "the commands run", func() (bool, string) {
		running := 0
		for p, err := range b.Processes(t.Context(), sdk.ProcessListOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			if p.Status == "running" {
				running++
			}
		}
		return running == 3, fmt.Sprint(running, " of 3")
	})
	return calls
}

// endless is an upload that stops in the middle.
type endless struct {
	left    int
	drained chan struct{}
	ctx     context.Context
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		close(e.drained)
		<-e.ctx.Done()
		return 0, e.ctx.Err()
	}
	n := min(len(p), e.left)
	e.left -= n
	return n, nil
}

// answered makes a request and reads its answer to the end, at no more than a few megabytes a second. began is told when
// the answer's first bytes came, or is nil.
func answered(ctx context.Context, s *host.Server, key, method, path string, body io.Reader, began chan<- string) outcome {
	req, err := http.NewRequestWithContext(ctx, method, s.URL+path, body)
	if err != nil {
		return outcome{cut: err, at: time.Now()}
	}
	req.Header.Set("Authorization", "Bearer "+key)
	if method == "POST" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return outcome{cut: err, at: time.Now()}
	}
	defer resp.Body.Close()
	var tail []byte
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for buf := make([]byte, 16<<10); err == nil; <-pace.C {
		var n int
		n, err = resp.Body.Read(buf)
		tail = append(tail, buf[:n]...)
		tail = tail[max(0, len(tail)-len(buf)):]
		if n > 0 && began != nil {
			began <- method + path
			began = nil
		}
	}
	o := outcome{at: time.Now()}
	if !errors.Is(err, io.EOF) {
		o.cut = err
	}
	lines := strings.Split(strings.TrimSpace(string(tail)), "\n")
	var last struct{ Error apiError }
	if json.Unmarshal([]byte(lines[len(lines)-1]), &last) == nil {
		o.fault = last.Error
		if resp.StatusCode >= 400 {
			o.fault.Status = resp.StatusCode
		}
	}
	return o
}

// toldOfTheEnd fails the test unless everybody who waited is told in time, and truly, that and how the machine ended. A
// download has no place for an error: it must be cut.
func toldOfTheEnd(t *testing.T, calls []call, death time.Time, reason string) {
	t.Helper()
	limit := time.After(time.Until(death) + 10*time.Second)
	for _, c := range calls {
		select {
		case o := <-c.done:
			t.Logf("%s: %s after the death: %s", c.what, o.at.Sub(death).Round(time.Millisecond), o)
			if late := o.at.Sub(death); late > toldMax {
				t.Errorf("%s: told %s after the death", c.what, late)
			}
			if c.what == "download" {
				if o.cut == nil {
					t.Errorf("download: it looks complete")
				}
				continue
			}
			if o.cut != nil || o.fault.Type != "gone" {
				t.Errorf("%s: told %s, want gone", c.what, o)
				continue
			}
			if got := o.fault.Details["end_reason"]; got != reason {
				t.Errorf("%s: end_reason %v, want %s", c.what, got, reason)
			}
			at, _ := o.fault.Details["ended_at"].(string)
			if when, err := time.Parse(time.RFC3339, at); err != nil || when.Sub(death).Abs() > toldMax {
				t.Errorf("%s: ended_at %q, want about %s", c.what, at, death.UTC())
			}
		case <-limit:
			t.Errorf("bug 12: %s: nobody told it within 10 s", c.what)
			return
		}
	}
}

// endOf is what an answer says of a machine's end.
func endOf(a answer) (reason string, at time.Time) {
	var m struct{ Error apiError }
	_ = json.Unmarshal([]byte(a.body), &m)
	reason, _ = m.Error.Details["end_reason"].(string)
	text, _ := m.Error.Details["ended_at"].(string)
	at, _ = time.Parse(time.RFC3339, text)
	return reason, at
}
