package dayfly_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	dayfly "dayfly.dev/dayfly/sdk/go"
)

const attachRoute = "GET /v1/sandboxes/{id}/processes/{pid}/attach"

// attached serves a WebSocket as the server does.
func attached(t *testing.T, w http.ResponseWriter, r *http.Request, serve func(ctx context.Context, c *websocket.Conn)) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"dayfly.v1"}})
	if err != nil {
		t.Errorf("accept: %v", err)
		return
	}
	defer c.CloseNow()
	c.SetReadLimit(1 << 20)
	ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
	defer cancel()
	serve(ctx, c)
}

func say(ctx context.Context, c *websocket.Conn, text string) {
	_ = c.Write(ctx, websocket.MessageText, []byte(text))
}

func put(ctx context.Context, c *websocket.Conn, channel byte, data string) {
	_ = c.Write(ctx, websocket.MessageBinary, append([]byte{channel}, data...))
}

const exitText = `{"type":"exit","id":"pr1","exit_code":7,"signal":null,"stdout_bytes":6}`

// TestAttach: bytes pass unchanged both ways, sizes and signals arrive, the exit is seen.
func TestAttach(t *testing.T) {
	s := newServer(t)
	input := "\x1b[200~a\x00\xff\r\n\x1b[201~" + strings.Repeat("x", 100<<10)
	controls := make(chan string, 10)
	s.mux.HandleFunc(attachRoute, func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		attached(t, w, r, func(ctx context.Context, c *websocket.Conn) {
			say(ctx, c, `{"type":"start","id":"pr1","stdout_offset":0,"stderr_offset":0,"tty":{"cols":80,"rows":24}}`)
			got := ""
			for got != input {
				kind, data, err := c.Read(ctx)
				if err != nil {
					t.Errorf("read: %v after %d bytes", err, len(got))
					return
				}
				if kind == websocket.MessageText {
					controls <- string(data)
					continue
				}
				if data[0] != 0 {
					t.Errorf("channel %d", data[0])
				}
				got += string(data[1:])
			}
			put(ctx, c, 1, "\x1b[2Jout")
			put(ctx, c, 2, "err")
			put(ctx, c, 1, "\xff\x00")
			say(ctx, c, exitText)
			_ = c.Close(websocket.StatusNormalClosure, "")
		})
	})
	a, err := s.sandbox().Attach(t.Context(), "pr1", dayfly.AttachOptions{Size: &dayfly.TerminalSize{Cols: 132, Rows: 50}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.Resize(dayfly.TerminalSize{Cols: 90, Rows: 30}); err != nil {
		t.Error(err)
	}
	if err := a.CloseStdin(); err != nil {
		t.Error(err)
	}
	if n, err := io.Copy(a, strings.NewReader(input)); n != int64(len(input)) || err != nil {
		t.Errorf("wrote %d, %v", n, err)
	}
	var kinds []string
	var out, errs bytes.Buffer
	for {
		ev, err := a.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, string(ev.Type))
		switch ev.Type {
		case dayfly.EventStdout:
			out.Write(ev.Data)
		case dayfly.EventStderr:
			errs.Write(ev.Data)
		}
	}
	if out.String() != "\x1b[2Jout\xff\x00" || errs.String() != "err" || a.Exit() == nil || a.Exit().ExitCode != 7 {
		t.Errorf("events %v, stdout %q, stderr %q, exit %+v", kinds, &out, &errs, a.Exit())
	}
	if got := <-controls; got != `{"cols":90,"rows":30,"type":"resize"}` {
		t.Errorf("resize arrived as %s", got)
	}
	if got := <-controls; got != `{"type":"close_stdin"}` {
		t.Errorf("close arrived as %s", got)
	}
	q := s.requests()[0]
	if !strings.HasSuffix(q.uri, "?cols=132&rows=50") || q.header.Get("Authorization") != "Bearer "+testKey {
		t.Errorf("attached by %s", q.uri)
	}
}

