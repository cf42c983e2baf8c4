package api_test

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// TestGoSDK drives the edge with the Go SDK: both sides mean the same by the contract.
func TestGoSDK(t *testing.T) {
	b := newBed(t, nil)
	ctx := context.Background()
	client, err := sdk.New(sdk.Options{URL: b.url, APIKey: b.key, DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if ready, err := client.Ready(ctx); err != nil || !ready.Ready {
		t.Errorf("ready: %v, %v", ready, err)
	}
	sb, err := client.Create(ctx, sdk.CreateOptions{Size: "small", Timeout: time.Minute, Labels: map[string]string{"a": "b"}, Env: map[string]string{"X": "1"}, NoInternet: true})
	if err != nil {
		t.Fatal(err)
	}
	res, err := sb.Exec(ctx, sdk.Command("cat; exit 3"), sdk.ExecOptions{Stdin: strings.NewReader("in")})
	if err != nil || res.ExitCode != 3 || res.Stdout != "in" {
		t.Errorf("exec: %+v, %v", res, err)
	}
	var out, errs bytes.Buffer
	exit, err := sb.ExecTo(ctx, sdk.Argv("sh", "-c", "echo o; echo e >&2"), sdk.ExecOptions{}, &out, &errs)
	if err != nil || exit.ExitCode != 0 || out.String() != "o\n" || errs.String() != "e\n" {
		t.Errorf("stream: %+v %q %q, %v", exit, &out, &errs, err)
	}
	if _, err := sb.WriteFile(ctx, "d/f \xff", []byte("\x00\xff"), 0o600); err != nil {
		t.Error(err)
	}
	if got, err := sb.ReadFile(ctx, "d/f \xff", 100); err != nil || string(got) != "\x00\xff" {
		t.Errorf("read %q, %v", got, err)
	}
	for f, err := range sb.ListFiles(ctx, "d", false) {
		if err != nil || f.Name != "f \xff" || f.Mode != "0600" {
			t.Errorf("listed %+v, %v", f, err)
		}
	}
	if err := sb.RemoveFile(ctx, "nope", false); sdk.ErrorCode(err) != sdk.CodeFileNotFound {
		t.Errorf("remove: %v", err)
	}
	if info, clamped, err := sb.Extend(ctx, 48*time.Hour); err == nil || sdk.ErrorCode(err) != sdk.CodeInvalid {
		t.Errorf("extend by two days: %v %v %v", info, clamped, err)
	}
	if _, clamped, err := sb.Extend(ctx, 24*time.Hour); err != nil || !clamped {
		t.Errorf("extend: %v %v", clamped, err)
	}
	if info, err := sb.Pause(ctx); err != nil || info.Status != sdk.StatusPaused {
		t.Errorf("pause: %+v, %v", info, err)
	}
	if _, err := sb.Exec(ctx, sdk.Command("true"), sdk.ExecOptions{}); sdk.ErrorCode(err) != sdk.CodeNotRunning {
		t.Errorf("exec in a paused one: %v", err)
	}
	if info, err := sb.Resume(ctx); err != nil || info.Status != sdk.StatusRunning {
		t.Errorf("resume: %+v, %v", info, err)
	}
	empty := ""
	if info, err := sb.Update(ctx, sdk.UpdateOptions{Name: &empty, Labels: map[string]string{}}); err != nil || len(info.Labels) != 0 {
		t.Errorf("update: %+v, %v", info, err)
	}
	for one, err := range client.List(ctx, sdk.ListOptions{Status: []sdk.Status{sdk.StatusRunning}}) {
		if err != nil || one.ID != sb.ID {
			t.Errorf("list: %v, %v", one, err)
		}
	}
	key, err := client.CreateKey(ctx, "team", false)
	if err != nil || !strings.HasPrefix(key.Secret, "dfk_") {
		t.Errorf("key: %v, %v", key.ID, err)
	}
	if im, err := client.ImportImage(ctx, "mine", strings.NewReader("tar"), sdk.ImportOptions{User: "me"}); err != nil || im.User != "me" {
		t.Errorf("image: %+v, %v", im, err)
	}
	if err := sb.Delete(ctx); err != nil {
		t.Error(err)
	}
	var listed, followed []sdk.LifeEventType
	for e, err := range client.Events(ctx, sdk.EventOptions{Sandbox: sb.ID}) {
		if err != nil || e.Sandbox != sb.ID || e.Seq == 0 || e.At.IsZero() || e.Actor == "" {
			t.Errorf("event: %+v, %v", e, err)
		}
		listed = append(listed, e.Type)
	}
	for e, err := range client.Events(ctx, sdk.EventOptions{Follow: true}) {
		if err != nil || e.Type == sdk.SandboxEnded {
			followed = append(followed, e.Type)
			break
		}
	}
	if !slices.Equal(listed, []sdk.LifeEventType{sdk.SandboxAccepted, sdk.SandboxRunning, sdk.SandboxExtended, sdk.SandboxPaused, sdk.SandboxResumed, sdk.SandboxDeleting, sdk.SandboxEnded}) || len(followed) != 1 {
		t.Errorf("events: %v, followed %v", listed, followed)
	}
	if _, err := sb.Exec(ctx, sdk.Command("true"), sdk.ExecOptions{}); sdk.ErrorCode(err) != sdk.CodeGone {
		t.Errorf("exec after the end: %v", err)
	}
}
