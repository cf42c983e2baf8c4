package agentwire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"dayfly.dev/dayfly"
)

// firstRequest is the request as the first agents knew it. They decode it strictly.
type firstRequest struct {
	Op         string     `json:"op"`
	Params     int        `json:"params,omitempty"`
	ParamBytes int        `json:"param_bytes,omitempty"`
	Body       bool       `json:"body,omitempty"`
	Spec       *firstSpec `json:"spec,omitempty"`
	ID         string     `json:"id,omitempty"`
	Stdout     int64      `json:"stdout,omitempty"`
	Stderr     int64      `json:"stderr,omitempty"`
	Follow     bool       `json:"follow,omitempty"`
	Signal     string     `json:"signal,omitempty"`
	Tree       bool       `json:"tree,omitempty"`
	CloseAfter bool       `json:"close_after,omitempty"`
	Offset     int64      `json:"offset,omitempty"`
	Length     int64      `json:"length,omitempty"`
	Mode       *uint32    `json:"mode,omitempty"`
	Recursive  bool       `json:"recursive,omitempty"`
	Limit      int        `json:"limit,omitempty"`
}

type firstSpec struct {
	ID           string        `json:"id"`
	Argv         int           `json:"argv,omitempty"`
	Env          int           `json:"env,omitempty"`
	Timeout      time.Duration `json:"timeout_ns,omitempty"`
	Follow       bool          `json:"follow,omitempty"`
	OpenStdin    bool          `json:"open_stdin,omitempty"`
	OnDisconnect string        `json:"on_disconnect,omitempty"`
	CaptureBytes int           `json:"capture_bytes,omitempty"`
}

// The answers of the first agents, byte for byte, with the frames that follow.
const (
	firstProcess = `{"process":{"id":"pr1","pid":7,"status":"running","command":"YQ==","started_ago_ns":5,"on_disconnect":"grace","stdout_bytes":0,"stderr_bytes":0}}`
	firstExit    = `{"exit":{"code":3,"duration_ns":9,"stdout_bytes":2,"stderr_bytes":0}}`
	firstResult  = `{"result":{"id":"pr1","exit":{"code":3,"duration_ns":9,"stdout_bytes":2,"stderr_bytes":0},"stdout":{"head":2,"tail":0,"bytes":2},"stderr":{"head":0,"tail":0,"bytes":0}}}`
	firstFile    = `{"files":[{"name":"Zg==","path":"L2Y=","type":"file","size":2,"mode":420,"modified_at":"2026-01-02T03:04:05Z"}]}`
)

// firstAgent speaks the agent's end as the first agents did: their hello, their fields, their operations.
func firstAgent(conn net.Conn) error {
	defer conn.Close()
	if _, err := readHello(conn); err != nil {
		return err
	}
	says := []byte(`{"min":1,"max":1}`)
	if _, err := conn.Write(append([]byte{'D', 'F', 'A', '1', 0, byte(len(says))}, says...)); err != nil {
		return err
	}
	session, err := yamux.Server(conn, muxConfig())
	if err != nil {
		return err
	}
	defer session.Close()
	for {
		s, err := session.AcceptStream()
		if err != nil {
			return nil // the node left
		}
		if err := firstAnswer(s); err != nil {
			return err
		}
	}
}

