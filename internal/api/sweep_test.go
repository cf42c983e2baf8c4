package api_test

import (
	"errors"
	"testing"

	"dayfly.dev/dayfly/internal/control"
	sdk "dayfly.dev/dayfly/sdk/go"
)

func TestSweepIsForAdmins(t *testing.T) {
	b := newBed(t, nil)
	b.node.mu.Lock()
	b.node.swept = control.Swept{Findings: []control.Finding{
		{Kind: "disk", Name: "sb1", Sandbox: "sb1", Why: "it has no lease", Done: "removed"},
		{Kind: "lease", Name: "sb2", Sandbox: "sb2", Why: "its lease is over", Done: "it is tried again", Failed: true},
	}}
	b.node.sweepErr = errors.New("sb2 is stuck")
	b.node.mu.Unlock()
	golden(t, "sweep", b.json("POST", "/v1/sweep", ``).ok(t, 200).body)
	b.json("POST", "/v1/sweep", `{"force":true}`).want(t, 400, "invalid_request")
	team := *b
	team.key = b.json("POST", "/v1/keys", `{"account":"team"}`).ok(t, 201).json(t)["secret"].(string)
	team.json("POST", "/v1/sweep", ``).want(t, 403, "forbidden")

	client, err := sdk.New(sdk.Options{URL: b.url, APIKey: b.key, DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := client.Sweep(t.Context()); err != nil || len(s.Findings) != 2 || s.Findings[0].Kind != "disk" || !s.Findings[1].Failed || s.Left != 0 {
		t.Errorf("swept %+v, %v", s, err)
	}
	b.node.mu.Lock()
	b.node.swept = control.Swept{}
	b.node.mu.Unlock()
	b.json("POST", "/v1/sweep", ``).want(t, 500, "internal")
}
