package dayfly

import (
	"context"
	"iter"
	"net/http"
	"time"
)

// Process is the server's record of one command in a sandbox.
type Process struct {
	ID          string     `json:"id"`
	PID         int        `json:"pid"`    // inside the sandbox
	Status      string     `json:"status"` // running or exited
	Command     string     `json:"command"`
	StartedAt   *time.Time `json:"started_at"`
	ExitCode    *int       `json:"exit_code"` // nil while it runs
	Signal      string     `json:"signal"`
	TimedOut    bool       `json:"timed_out"`
	OOMKilled   bool       `json:"oom_killed"`
	StdoutBytes int64      `json:"stdout_bytes"`
	StderrBytes int64      `json:"stderr_bytes"`
}

// Processes goes through the commands of a sandbox that the server still knows, running and ended.
func (s *Sandbox) Processes(ctx context.Context) iter.Seq2[Process, error] {
	return pages[Process](ctx, s.client, s.path("/processes"), nil, pageSize)
}

// Process asks for one command. CodeGone: it is no longer kept.
func (s *Sandbox) Process(ctx context.Context, id string) (Process, error) {
	var p Process
	err := s.client.do(ctx, call{method: http.MethodGet, path: s.processPath(id)}, &p)
	return p, err
}

// Signal sends a signal (TERM, KILL, INT, …) to a command; tree sends it to all its descendants too.
func (s *Sandbox) Signal(ctx context.Context, process, signal string, tree bool) error {
	body := map[string]any{"signal": signal, "tree": tree}
	return s.client.do(ctx, call{method: http.MethodPost, path: s.processPath(process) + "/signal", json: body}, nil)
}

func (s *Sandbox) processPath(id string) string { return s.path("/processes/" + segment(id)) }
