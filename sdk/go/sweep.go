package dayfly

import (
	"context"
	"net/http"
)

// Swept is what the server found on its host that no sandbox owned, and did about it.
type Swept struct {
	Findings []Finding `json:"findings"`
	Ended    []string  `json:"ended"` // ids of sandboxes that ran by their records only
	Left     int       `json:"left"`  // sandboxes whose leftovers wait for the next pass
}

// Finding is one object that no sandbox owned.
type Finding struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Sandbox string `json:"sandbox"` // whose it was
	Why     string `json:"why"`
	Done    string `json:"done"`
	Failed  bool   `json:"failed"` // it could not be removed and is tried again
}

// Sweep has the server compare its host with its records now and remove what no sandbox owns, also where it stopped because
// that is most of what lives. It needs an admin key.
func (c *Client) Sweep(ctx context.Context) (Swept, error) {
	var s Swept
	err := c.do(ctx, call{method: http.MethodPost, path: "/v1/sweep", json: struct{}{}}, &s)
	return s, err
}
