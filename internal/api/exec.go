package api

import (
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"dayfly.dev/dayfly"
)

// execution is a command to run, as a client asks for it.
type execution struct {
	spec      dayfly.ProcessSpec
	stdin     *string // nil: end of file at once
	stream    bool
	keepStdin bool
}

func parseExec(f *fields) execution {
	e := parseCommand(f)
	e.stream, _ = f.flag("stream")
	return e
}

// parseCommand reads what an exec and a background process have in common.
func parseCommand(f *fields) execution {
	var e execution
	_, hasCommand := f.in["command"]
	_, hasArgv := f.in["argv"]
	e.spec.Command, _ = f.filled("command")
	argv, isList := f.texts("argv")
	e.spec.Argv = argv
	switch {
	case hasCommand && hasArgv:
		f.wrong("argv", "must not be given together with command")
	case !hasCommand && !hasArgv:
		f.wrong("command", "is missing; give command (a shell's text) or argv (a list)")
	case isList && (len(argv) == 0 || argv[0] == ""):
		f.wrong("argv", "must begin with the program to run")
	}
	e.spec.Cwd, _ = f.filled("cwd")
	e.spec.User, _ = f.filled("user")
	e.spec.Env, _ = f.textMap("env", envMax, envProblem)
	timeout, _ := f.integer("timeout_ms", 1, dayfly.ExecTimeoutMax.Milliseconds())
	e.spec.Timeout = time.Duration(timeout) * time.Millisecond
	if stdin, given := f.content("stdin"); given {
		e.stdin = &stdin
	}
	disconnect, _ := f.choice("on_disconnect", string(dayfly.DisconnectGrace), string(dayfly.DisconnectKill), string(dayfly.DisconnectContinue))
	e.spec.OnDisconnect = dayfly.OnDisconnect(disconnect)
	e.keepStdin, _ = f.flag("stdin_open")
	return e
}

func exec(c *call, e execution) error {
	id, err := c.sandboxID()
	if err != nil {
		return err
	}
	format, asked := streamFormat(c.r.Header)
	if e.stream || asked {
		return execStream(c, id, e, format)
	}
	if e.keepStdin {
		bad := &problems{}
		bad.add("stdin_open", "needs a stream: who waits for a plain answer cannot write")
		return bad.error()
	}
	c.mayTakeLong(http.StatusOK)
	out, err := c.backend.Exec(c.ctx(), c.who, id, e.spec, e.input(), c.key)
	if err != nil {
		return err
	}
	c.replayed(out.Replayed)
	answer := showResult(out.Value)
	answer.Replayed = out.Replayed
	return c.answer(http.StatusOK, answer)
}

func execStream(c *call, id string, e execution, format format) error {
	ctx, leave := context.WithCancelCause(c.ctx())
	defer leave(nil)
	out, err := c.backend.ExecStream(ctx, c.who, id, e.spec, e.input(), e.keepStdin, c.key)
	if err != nil {
		return err
	}
	return c.follow(followed{id: out.Value.Process.ID, stream: out.Value.Stream, ctx: ctx, leave: leave, toEnd: true, replayed: out.Replayed}, format)
}

// input is the command's standard input, or nil.
func (e execution) input() io.Reader {
	if e.stdin == nil {
		return nil
	}
	return strings.NewReader(*e.stdin)
}

// exitJSON is how a command ended.
type exitJSON struct {
	ID          string  `json:"id"`
	ExitCode    int     `json:"exit_code"`
	Signal      *string `json:"signal"`
	TimedOut    bool    `json:"timed_out"`
	OOMKilled   bool    `json:"oom_killed"`
	StdoutBytes int64   `json:"stdout_bytes"`
	StderrBytes int64   `json:"stderr_bytes"`
	DurationMS  int64   `json:"duration_ms"`
}

func showExit(id string, e dayfly.Exit) exitJSON {
	return exitJSON{
		ID: id, ExitCode: e.Code, Signal: orNull(e.Signal), TimedOut: e.TimedOut, OOMKilled: e.OOMKilled,
		StdoutBytes: e.StdoutBytes, StderrBytes: e.StderrBytes, DurationMS: e.Duration.Milliseconds(),
	}
}

// resultJSON is a finished exec.
type resultJSON struct {
	exitJSON
	Stdout    string  `json:"stdout"`
	Stderr    string  `json:"stderr"`
	StdoutB64 *string `json:"stdout_b64,omitempty"`
	StderrB64 *string `json:"stderr_b64,omitempty"`
	Truncated bool    `json:"truncated"`
	Replayed  bool    `json:"replayed,omitempty"`
}

func showResult(r dayfly.Result) resultJSON {
	out := resultJSON{exitJSON: showExit(r.ID, r.Exit), Truncated: r.Stdout.Truncated() || r.Stderr.Truncated()}
	out.Stdout, out.StdoutB64 = showCaptured(r.Stdout)
	out.Stderr, out.StderrB64 = showCaptured(r.Stderr)
	out.StdoutBytes, out.StderrBytes = r.Stdout.Bytes, r.Stderr.Bytes
	return out
}

// showCaptured joins what was kept of a stream: the head, then directly the tail. Where bytes between were dropped, characters
// that the gap cut in two are left out, so that text stays text. exact is set when the bytes are not UTF-8.
func showCaptured(c dayfly.Captured) (text string, exact *string) {
	head, tail := c.Head, c.Tail
	if c.Truncated() {
		head, tail = head[:len(head)-partialEnd(head)], tail[partialStart(tail):]
	}
	kept := make([]byte, 0, len(head)+len(tail))
	kept = append(append(kept, head...), tail...)
	if utf8.Valid(kept) {
		return string(kept), nil
	}
	b64 := base64.StdEncoding.EncodeToString(kept)
	return string([]rune(string(kept))), &b64
}

// partialEnd counts the bytes at the end of b that begin a character without finishing it: 0 to 3.
func partialEnd(b []byte) int {
	for n := 1; n <= min(utf8.UTFMax-1, len(b)); n++ {
		if last := b[len(b)-n:]; utf8.RuneStart(last[0]) {
			if utf8.FullRune(last) {
				return 0
			}
			return n
		}
	}
	return 0
}

// partialStart counts the bytes at the start of b that can only end a character: 0 to 3.
func partialStart(b []byte) int {
	for n := range min(utf8.UTFMax, len(b)) {
		if utf8.RuneStart(b[n]) {
			return n
		}
	}
	return 0
}