// TestAttachResumes cuts the connection; every byte of output comes once, what the server no longer has is told, input goes on.
func TestAttachResumes(t *testing.T) {
	for _, tt := range []struct {
		name   string
		second func(ctx context.Context, c *websocket.Conn) // what the second connection says
		want   string
	}{
		{"exactly", func(ctx context.Context, c *websocket.Conn) {
			say(ctx, c, `{"type":"start","id":"pr1","stdout_offset":3,"stderr_offset":0,"tty":null}`)
			put(ctx, c, 1, "def")
		}, "stdout abc, lost, again, stdout def, exit"},
		{"more than was asked for", func(ctx context.Context, c *websocket.Conn) {
			say(ctx, c, `{"type":"start","id":"pr1","stdout_offset":1,"stderr_offset":0,"tty":null}`)
			put(ctx, c, 1, "bcde")
			put(ctx, c, 1, "f")
		}, "stdout abc, lost, again, stdout de, stdout f, exit"},
		{"some was dropped", func(ctx context.Context, c *websocket.Conn) {
			say(ctx, c, `{"type":"start","id":"pr1","stdout_offset":3,"stderr_offset":0,"tty":null}`)
			say(ctx, c, `{"type":"dropped","stream":"stdout","offset":3,"bytes":2}`)
			put(ctx, c, 1, "f")
		}, "stdout abc, lost, again, dropped 3+2, stdout f, exit"},
		{"a gap without a word", func(ctx context.Context, c *websocket.Conn) {
			say(ctx, c, `{"type":"start","id":"pr1","stdout_offset":5,"stderr_offset":0,"tty":null}`)
			put(ctx, c, 1, "f")
		}, "stdout abc, lost, again, dropped 3+2, stdout f, exit"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			var n atomic.Int32
			s.mux.HandleFunc(attachRoute, func(w http.ResponseWriter, r *http.Request) {
				s.record(r)
				switch n.Add(1) {
				case 1:
					attached(t, w, r, func(ctx context.Context, c *websocket.Conn) {
						say(ctx, c, `{"type":"start","id":"pr1","stdout_offset":0,"stderr_offset":0,"tty":{"cols":80,"rows":24}}`)
						put(ctx, c, 1, "abc")
					})
				case 2:
					fail(w, 503, "unavailable", "starting")
				default:
					attached(t, w, r, func(ctx context.Context, c *websocket.Conn) {
						tt.second(ctx, c)
						say(ctx, c, exitText)
						_ = c.Close(websocket.StatusNormalClosure, "")
					})
				}
			})
			size := dayfly.TerminalSize{Cols: 80, Rows: 24}
			a, err := s.sandbox().Attach(t.Context(), "pr1", dayfly.AttachOptions{Size: &size, From: &dayfly.Offsets{}})
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			var got []string
			for {
				ev, err := a.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				text := string(ev.Type)
				switch ev.Type {
				case dayfly.EventStdout:
					text += " " + string(ev.Data)
				case dayfly.EventDropped:
					text += fmt.Sprintf(" %d+%d", ev.Offset, ev.Bytes)
				case dayfly.EventLost:
					if ev.Err == nil {
						t.Error("a lost event without a reason")
					}
					_ = a.Resize(dayfly.TerminalSize{Cols: 100, Rows: 40}) // while there is no connection
				}
				got = append(got, text)
			}
			if strings.Join(got, ", ") != tt.want {
				t.Errorf("got %v\nwant %s", got, tt.want)
			}
			if last := s.requests()[2].uri; !strings.HasSuffix(last, "?cols=100&rows=40&stderr_offset=0&stdout_offset=3") {
				t.Errorf("resumed by %s", last)
			}
		})
	}
}

