package api

import (
	"context"
	"math"
	"net/http"
	"slices"
	"strings"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// processJSON is a process as clients see it. What tells of its end is null while it runs.
type processJSON struct {
	ID           string               `json:"id"`
	PID          int                  `json:"pid"`
	Status       dayfly.ProcessStatus `json:"status"`
	Command      string               `json:"command"`
	StartedAt    string               `json:"started_at"`
	OnDisconnect dayfly.OnDisconnect  `json:"on_disconnect"`
	StdoutBytes  int64                `json:"stdout_bytes"`
	StderrBytes  int64                `json:"stderr_bytes"`
	ExitCode     *int                 `json:"exit_code"`
	Signal       *string              `json:"signal"`
	TimedOut     bool                 `json:"timed_out"`
	OOMKilled    bool                 `json:"oom_killed"`
	DurationMS   *int64               `json:"duration_ms"`
}

func showProcessAt(p dayfly.Process, now dayfly.Instant) processJSON {
	out := processJSON{
		ID: p.ID, PID: p.PID, Status: p.Status, Command: p.Command, StartedAt: stamp(now.Wall.Add(-p.StartedAgo)),
		OnDisconnect: p.OnDisconnect, StdoutBytes: p.StdoutBytes, StderrBytes: p.StderrBytes,
	}
	if out.OnDisconnect == "" {
		out.OnDisconnect = dayfly.DisconnectGrace
	}
	if e := p.Exit; e != nil {
		took := e.Duration.Milliseconds()
		out.ExitCode, out.Signal, out.DurationMS = &e.Code, orNull(e.Signal), &took
		out.TimedOut, out.OOMKilled = e.TimedOut, e.OOMKilled
	}
	return out
}

// process is the machine of the path's sandbox and the id of the path's process.
func (c *call) process() (control.Machine, string, error) {
	m, err := c.machine()
	if err != nil {
		return nil, "", err
	}
	id := c.r.PathValue("pid")
	if !dayfly.ValidID(dayfly.PrefixProcess, id) {
		return nil, "", dayfly.Errorf(dayfly.CodeNotFound, "there is no such process").
			WithHint("ids are %q and 20 letters and digits, as exec answers them", dayfly.PrefixProcess)
	}
	return m, id, nil
}

func listProcesses(c *call, p paging) error {
	m, err := c.machine()
	if err != nil {
		return err
	}
	all, err := m.Processes(c.ctx())
	if err != nil {
		return err
	}
	now := c.backend.Now()
	return answerPage(c, p, all, func(p dayfly.Process) string { return p.ID },
		func(p dayfly.Process) processJSON { return showProcessAt(p, now) })
}

func showProcess(c *call, _ struct{}) error {
	m, id, err := c.process()
	if err != nil {
		return err
	}
	p, err := m.Process(c.ctx(), id)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, showProcessAt(p, c.backend.Now()))
}

// resumption says from where on to read a process's output.
type resumption struct {
	from   dayfly.Offsets
	follow bool
}

func parseOutput(q *query) resumption {
	var r resumption
	r.from.Stdout = q.integer("stdout_offset", 0, math.MaxInt64, 0)
	r.from.Stderr = q.integer("stderr_offset", 0, math.MaxInt64, 0)
	r.follow = q.flag("follow")
	return r
}

func followOutput(c *call, r resumption) error {
	m, id, err := c.process()
	if err != nil {
		return err
	}
	output, err := m.Output(c.ctx(), id, r.from, r.follow)
	if err != nil {
		return err
	}
	f, _ := streamFormat(c.r.Header)
	return c.follow(id, output, f, r.follow, false /* replayed */)
}

// signals are those that can be sent, without SIG.
var signals = []string{"HUP", "INT", "QUIT", "ABRT", "KILL", "USR1", "USR2", "ALRM", "TERM", "CONT", "STOP", "TSTP", "WINCH"}

// signalJSON asks for a signal and answers it.
type signalJSON struct {
	ID     string `json:"id"`
	Signal string `json:"signal"`
	Tree   bool   `json:"tree"`
}

func parseSignal(f *fields) signalJSON {
	s := signalJSON{Signal: "TERM"}
	if name, given := f.text("signal"); given {
		s.Signal = strings.TrimPrefix(strings.ToUpper(name), "SIG")
		if !slices.Contains(signals, s.Signal) {
			f.wrong("signal", "must be one of %s", strings.Join(signals, ", "))
		}
	}
	s.Tree, _ = f.flag("tree")
	return s
}

func signalProcess(c *call, s signalJSON) error {
	m, id, err := c.process()
	if err != nil {
		return err
	}
	s.ID = id
	return c.once(func(ctx context.Context) (control.Answer, error) {
		if err := m.Signal(ctx, id, s.Signal, s.Tree); err != nil {
			return control.Answer{}, err
		}
		return kept(http.StatusOK, s)
	}, nil)
}

func parseStdin(q *query) (closeAfter bool) { return q.flag("close") }

// stdinJSON answers a write to standard input.
type stdinJSON struct {
	ID     string `json:"id"`
	Closed bool   `json:"closed"`
}

func writeStdin(c *call, closeAfter bool) error {
	m, id, err := c.process()
	if err != nil {
		return err
	}
	c.answerEarly()
	c.afterBody(http.StatusOK)
	return c.once(func(ctx context.Context) (control.Answer, error) {
		if err := m.WriteStdin(ctx, id, c.r.Body, closeAfter); err != nil {
			return control.Answer{}, c.bodyError(err)
		}
		return kept(http.StatusOK, stdinJSON{ID: id, Closed: closeAfter})
	}, nil)
}

// bodyError tells a failure of the client's own stream from one of the backend.
func (c *call) bodyError(err error) error {
	if body, ok := c.r.Body.(*requestBody); ok && body.failed() != nil {
		return cutBody(body.failed())
	}
	return err
}
