package dayfly

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"
	"unicode/utf8"
)

// Cmd is what to run. Make it with Command or Argv.
type Cmd struct {
	command string
	argv    []string
}

// Command is a text for the sandbox's shell: bash, else sh.
func Command(text string) Cmd { return Cmd{command: text} }

// Argv is a program and its arguments, without a shell.
func Argv(argv ...string) Cmd { return Cmd{argv: argv} }

// OnDisconnect says what becomes of a command whose last client went away.
type OnDisconnect string

// The choices. Empty leaves it to the server: killed after 30 seconds.
const (
	DisconnectKill     OnDisconnect = "kill"
	DisconnectContinue OnDisconnect = "continue"
)

// ExecOptions say how to run a command. The zero value runs it as the image's user, in the home directory, without input.
type ExecOptions struct {
	Cwd     string            // relative to the home directory; empty: the home directory
	Env     map[string]string // on top of the sandbox's own
	User    string            // name or uid inside; empty: the image's user
	Timeout time.Duration     // rounded up to milliseconds; 0: the server's default of 10 minutes
	// Stdin is passed to the command, whatever its size, or is nil for end of file at once. A Read that blocks beyond the end
	// of the command is not waited for.
	Stdin        io.Reader
	OnDisconnect OnDisconnect
	// Check turns an exit code other than 0 into an *ExitError.
	Check bool
	// IdempotencyKey makes this command run once however often it is called with the same key, or is empty for a new one.
	IdempotencyKey string
}

// Exit is how a command ended.
type Exit struct {
	ID          string `json:"id"`
	ExitCode    int    `json:"exit_code"` // 128+n after death by signal n; 126 and 127 as a shell gives them
	Signal      string `json:"signal"`    // KILL, TERM, …; empty unless it died of one
	TimedOut    bool   `json:"timed_out"`
	OOMKilled   bool   `json:"oom_killed"`
	StdoutBytes int64  `json:"stdout_bytes"` // everything that was written
	StderrBytes int64  `json:"stderr_bytes"`
	DurationMS  int64  `json:"duration_ms"`
}

// Result is a finished command with its output.
type Result struct {
	Exit
	Stdout    string // exact bytes
	Stderr    string
	Truncated bool // the middle of a stream was left out
	Replayed  bool // an earlier call with the same idempotency key ran it
}

type execBody struct {
	Command      string            `json:"command,omitempty"`
	Argv         []string          `json:"argv,omitempty"`
	Cwd          string            `json:"cwd,omitempty"`
	Env          map[string]string `json:"env,omitempty"`
	User         string            `json:"user,omitempty"`
	Stdin        *string           `json:"stdin,omitempty"`
	StdinOpen    bool              `json:"stdin_open,omitempty"`
	TimeoutMS    int64             `json:"timeout_ms,omitempty"`
	Stream       bool              `json:"stream,omitempty"`
	OnDisconnect OnDisconnect      `json:"on_disconnect,omitempty"`
}

func newExecBody(cmd Cmd, o ExecOptions) (execBody, error) {
	b := execBody{
		Command: cmd.command, Argv: cmd.argv, Cwd: o.Cwd, Env: o.Env, User: o.User, OnDisconnect: o.OnDisconnect,
		TimeoutMS: int64((o.Timeout + time.Millisecond - 1) / time.Millisecond),
	}
	return b, checkText(texts{"command": {cmd.command}, "argv": cmd.argv, "cwd": {o.Cwd}, "user": {o.User}}, o.Env)
}

// stdinInlineMax is the most input, in bytes, that travels inside the request.
const stdinInlineMax = 256 << 10