func firstAnswer(s *yamux.Stream) error {
	defer s.Close()
	in, out := newFrameReader(s), newFrameWriter(s)
	_, payload, err := in.next()
	if err != nil {
		return err
	}
	var req firstRequest
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&req); err != nil {
		return fmt.Errorf("sent to an agent that does not know it: %s: %w", payload, err)
	}
	if req.Spec != nil && (req.Spec.Timeout < 0 || req.Spec.Timeout > dayfly.ExecTimeoutMax) {
		return fmt.Errorf("a timeout of %s", req.Spec.Timeout)
	}
	for left := req.ParamBytes; left > 0; {
		_, payload, err := in.next()
		if err != nil {
			return err
		}
		left -= len(payload)
	}
	for req.Body {
		kind, _, err := in.next()
		if err != nil {
			return err
		}
		req.Body = kind != frameEnd
	}
	message := func(text string) { _ = out.frame(frameJSON, []byte(text)) }
	switch req.Op {
	case "ping", "signal", "stdin", "remove", "write_archive":
		message(`{}`)
	case "run", "result":
		message(firstResult)
		_ = out.frame(frameData, []byte("ok"))
	case "start", "output":
		message(firstProcess)
		_ = out.output(frameStdout, 0, []byte("ok"))
		message(firstExit)
	case "process":
		message(firstProcess)
	case "processes":
		message(firstProcess)
		_ = out.frame(frameEnd)
	case "stat", "write":
		message(firstFile)
	case "list":
		message(firstFile)
		message(`{"page":{}}`)
	case "read", "read_archive":
		message(firstFile)
		_ = out.frame(frameData, []byte("ok"))
		_ = out.frame(frameEnd)
	default:
		return fmt.Errorf("sent to an agent that does not know it: %s", req.Op)
	}
	if err := out.flush(); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, s) // until the client has closed it
	return nil
}

// TestOlderAgent: a newer node does all with an older running agent that it could do before, and says clearly what it cannot.
func TestOlderAgent(t *testing.T) {
	node, agent := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- firstAgent(agent) }()
	c, err := NewClient(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	spec := dayfly.ProcessSpec{ID: "pr1", Command: "c", Restart: dayfly.RestartNever, Timeout: dayfly.NoTimeout, OpenStdin: true}
	mode := fs.FileMode(0o600)
	for _, tt := range []struct {
		name string
		do   func() error
	}{
		{"ping", func() error { return c.Ping(ctx) }},
		{"run", func() error {
			r, err := c.Run(ctx, spec, strings.NewReader("in"))
			if err == nil && (r.Exit.Code != 3 || string(r.Stdout.Head) != "ok") {
				err = fmt.Errorf("%+v", r)
			}
			return err
		}},
		{"start", func() error {
			out, p, err := c.Start(ctx, spec, nil)
			if err != nil {
				return err
			}
			defer out.Close()
			if p.ID != "pr1" || p.Restart != dayfly.RestartNever || p.Terminal != nil {
				t.Errorf("%+v", p)
			}
			for {
				if _, err := out.Next(); err == io.EOF {
					return nil
				} else if err != nil {
					return err
				}
			}
		}},
		{"output", func() error { out, err := c.Output(ctx, "pr1", dayfly.Offsets{}, true); _ = out.Close(); return err }},
		{"result", func() error { _, err := c.Result(ctx, "pr1"); return err }},
		{"process", func() error { _, err := c.Process(ctx, "pr1"); return err }},
		{"processes", func() error { _, err := c.Processes(ctx); return err }},
		{"signal", func() error { return c.Signal(ctx, "pr1", "TERM", true) }},
		{"stdin", func() error { return c.WriteStdin(ctx, "pr1", strings.NewReader("x"), true) }},
		{"stdin without an offset", func() error {
			n, err := c.WriteStdinAt(ctx, "pr1", dayfly.StdinNext, strings.NewReader("x"), true)
			if err == nil && n != dayfly.StdinNext {
				err = fmt.Errorf("it counts %d", n)
			}
			return err
		}},
		{"stat", func() error { _, err := c.Stat(ctx, "f"); return err }},
		{"list", func() error {
			_, _, err := c.List(ctx, dayfly.ListQuery{Path: "d", Limit: 10, Recursive: true})
			return err
		}},
		{"read", func() error {
			_, r, err := c.Read(ctx, "f", dayfly.FileRange{Length: -1})
			if err != nil {
				return err
			}
			defer r.Close()
			b, err := io.ReadAll(r)
			if string(b) != "ok" {
				t.Errorf("%q", b)
			}
			return err
		}},
		{"write", func() error { _, err := c.Write(ctx, "f", &mode, strings.NewReader("x")); return err }},
		{"remove", func() error { return c.Remove(ctx, "f", true) }},
		{"read archive", func() error { r, err := c.ReadArchive(ctx, "d"); _ = r.Close(); return err }},
		{"write archive", func() error { return c.WriteArchive(ctx, "d", strings.NewReader("tar")) }},
	} {
		t.Run("old: "+tt.name, func(t *testing.T) {
			if err := tt.do(); err != nil {
				t.Error(err)
			}
		})
	}
	with := func(change func(*dayfly.ProcessSpec)) func() error {
		return func() error {
			s := dayfly.ProcessSpec{ID: "pr1", Command: "c"}
			change(&s)
			_, _, err := c.Start(ctx, s, nil)
			return err
		}
	}
	for _, tt := range []struct {
		name string
		do   func() error
	}{
		{"name", with(func(s *dayfly.ProcessSpec) { s.Name = "web" })},
		{"terminal", with(func(s *dayfly.ProcessSpec) { s.Terminal = &dayfly.TerminalSize{Cols: 1, Rows: 1} })},
		{"restart", with(func(s *dayfly.ProcessSpec) { s.Restart = dayfly.RestartOnFailure })},
		{"resize", func() error { return c.Resize(ctx, "pr1", dayfly.TerminalSize{Cols: 1, Rows: 1}) }},
		{"port", func() error { return c.AwaitPort(ctx, 80) }},
		{"stdin at an offset", func() error { _, err := c.WriteStdinAt(ctx, "pr1", 0, strings.NewReader("x"), true); return err }},
		{"mkdir", func() error { _, err := c.Mkdir(ctx, "d", nil, true); return err }},
		{"move", func() error { _, err := c.Move(ctx, "a", "b", false); return err }},
		{"chmod", func() error { _, err := c.Chmod(ctx, "a", 0o600, false); return err }},
		{"search", func() error {
			_, err := c.Search(ctx, dayfly.SearchQuery{Path: ".", Pattern: "x", Limit: 1})
			return err
		}},
		{"find", func() error { _, _, err := c.Find(ctx, dayfly.FindQuery{Path: ".", Limit: 1}); return err }},
		{"watch", func() error { _, err := c.Watch(ctx, ".", true); return err }},
	} {
		t.Run("new: "+tt.name, func(t *testing.T) {
			err := tt.do()
			var e *dayfly.Error
			if !errors.As(err, &e) || e.Code != dayfly.CodeConflict || !strings.Contains(e.Message, "the sandbox runs an older agent") || e.Hint == "" {
				t.Errorf("%v", err)
			}
		})
	}
	if err := c.Ping(ctx); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	_ = c.Close()
	if err := <-ended; err != nil && !errors.Is(err, yamux.ErrSessionShutdown) {
		t.Error(err)
	}
}

