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
	Version  string        `json:"version"`
}

type problemJSON struct {
	Component string `json:"component"`
	Message   string `json:"message"`
}

func ready(c *call, _ struct{}) error {
	out := readyJSON{Ready: true, Problems: []problemJSON{}, Version: c.version}
	status := http.StatusOK
	for _, p := range c.backend.Ready(c.ctx()) {
		out.Problems = append(out.Problems, problemJSON{p.Component, p.Message})
		out.Ready, status = false, http.StatusServiceUnavailable
	}
	return c.answer(status, out)
}