func TestAttachFails(t *testing.T) {
	start := `{"type":"start","id":"pr1","stdout_offset":0,"stderr_offset":0,"tty":null}`
	for _, tt := range []struct {
		name  string
		serve func(ctx context.Context, c *websocket.Conn)
		want  dayfly.Code
	}{
		{"the sandbox ended", func(ctx context.Context, c *websocket.Conn) {
			say(ctx, c, start)
			say(ctx, c, `{"type":"error","error":{"type":"gone","message":"the sandbox has ended","status":410}}`)
			_ = c.Close(websocket.StatusInternalError, "")
		}, dayfly.CodeGone},
		{"no JSON", func(ctx context.Context, c *websocket.Conn) { say(ctx, c, start); say(ctx, c, "hello") }, dayfly.CodeBadAnswer},
		{"an unknown channel", func(ctx context.Context, c *websocket.Conn) { say(ctx, c, start); put(ctx, c, 9, "x") }, dayfly.CodeBadAnswer},
		{"output before the start", func(ctx context.Context, c *websocket.Conn) { put(ctx, c, 1, "x") }, dayfly.CodeBadAnswer},
		{"an error without one", func(ctx context.Context, c *websocket.Conn) { say(ctx, c, `{"type":"error"}`) }, dayfly.CodeBadAnswer},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.mux.HandleFunc(attachRoute, func(w http.ResponseWriter, r *http.Request) {
				attached(t, w, r, func(ctx context.Context, c *websocket.Conn) {
					tt.serve(ctx, c)
					_, _, _ = c.Read(ctx)
				})
			})
			a, err := s.sandbox().Attach(t.Context(), "pr1", dayfly.AttachOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			if n, err := io.Copy(io.Discard, a); dayfly.ErrorCode(err) != tt.want || n != 0 || a.Exit() != nil {
				t.Errorf("%d bytes, %v (code %s), exit %v", n, err, dayfly.ErrorCode(err), a.Exit())
			}
			if _, err := a.Write([]byte("x")); err == nil {
				t.Error("input to what is over was taken")
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		s := newServer(t)
		long := strings.Repeat("long ", 1000) // beyond what a WebSocket library keeps of an answer
		s.mux.HandleFunc(attachRoute, func(w http.ResponseWriter, r *http.Request) { fail(w, 410, "gone", long+"ended") })
		_, err := s.sandbox().Attach(t.Context(), "pr1", dayfly.AttachOptions{})
		if dayfly.ErrorCode(err) != dayfly.CodeGone || !strings.HasSuffix(err.Error(), "ended") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no server any more", func(t *testing.T) {
		s := newServer(t)
		s.mux.HandleFunc(attachRoute, func(w http.ResponseWriter, r *http.Request) {
			attached(t, w, r, func(ctx context.Context, c *websocket.Conn) { say(ctx, c, start) })
		})
		a, err := s.sandbox().Attach(t.Context(), "pr1", dayfly.AttachOptions{Patience: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		s.Close()
		_, err = io.Copy(io.Discard, a)
		var e *dayfly.Error
		if !errors.As(err, &e) || e.Code != dayfly.CodeUnreachable || e.Retryable || !strings.Contains(e.Message, "was lost") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("closed while it waits", func(t *testing.T) {
		s := newServer(t)
		s.mux.HandleFunc(attachRoute, func(w http.ResponseWriter, r *http.Request) {
			attached(t, w, r, func(ctx context.Context, c *websocket.Conn) { say(ctx, c, start); _, _, _ = c.Read(ctx) })
		})
		a, err := s.sandbox().Attach(t.Context(), "pr1", dayfly.AttachOptions{})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(10*time.Millisecond, func() { _ = a.Close() })
		if _, err := a.Next(); dayfly.ErrorCode(err) != dayfly.CodeCancelled || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		_ = a.Close()
	})
}

// TestProcesses: what a start sends, and what the record brings.
func TestProcesses(t *testing.T) {
	s := newServer(t)
	record := map[string]any{"id": "pr1", "pid": 12, "name": "web", "status": "running", "tty": map[string]int{"cols": 80, "rows": 24},
		"restart": "on-failure", "restarts": 2, "cpu_ms": 1500, "memory_bytes": 4096, "processes": 3, "exit_code": nil, "signal": nil, "duration_ms": nil}
	s.mux.HandleFunc("POST /v1/sandboxes/{id}/processes", func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		reply(w, 201, record)
	})
	s.mux.HandleFunc("GET /v1/sandboxes/{id}/processes", func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		reply(w, 200, map[string]any{"data": []any{record}, "next_cursor": nil})
	})
	p, err := s.sandbox().Start(t.Context(), dayfly.Argv("srv", "-x"), dayfly.ProcessOptions{
		Name: "web", Terminal: &dayfly.TerminalSize{Cols: 80, Rows: 24}, Restart: dayfly.RestartOnFailure, Restarts: 7, Stdin: "in", OpenStdin: true})
	if err != nil || p.Name != "web" || p.Terminal.Rows != 24 || p.CPUMS != 1500 || p.MemoryBytes != 4096 || p.Processes != 3 || p.Restarts != 2 || p.ExitCode != nil {
		t.Errorf("%+v, %v", p, err)
	}
	var sent map[string]any
	_ = json.Unmarshal([]byte(s.requests()[0].body), &sent)
	want := `{"argv":["srv","-x"],"name":"web","restart":"on-failure","restarts":7,"stdin":"in","stdin_open":true,"tty":{"cols":80,"rows":24}}`
	if got, _ := json.Marshal(sent); string(got) != want {
		t.Errorf("sent %s", got)
	}
	for p, err := range s.sandbox().Processes(t.Context(), dayfly.ProcessListOptions{Name: "web", Status: dayfly.ProcessRunning}) {
		if err != nil || p.ID != "pr1" {
			t.Errorf("%+v, %v", p, err)
		}
	}
	if uri := s.requests()[1].uri; !strings.HasSuffix(uri, "?limit=100&name=web&status=running") {
		t.Errorf("listed by %s", uri)
	}
}

// TestWaits: a wait goes on over answers that only say not yet, and over a restart of the server.
func TestWaits(t *testing.T) {
	s := newServer(t)
	var n atomic.Int32
	s.mux.HandleFunc("GET /v1/sandboxes/{id}/processes/{pid}/wait", func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		switch n.Add(1) {
		case 1:
			reply(w, 200, map[string]any{"id": "pr1", "status": "running"})
		case 2:
			cut(w)
		default:
			reply(w, 200, map[string]any{"id": "pr1", "status": "exited", "exit_code": 3})
		}
	})
	s.mux.HandleFunc("GET /v1/sandboxes/{id}/ports/8000/wait", func(w http.ResponseWriter, r *http.Request) {
		s.record(r)
		reply(w, 200, map[string]any{"port": 8000, "listening": n.Add(1) > 5, "waited_ms": 1})
	})
	p, err := s.sandbox().WaitProcess(t.Context(), "pr1", 0)
	if err != nil || p.ExitCode == nil || *p.ExitCode != 3 {
		t.Errorf("%+v, %v", p, err)
	}
	if listening, err := s.sandbox().WaitPort(t.Context(), 8000, time.Nanosecond); listening || err != nil {
		t.Errorf("%v, %v", listening, err)
	}
	if listening, err := s.sandbox().WaitPort(t.Context(), 8000, time.Minute); !listening || err != nil {
		t.Errorf("%v, %v", listening, err)
	}
	if uri := s.requests()[0].uri; !strings.HasSuffix(uri, "timeout_ms=50000") {
		t.Errorf("waited by %s", uri)
	}
}