// Exec runs a command to its end. An exit code other than 0 is a result unless o.Check is set. CodeGone: the sandbox ended
// first. When the connection breaks, the call attaches to the same command again.
func (s *Sandbox) Exec(ctx context.Context, cmd Cmd, o ExecOptions) (*Result, error) {
	body, err := newExecBody(cmd, o)
	if err != nil {
		return nil, err
	}
	if o.Stdin != nil {
		head, rest, err := inline(o.Stdin)
		if err != nil {
			return nil, err
		}
		if rest != nil {
			o.Stdin = rest
			return s.execStreamed(ctx, cmd, o)
		}
		body.Stdin = &head
	}
	var answer struct {
		Exit
		Stdout    string `json:"stdout"`
		Stderr    string `json:"stderr"`
		StdoutB64 []byte `json:"stdout_b64"`
		StderrB64 []byte `json:"stderr_b64"`
		Truncated bool   `json:"truncated"`
		Replayed  bool   `json:"replayed"`
	}
	k := call{method: http.MethodPost, path: s.path("/exec"), json: body, key: o.IdempotencyKey}
	if err := s.client.do(ctx, k, &answer); err != nil {
		return nil, err
	}
	r := &Result{Exit: answer.Exit, Stdout: answer.Stdout, Stderr: answer.Stderr, Truncated: answer.Truncated, Replayed: answer.Replayed}
	if answer.StdoutB64 != nil {
		r.Stdout = string(answer.StdoutB64)
	}
	if answer.StderrB64 != nil {
		r.Stderr = string(answer.StderrB64)
	}
	return r, r.check(o.Check)
}

// inline reads input that is short text. Anything else comes back as a reader of all of it.
func inline(r io.Reader) (text string, rest io.Reader, err error) {
	head, err := io.ReadAll(io.LimitReader(r, stdinInlineMax+1))
	if err != nil {
		return "", nil, localError("read the input of the command", err)
	}
	if len(head) > stdinInlineMax || !utf8.Valid(head) {
		return "", io.MultiReader(bytes.NewReader(head), r), nil
	}
	return string(head), nil, nil
}

// execStreamed runs a command whose input does not fit into a request and keeps as much output as a plain answer would.
func (s *Sandbox) execStreamed(ctx context.Context, cmd Cmd, o ExecOptions) (*Result, error) {
	var stdout, stderr capture
	exit, err := s.ExecTo(ctx, cmd, o, &stdout, &stderr)
	if exit == nil {
		return nil, err
	}
	r := &Result{Exit: *exit, Stdout: stdout.String(), Stderr: stderr.String(), Truncated: stdout.cut || stderr.cut}
	return r, r.check(o.Check)
}

// ExecTo runs a command and copies its output while it is written. A nil writer drops its stream. It ends early, with
// CodeLocal, when a writer fails; the server then ends the command as ExecOptions.OnDisconnect says.
func (s *Sandbox) ExecTo(ctx context.Context, cmd Cmd, o ExecOptions, stdout, stderr io.Writer) (*Exit, error) {
	stream, err := s.ExecStream(ctx, cmd, o)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	exit, err := stream.CopyTo(stdout, stderr)
	if err != nil {
		return nil, err
	}
	return exit, (&Result{Exit: *exit}).check(o.Check)
}

func (r *Result) check(want bool) error {
	if want && r.ExitCode != 0 {
		return &ExitError{Result: r}
	}
	return nil
}

// captureMax is how much of a stream is kept, in bytes: half of it head, half tail.
const captureMax = 1 << 20

// capture keeps the head and tail of what is written to it.
type capture struct {
	head, tail []byte
	cut        bool
}

// Write implements io.Writer and never fails.
func (c *capture) Write(p []byte) (int, error) {
	n := len(p)
	room := min(captureMax/2-len(c.head), len(p))
	c.head = append(c.head, p[:room]...)
	c.tail = append(c.tail, p[room:]...)
	if over := len(c.tail) - captureMax/2; over > 0 {
		c.tail = append(c.tail[:0], c.tail[over:]...)
		c.cut = true
	}
	return n, nil
}

// String is what was kept.
func (c *capture) String() string { return string(c.head) + string(c.tail) }
