package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// follower runs a command in a sandbox and shows its output while it is written.
type follower struct {
	app     *app
	sandbox *sdk.Sandbox
	options sdk.ExecOptions
	started func(process string) // told the command's id, or nil
	lost    int64                // bytes of output that nobody will see
}

// follow gives the command's exit code. The error is Dayfly's own failure, or that nobody reads the output.
func (f *follower) follow(ctx context.Context, argv []string) (int, error) {
	stream, err := f.sandbox.ExecStream(ctx, sdk.Argv(argv...), f.options)
	if err != nil {
		return 0, err
	}
	exit, err := f.events(stream)
	if err != nil {
		return 0, err
	}
	if f.lost > 0 && exit.ExitCode == 0 { // a stream that ended without an error ended with an exit
		return 0, failf("the command succeeded, but %d bytes of its output were lost", f.lost).
			withHint("read faster, or have it write to a file in the sandbox and copy that out")
	}
	return exit.ExitCode, nil
}

// events shows a stream to its end: the exit, or nil where output was only wanted up to now.
func (f *follower) events(stream *sdk.Stream) (exit *sdk.Exit, err error) {
	for ev, err := range stream.All() {
		if err != nil {
			return nil, err
		}
		if ev.Type == sdk.EventStart && f.started != nil {
			f.started(ev.ID)
		}
		if err := f.show(ev); err != nil {
			return nil, err
		}
		if ev.Type == sdk.EventDropped {
			f.lost += ev.Bytes
		}
		exit = ev.Exit
	}
	return exit, nil
}

func (f *follower) show(ev sdk.Event) error {
	if f.app.json() {
		return f.showJSON(ev)
	}
	switch ev.Type {
	case sdk.EventStdout:
		return writeAll(f.app.Stdout, ev.Data)
	case sdk.EventStderr:
		return writeAll(f.app.Stderr, ev.Data)
	case sdk.EventDropped:
		f.app.note("%d bytes of %s are no longer kept", ev.Bytes, ev.Of)
	case sdk.EventExit:
		f.app.noteExit(ev.Exit)
	}
	return nil
}

// noteExit tells what an exit code alone does not.
func (a *app) noteExit(e *sdk.Exit) {
	if e.TimedOut {
		a.note("the command ran into its timeout")
	}
	if e.OOMKilled {
		a.note("the command was ended for lack of memory; give more with --memory-mb")
	}
}

func writeAll(w io.Writer, p []byte) error {
	if _, err := w.Write(p); err != nil {
		return &failure{code: exitDayfly, text: fmt.Sprintf("cannot write the command's output: %v", err), cause: err}
	}
	return nil
}

// jsonEvent is an event with -o json, on one line.
type jsonEvent struct {
	Type    string  `json:"type"`
	Sandbox string  `json:"sandbox,omitempty"`
	ID      string  `json:"id,omitempty"`
	Stream  string  `json:"stream,omitempty"`
	Offset  *int64  `json:"offset,omitempty"`
	Data    *string `json:"data,omitempty"`
	DataB64 []byte  `json:"data_b64,omitempty"` // where data is not valid UTF-8
	Bytes   int64   `json:"bytes,omitempty"`
	*jsonExit
}

type jsonExit struct {
	ExitCode   int    `json:"exit_code"`
	Signal     string `json:"signal"`
	TimedOut   bool   `json:"timed_out"`
	OOMKilled  bool   `json:"oom_killed"`
	DurationMS int64  `json:"duration_ms"`
}

func (f *follower) showJSON(ev sdk.Event) error {
	out := jsonEvent{Type: string(ev.Type)}
	switch ev.Type {
	case sdk.EventStart:
		out.Sandbox, out.ID = f.sandbox.ID, ev.ID
	case sdk.EventStdout, sdk.EventStderr:
		out.Offset = &ev.Offset
		if utf8.Valid(ev.Data) {
			text := string(ev.Data)
			out.Data = &text
		} else {
			out.DataB64 = ev.Data
		}
	case sdk.EventDropped:
		out.Stream, out.Offset, out.Bytes = string(ev.Of), &ev.Offset, ev.Bytes
	case sdk.EventExit:
		e := ev.Exit
		out.jsonExit = &jsonExit{ExitCode: e.ExitCode, Signal: e.Signal, TimedOut: e.TimedOut, OOMKilled: e.OOMKilled, DurationMS: e.DurationMS}
	}
	b, err := json.Marshal(out)
	if err != nil {
		return err
	}
	return writeAll(f.app.Stdout, append(b, '\n'))
}

// input is what to pass to a command, or nil where there is nothing: no descriptor, or the null device.
func (a *app) input() io.Reader {
	f, ok := a.Stdin.(*os.File)
	if !ok {
		return a.Stdin
	}
	if f == nil {
		return nil
	}
	info, err := f.Stat()
	if err != nil {
		return nil // closed
	}
	if null, err := os.Stat(os.DevNull); err == nil && os.SameFile(info, null) {
		return nil
	}
	return f
}
