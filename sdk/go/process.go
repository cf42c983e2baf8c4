package dayfly

import (
	"bytes"
	"context"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// ProcessStatus is running or exited.
type ProcessStatus string

// The statuses of a process.
const (
	ProcessRunning ProcessStatus = "running"
	ProcessExited  ProcessStatus = "exited"
)

// Restart says whether a process is started again after it ended.
type Restart string

// The choices. Never is the default.
const (
	RestartNever     Restart = "never"
	RestartOnFailure Restart = "on-failure" // after an end with an exit code other than 0 that nobody asked for
)

// TerminalSize is the size of a terminal in characters, each side 1 to 1000.
type TerminalSize struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

// Process is the server's record of one command in a sandbox.
type Process struct {
	ID           string        `json:"id"`
	PID          int           `json:"pid"` // inside the sandbox
	Name         string        `json:"name"`
	Status       ProcessStatus `json:"status"`
	Command      string        `json:"command"`
	Terminal     *TerminalSize `json:"tty"` // nil: pipes
	Restart      Restart       `json:"restart"`
	Restarts     int           `json:"restarts"` // how often it was started again
	StartedAt    *time.Time    `json:"started_at"`
	OnDisconnect OnDisconnect  `json:"on_disconnect"`
	ExitCode     *int          `json:"exit_code"` // nil while it runs
	Signal       string        `json:"signal"`
	TimedOut     bool          `json:"timed_out"`
	OOMKilled    bool          `json:"oom_killed"`
	DurationMS   *int64        `json:"duration_ms"`  // nil while it runs
	CPUMS        int64         `json:"cpu_ms"`       // with all its descendants
	MemoryBytes  int64         `json:"memory_bytes"` // alike
	Processes    int           `json:"processes"`    // living ones, itself among them
	StdoutBytes  int64         `json:"stdout_bytes"` // written so far
	StderrBytes  int64         `json:"stderr_bytes"`
}

// ProcessOptions say how to run a command in the background. The zero value runs it as the image's user, in the home
// directory, without input, until it ends or its sandbox does.
type ProcessOptions struct {
	Name    string            // unique among the sandbox's running processes: 1–63 of [a-zA-Z0-9_.-]; or empty
	Cwd     string            // relative to the home directory; empty: the home directory
	Env     map[string]string // on top of the sandbox's own
	User    string            // name or uid inside; empty: the image's user
	Timeout time.Duration     // rounded up to milliseconds; 0: none
	// Terminal runs it on a terminal of this size, whose input stays open and whose output is all stdout; or nil for pipes.
	Terminal *TerminalSize
	Restart  Restart // empty: RestartNever
	Restarts int     // at most so often, 1–100; 0: the server's default of 5
	// Stdin is text that it reads first, or empty. OpenStdin keeps its input open after that, for WriteStdin.
	Stdin        string
	OpenStdin    bool
	OnDisconnect OnDisconnect // empty: DisconnectContinue
	// IdempotencyKey starts one process however often it is called with the same key, or is empty for a new one.
	IdempotencyKey string
}

type processBody struct {
	execBody
	Name     string        `json:"name,omitempty"`
	Terminal *TerminalSize `json:"tty,omitempty"`
	Restart  Restart       `json:"restart,omitempty"`
	Restarts int           `json:"restarts,omitempty"`
}

// Start starts a command in the background and returns once it runs. CodeConflict: a running process has the name.
func (s *Sandbox) Start(ctx context.Context, cmd Cmd, o ProcessOptions) (Process, error) {
	common, err := newExecBody(cmd, ExecOptions{Cwd: o.Cwd, Env: o.Env, User: o.User, Timeout: o.Timeout, OnDisconnect: o.OnDisconnect})
	if err == nil {
		err = checkText(texts{"name": {o.Name}, "stdin": {o.Stdin}})
	}
	if err != nil {
		return Process{}, err
	}
	common.StdinOpen = o.OpenStdin
	if o.Stdin != "" {
		common.Stdin = &o.Stdin
	}
	body := processBody{execBody: common, Name: o.Name, Terminal: o.Terminal, Restart: o.Restart, Restarts: o.Restarts}
	return s.processCall(ctx, call{method: http.MethodPost, path: s.path("/processes"), json: body, key: o.IdempotencyKey})
}

// ProcessListOptions choose among the commands of a sandbox. The zero value is all that the server still knows.
type ProcessListOptions struct {
	Name   string        // or empty
	Status ProcessStatus // or empty
}

// Processes goes through the commands of a sandbox that the server still knows. It ends after the first error.
func (s *Sandbox) Processes(ctx context.Context, o ProcessListOptions) iter.Seq2[Process, error] {
	query := url.Values{}
	if o.Name != "" {
		query.Set("name", o.Name)
	}
	if o.Status != "" {
		query.Set("status", string(o.Status))
	}
	return pages[Process](ctx, s.client, s.path("/processes"), query, pageSize)
}

// Process asks for one command. CodeGone: it is no longer kept.
func (s *Sandbox) Process(ctx context.Context, id string) (Process, error) {
	return s.processCall(ctx, call{method: http.MethodGet, path: s.processPath(id)})
}

// waitStep is how long one request waits: less than what a proxy on the way may allow to stay without an answer's end.
const waitStep = 50 * time.Second

// WaitProcess waits for the end of a command and gives its record: with status running when timeout passed first. 0 waits as
// long as ctx allows. A connection that breaks is taken up again. CodeGone: the sandbox ended first.
func (s *Sandbox) WaitProcess(ctx context.Context, id string, timeout time.Duration) (Process, error) {
	began := time.Now()
	for {
		step := nextStep(began, timeout)
		p, err := s.processCall(ctx, call{method: http.MethodGet, path: s.processPath(id) + "/wait",
			query: url.Values{"timeout_ms": {milliseconds(step)}}, patience: resumeFor})
		if err != nil || p.Status != ProcessRunning || timeout > 0 && time.Since(began) >= timeout {
			return p, err
		}
	}
}

// WaitPort waits until something inside listens on a TCP port and tells whether it does; false when timeout passed first. 0
// waits as long as ctx allows.
func (s *Sandbox) WaitPort(ctx context.Context, port int, timeout time.Duration) (listening bool, err error) {
	began := time.Now()
	for {
		var answer struct {
			Listening bool `json:"listening"`
		}
		step := nextStep(began, timeout)
		err := s.client.do(ctx, call{method: http.MethodGet, path: s.path("/ports/" + strconv.Itoa(port) + "/wait"),
			query: url.Values{"timeout_ms": {milliseconds(step)}}, patience: resumeFor}, &answer)
		if err != nil || answer.Listening || timeout > 0 && time.Since(began) >= timeout {
			return answer.Listening, err
		}
	}
}

// nextStep is how long the next request may wait of a timeout that began some time ago.
func nextStep(began time.Time, timeout time.Duration) time.Duration {
	if timeout <= 0 {
		return waitStep
	}
	return max(0, min(waitStep, timeout-time.Since(began)))
}

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}

