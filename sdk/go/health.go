package dayfly

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"
)

// Readiness is whether a server takes work, and why not.
type Readiness struct {
	Ready    bool      `json:"ready"`
	Problems []Problem `json:"problems"`
	Degraded []Stuck   `json:"degraded"` // keeps no work from being taken
	Version  string    `json:"version"`
}

// Problem is one thing that keeps a server from being ready.
type Problem struct {
	Component string `json:"component"`
	Message   string `json:"message"`
}

// Stuck is a step of a sandbox's teardown that fails and is tried again. It leaves the list when it is done.
type Stuck struct {
	Sandbox string    `json:"sandbox"`
	Step    string    `json:"step"`
	Since   time.Time `json:"since"`
	Tries   int       `json:"tries"` // that failed
}

// Healthy tells, by a nil error, that a server answers at all. It needs no key.
func (c *Client) Healthy(ctx context.Context) error {
	return c.do(ctx, call{method: http.MethodGet, path: "/healthz"}, nil)
}

// Ready asks once whether the server takes work. It needs no key. A server that is not ready is no error.
func (c *Client) Ready(ctx context.Context) (Readiness, error) {
	var r Readiness
	req, _, err := c.request(ctx, call{method: http.MethodGet, path: "/readyz"}, nil)
	if err != nil {
		return r, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return r, c.transportError(ctx, err)
	}
	defer release(resp.Body)
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusServiceUnavailable {
		return r, answerError(resp)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, errorBodyMax)).Decode(&r); err != nil {
		return r, &Error{Code: CodeBadAnswer, Status: resp.StatusCode, Message: c.URL() + " answered something that is not an answer of Dayfly"}
	}
	return r, nil
}
