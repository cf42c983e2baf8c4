package api

import (
	"context"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// sizeJSON is the size of a terminal.
type sizeJSON struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

func showSize(t *dayfly.TerminalSize) *sizeJSON {
	if t == nil {
		return nil
	}
	return &sizeJSON{Cols: t.Cols, Rows: t.Rows}
}

// processJSON is a process as clients see it. What tells of its end is null while it runs.
type processJSON struct {
	ID           string               `json:"id"`
	PID          int                  `json:"pid"`
	Name         *string              `json:"name"`
	Status       dayfly.ProcessStatus `json:"status"`
	Command      string               `json:"command"`
	TTY          *sizeJSON            `json:"tty"`
	StartedAt    string               `json:"started_at"`
	OnDisconnect dayfly.OnDisconnect  `json:"on_disconnect"`
	restartJSON
	loadJSON
	endJSON
	Replayed bool `json:"replayed,omitempty"` // only of a start
}

// restartJSON tells of starts after the first.
type restartJSON struct {
	Restart  dayfly.Restart `json:"restart"`
	Restarts int            `json:"restarts"`
}

// loadJSON is what a process uses and has written.
type loadJSON struct {
	CPUMS       int64 `json:"cpu_ms"`
	MemoryBytes int64 `json:"memory_bytes"`
	Processes   int   `json:"processes"`
	StdoutBytes int64 `json:"stdout_bytes"`
	StderrBytes int64 `json:"stderr_bytes"`
}

// endJSON is how a process ended.
type endJSON struct {
	ExitCode   *int    `json:"exit_code"`
	Signal     *string `json:"signal"`
	TimedOut   bool    `json:"timed_out"`
	OOMKilled  bool    `json:"oom_killed"`
	DurationMS *int64  `json:"duration_ms"`
}

func showProcessAt(p dayfly.Process, now dayfly.Instant) processJSON {
	out := processJSON{
		ID: p.ID, PID: p.PID, Name: orNull(p.Name), Status: p.Status, Command: p.Command, TTY: showSize(p.Terminal),
		StartedAt: stamp(now.Wall.Add(-p.StartedAgo)), OnDisconnect: p.OnDisconnect,
		restartJSON: restartJSON{Restart: p.Restart, Restarts: p.Restarts},
		loadJSON: loadJSON{CPUMS: p.CPU.Milliseconds(), MemoryBytes: p.MemoryBytes, Processes: p.Processes,
			StdoutBytes: p.StdoutBytes, StderrBytes: p.StderrBytes},
	}
	if out.OnDisconnect == "" {
		out.OnDisconnect = dayfly.DisconnectGrace
	}
	if out.Restart == "" {
		out.Restart = dayfly.RestartNever
	}
	if e := p.Exit; e != nil {
		took := e.Duration.Milliseconds()
		out.endJSON = endJSON{ExitCode: &e.Code, Signal: orNull(e.Signal), TimedOut: e.TimedOut, OOMKilled: e.OOMKilled, DurationMS: &took}
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

// processFilter selects processes. Empty fields do not restrict.
type processFilter struct {
	paging
	name   string
	status dayfly.ProcessStatus
}

func parseProcesses(q *query) processFilter {
	f := processFilter{paging: parsePaging(q)}
	if name, given := q.text("name"); given {
		if problem := processNameProblem(name); problem != "" {
			q.bad.add("name", "%s", problem)
		}
		f.name = name
	}
	status, _ := q.choice("status", string(dayfly.ProcessRunning), string(dayfly.ProcessExited))
	f.status = dayfly.ProcessStatus(status)
	return f
}

func (f processFilter) leavesOut(p dayfly.Process) bool {
	return f.name != "" && p.Name != f.name || f.status != "" && p.Status != f.status
}

func listProcesses(c *call, f processFilter) error {
	m, err := c.machine()
	if err != nil {
		return err
	}
	all, err := m.Processes(c.ctx())
	if err != nil {
		return err
	}
	now := c.backend.Now()
	return answerPage(c, f.paging, slices.DeleteFunc(all, f.leavesOut), func(p dayfly.Process) string { return p.ID },
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
	if text := c.r.Header.Get("Last-Event-ID"); text != "" {
		at, ok := parseMark(text)
		if !ok {
			return dayfly.Errorf(dayfly.CodeInvalid, "the header Last-Event-ID must be the id of an event of this stream")
		}
		r.from = at
	}
	ctx, leave, done := c.untilStop() // whoever follows comes back, so he need not hold up a server that stops
	defer done()
	stream, err := m.Output(ctx, id, r.from, r.follow)
	if err != nil {
		return err
	}
	format, _ := streamFormat(c.r.Header)
	return c.follow(followed{id: id, stream: stream, ctx: ctx, leave: leave, from: r.from, toEnd: r.follow}, format)
}

// awaitMax bounds a wait, awaitDefault is how long it takes at most unless asked.
const (
	awaitMax     = 24 * time.Hour
	awaitDefault = time.Minute
)

func parseAwait(q *query) time.Duration {
	return time.Duration(q.integer("timeout_ms", 0, awaitMax.Milliseconds(), awaitDefault.Milliseconds())) * time.Millisecond
}

// awaitProcess answers once a process has exited, or the time is over.
func awaitProcess(c *call, timeout time.Duration) error {
	m, id, err := c.process()
	if err != nil {
		return err
	}
	c.mayTakeLong(http.StatusOK)
	ctx, cancel := context.WithTimeout(c.ctx(), timeout)
	defer cancel()
	p, err := m.Await(ctx, id)
	if err != nil && ctx.Err() != nil {
		p, err = m.Process(c.ctx(), id)
	}
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, showProcessAt(p, c.backend.Now()))
}

func resizeProcess(c *call, size dayfly.TerminalSize) error {
	m, id, err := c.process()
	if err != nil {
		return err
	}
	show := func(ctx context.Context) (processJSON, error) {
		p, err := m.Process(ctx, id)
		return showProcessAt(p, c.backend.Now()), err
	}
	return c.once(func(ctx context.Context) (control.Answer, error) {
		if err := m.Resize(ctx, id, size); err != nil {
			return control.Answer{}, err
		}
		p, err := show(ctx)
		if err != nil {
			return control.Answer{}, err
		}
		body, err := encode(p)
		return control.Answer{Status: http.StatusOK, Body: body, Kept: []byte("{}")}, err
	}, func([]byte) (any, error) { return show(c.ctx()) })
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

// stdinWrite is a write to standard input: at an offset, or behind all that was written.
type stdinWrite struct {
	offset     int64 // or dayfly.StdinNext
	closeAfter bool
}

func parseStdin(q *query) stdinWrite {
	return stdinWrite{closeAfter: q.flag("close"), offset: q.integer("offset", 0, math.MaxInt64, dayfly.StdinNext)}
}

// stdinJSON answers a write to standard input.
type stdinJSON struct {
	ID         string `json:"id"`
	Closed     bool   `json:"closed"`
	StdinBytes *int64 `json:"stdin_bytes"` // accepted so far; null: the sandbox's agent is too old to count
}

// writeStdin needs no idempotency key where there is an offset: the process knows what it has.
func writeStdin(c *call, in stdinWrite) error {
	m, id, err := c.process()
	if err != nil {
		return err
	}
	c.answerEarly()
	c.afterBody(http.StatusOK)
	write := func(ctx context.Context) (control.Answer, error) {
		accepted, err := m.WriteStdinAt(ctx, id, in.offset, c.r.Body, in.closeAfter)
		if err != nil {
			return control.Answer{}, c.bodyError(err)
		}
		shown := stdinJSON{ID: id, Closed: in.closeAfter}
		if accepted != dayfly.StdinNext {
			shown.StdinBytes = &accepted
		}
		return kept(http.StatusOK, shown)
	}
	if in.offset == dayfly.StdinNext {
		return c.once(write, nil)
	}
	a, err := write(c.ctx())
	if err != nil {
		return err
	}
	return c.answerBytes(a.Status, a.Body)
}

// bodyError tells a failure of the client's own stream from one of the backend.
func (c *call) bodyError(err error) error {
	if body, ok := c.r.Body.(*requestBody); ok && body.failed() != nil {
		return cutBody(body.failed())
	}
	return err
}