// TestNewerNode: this agent takes the hello of a node that says more, and answers what it does not know with a clear error.
func TestNewerNode(t *testing.T) {
	var b bytes.Buffer
	_ = writeHello(&b, hello{Min: 1, Max: 9, Features: []string{"of the future"}})
	h, err := readHello(&b)
	if v, err2 := settle(h); err != nil || err2 != nil || v != versionMax {
		t.Errorf("settled on %d, %v, %v", v, err, err2)
	}
	for _, request := range []string{
		`{"op":"of_the_future"}`, `{"op":"of_the_future","params":1,"param_bytes":5}`, `{"op":"stat","params":1,"param_bytes":5,"what":1}`,
		`{"op":"run","spec":{"id":"x","what":1}}`,
	} {
		var in, out bytes.Buffer
		w := newFrameWriter(&in)
		_ = w.frame(frameJSON, []byte(request))
		_ = w.chunks(frameParams, packParams("f"))
		_ = w.flush()
		x := &exchange{ctx: t.Context(), cancel: func() {}, m: nothing{}, in: newFrameReader(&in), out: newFrameWriter(&out)}
		if err := x.readRequest(); err != nil {
			_ = x.fail(err)
		} else {
			x.answer()
		}
		_ = x.out.flush()
		k := &call{ctx: t.Context(), frames: newFrameReader(&out)}
		if _, err := k.message(); dayfly.ErrorCode(err) != dayfly.CodeConflict || !slices.Contains([]string{older().Message}, dayfly.AsError(err).Message) {
			t.Errorf("%s: %v", request, err)
		}
	}
}
