package api

import (
	"net/http"

	"dayfly.dev/dayfly/internal/control"
)

// sweptJSON is what passes of the reconciler found and did.
type sweptJSON struct {
	Findings []findingJSON `json:"findings"`
	Ended    []string      `json:"ended"`
	Left     int           `json:"left"`
}

type findingJSON struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Sandbox string `json:"sandbox"`
	Why     string `json:"why"`
	Done    string `json:"done"`
	Failed  bool   `json:"failed"`
}

// sweep needs no idempotency key: a second one finds less.
func sweep(c *call, _ struct{}) error {
	swept, err := c.backend.Reconcile(c.ctx(), c.who)
	if err != nil && len(swept.Findings) == 0 {
		return err
	} // else the findings tell what failed, the log why
	return c.answer(http.StatusOK, showSwept(swept))
}

func showSwept(s control.Swept) sweptJSON {
	out := sweptJSON{Findings: []findingJSON{}, Ended: []string{}, Left: s.Left}
	for _, f := range s.Findings {
		out.Findings = append(out.Findings, findingJSON(f))
	}
	for _, e := range s.Ended {
		out.Ended = append(out.Ended, e.ID)
	}
	return out
}
