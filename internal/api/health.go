package api

import "net/http"

// healthJSON tells that the process lives.
type healthJSON struct {
	OK      bool   `json:"ok"`
	Version string `json:"version"`
}

func health(c *call, _ struct{}) error {
	return c.answer(http.StatusOK, healthJSON{OK: true, Version: c.version})
}

// readyJSON tells whether work is taken, and if not why.
type readyJSON struct {
	Ready    bool          `json:"ready"`
	Problems []problemJSON `json:"problems"`
	Degraded []stuckJSON   `json:"degraded"`
	Version  string        `json:"version"`
}

// stuckJSON is a step of a teardown that fails and is tried again. It keeps no work from being taken.
type stuckJSON struct {
	Sandbox string `json:"sandbox"`
	Step    string `json:"step"`
	Since   string `json:"since"`
	Tries   int    `json:"tries"`
}

type problemJSON struct {
	Component string `json:"component"`
	Message   string `json:"message"`
}

func ready(c *call, _ struct{}) error {
	out := readyJSON{Ready: true, Problems: []problemJSON{}, Degraded: []stuckJSON{}, Version: c.version}
	status := http.StatusOK
	for _, p := range c.backend.Ready(c.ctx()) {
		out.Problems = append(out.Problems, problemJSON{p.Component, p.Message})
		out.Ready, status = false, http.StatusServiceUnavailable
	}
	now := c.backend.Now()
	for _, s := range c.backend.Stuck() {
		out.Degraded = append(out.Degraded, stuckJSON{s.Sandbox, s.Step, stamp(s.At(now)), s.Tries})
	}
	return c.answer(status, out)
}