// Signal sends a signal (TERM, KILL, INT, …) to a command; tree sends it to all its descendants too.
func (s *Sandbox) Signal(ctx context.Context, process, signal string, tree bool) error {
	body := map[string]any{"signal": signal, "tree": tree}
	return s.client.do(ctx, call{method: http.MethodPost, path: s.processPath(process) + "/signal", json: body}, nil)
}

// Resize gives a command's terminal another size. CodeConflict: it has no terminal.
func (s *Sandbox) Resize(ctx context.Context, process string, size TerminalSize) (Process, error) {
	return s.processCall(ctx, call{method: http.MethodPost, path: s.processPath(process) + "/resize", json: size})
}

// WriteStdin gives a command input; end closes its input after that. It blocks while the command does not read. Several may write to one
// command. Input is never delivered twice: CodeUnreachable says that the connection broke and some of p may have arrived; see WriteStdinAt.
// CodeConflict: it reads no more. CodeGone: it has ended.
func (s *Sandbox) WriteStdin(ctx context.Context, process string, p []byte, end bool) error {
	for first := true; first || len(p) > 0; first = false {
		n := min(len(p), stdinChunk)
		if _, err := s.writeStdin(ctx, process, stdinNext, p[:n], end && n == len(p)); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// WriteStdinAt is WriteStdin for the only writer of a command: p begins at that byte of all the input that the command was ever given, its
// first at 0. What it has already is skipped, so that p is delivered once however often the connection breaks and the server restarts, and
// an input may be repeated from an earlier offset on. It gives how many bytes the command has accepted. CodeConflict: p would leave a gap,
// the command reads no more, or its sandbox is from before such writes.
func (s *Sandbox) WriteStdinAt(ctx context.Context, process string, offset int64, p []byte, end bool) (accepted int64, err error) {
	if offset < 0 {
		return 0, &Error{Code: CodeInvalid, Message: "the offset of input must not be negative"}
	}
	for first := true; first || len(p) > 0; first = false {
		n := min(len(p), stdinChunk)
		has, err := s.writeStdin(ctx, process, offset, p[:n], end && n == len(p))
		if err != nil {
			return accepted, err
		}
		if has == nil {
			return accepted, &Error{Code: CodeBadAnswer, Message: "the server did not tell how much input the command has"}
		}
		accepted, offset, p = *has, offset+int64(n), p[n:]
	}
	return accepted, nil
}

// stdinNext as an offset appends to what a command was given.
const stdinNext int64 = -1

// writeStdin sends at most stdinChunk. It gives how much the command has accepted, or nil when the sandbox is too old to count.
func (s *Sandbox) writeStdin(ctx context.Context, process string, offset int64, p []byte, end bool) (*int64, error) {
	k := call{
		method: http.MethodPost, path: s.processPath(process) + "/stdin", query: url.Values{},
		header:   http.Header{"Content-Type": {"application/octet-stream"}},
		body:     func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p)), nil },
		patience: resumeFor, repeatable: true, deliver: len(p) > 0 && offset == stdinNext,
	}
	if end {
		k.query.Set("close", "true")
	}
	if offset != stdinNext {
		k.query.Set("offset", offsetText(offset))
	}
	var answer struct {
		StdinBytes *int64 `json:"stdin_bytes"`
	}
	err := s.client.do(ctx, k, &answer)
	return answer.StdinBytes, err
}

func (s *Sandbox) processCall(ctx context.Context, k call) (Process, error) {
	var p Process
	err := s.client.do(ctx, k, &p)
	return p, err
}

func (s *Sandbox) processPath(id string) string { return s.path("/processes/" + segment(id)) }
