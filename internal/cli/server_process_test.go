package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/creack/pty"
)

// background is a process that was started with POST …/processes: with all output kept, which viewers read by offset.
type background struct {
	record map[string]any
	cmd    *exec.Cmd
	master *os.File // of its terminal, or nil
	stdin  io.WriteCloser

	mu    sync.Mutex
	cond  *sync.Cond
	kept  map[string][]byte
	exit  map[string]any // nil while it runs
	views map[*websocket.Conn]bool
}

type size struct{ Cols, Rows int }

func (s *testServer) routeProcesses(t *testing.T, mux *http.ServeMux) {
	s.started = map[string]*background{}
	mux.HandleFunc("POST /v1/sandboxes/{id}/processes", s.start)
	mux.HandleFunc("GET /v1/sandboxes/{id}/processes", s.listProcesses)
	known := func(handle func(*background, http.ResponseWriter, *http.Request)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			p := s.started[r.PathValue("pid")]
			s.mu.Unlock()
			if p == nil {
				fail(w, 410, "gone", "the process is no longer kept")
				return
			}
			handle(p, w, r)
		}
	}
	mux.HandleFunc("GET /v1/sandboxes/{id}/processes/{pid}", known(func(p *background, w http.ResponseWriter, r *http.Request) { reply(w, 200, p.show()) }))
	mux.HandleFunc("GET /v1/sandboxes/{id}/processes/{pid}/wait", known((*background).wait))
	mux.HandleFunc("GET /v1/sandboxes/{id}/processes/{pid}/output", known((*background).output))
	mux.HandleFunc("GET /v1/sandboxes/{id}/processes/{pid}/attach", known((*background).attach))
	t.Cleanup(func() {
		for _, p := range s.started {
			_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		}
	})
}

// endAttached ends all as the end of their sandbox does. s.mu is held.
func (s *testServer) endAttached() {
	for _, p := range s.started {
		p.mu.Lock()
		p.exit = map[string]any{"type": "error", "error": map[string]any{"type": "gone", "message": "the sandbox has ended", "status": 410}}
		p.mu.Unlock()
		p.cond.Broadcast()
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	}
}

func (s *testServer) start(w http.ResponseWriter, r *http.Request) {
	if _, ok := s.find(w, r); !ok {
		return
	}
	var body struct {
		Argv []string
		Env  map[string]string
		Name string
		TTY  *size
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	s.mu.Lock()
	s.n2++
	id := fmt.Sprintf("pr%020d", s.n2)
	s.mu.Unlock()
	p := &background{cmd: exec.Command(body.Argv[0], body.Argv[1:]...), kept: map[string][]byte{}, views: map[*websocket.Conn]bool{}}
	p.cond = sync.NewCond(&p.mu)
	p.record = map[string]any{"id": id, "name": body.Name, "status": "running", "command": body.Argv[len(body.Argv)-1], "tty": body.TTY, "restart": "never",
		"restarts": 0, "started_at": epoch, "exit_code": nil, "signal": nil, "cpu_ms": 1500, "memory_bytes": 4 << 20, "processes": 1}
	p.cmd.Dir, p.cmd.Env = s.home(r.PathValue("id")), append(os.Environ(), "PS1=$ ", "HISTFILE=")
	for k, v := range body.Env {
		p.cmd.Env = append(p.cmd.Env, k+"="+v)
	}
	if err := p.launch(body.TTY); err != nil {
		fail(w, 400, "invalid_request", err.Error())
		return
	}
	p.record["pid"] = p.cmd.Process.Pid
	s.mu.Lock()
	s.started[id] = p
	s.mu.Unlock()
	reply(w, 201, p.show())
}

func (p *background) launch(tty *size) error {
	var readers sync.WaitGroup
	read := func(name string, r io.Reader) {
		readers.Go(func() {
			buf := make([]byte, 32<<10)
			for {
				n, err := r.Read(buf)
				p.mu.Lock()
				p.kept[name] = append(p.kept[name], buf[:n]...)
				p.mu.Unlock()
				p.cond.Broadcast()
				if err != nil {
					return
				}
			}
		})
	}
	if tty != nil {
		master, err := pty.StartWithSize(p.cmd, &pty.Winsize{Cols: uint16(tty.Cols), Rows: uint16(tty.Rows)})
		if err != nil {
			return err
		}
		p.master, p.stdin = master, master
		read("stdout", master)
	} else {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out, _ := p.cmd.StdoutPipe()
		errs, _ := p.cmd.StderrPipe()
		p.stdin, _ = p.cmd.StdinPipe()
		if err := p.cmd.Start(); err != nil {
			return err
		}
		read("stdout", out)
		read("stderr", errs)
	}
	go func() {
		readers.Wait()
		_ = p.cmd.Wait()
		status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		exit := map[string]any{"type": "exit", "id": p.record["id"], "exit_code": status.ExitStatus(), "signal": nil}
		if status.Signaled() {
			exit["exit_code"], exit["signal"] = 128+int(status.Signal()), status.Signal().String()
		}
		p.mu.Lock()
		p.record["status"], p.record["exit_code"] = "exited", exit["exit_code"]
		if p.exit == nil {
			p.exit = exit
		}
		p.mu.Unlock()
		p.cond.Broadcast()
	}()
	return nil
}

func (p *background) show() map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]any{"stdout_bytes": len(p.kept["stdout"]), "stderr_bytes": len(p.kept["stderr"])}
	for k, v := range p.record {
		out[k] = v
	}
	return out
}

func (s *testServer) listProcesses(w http.ResponseWriter, r *http.Request) {
	if _, ok := s.find(w, r); !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	data, q := []any{}, r.URL.Query()
	for i := 1; i <= s.n2; i++ {
		p := s.started[fmt.Sprintf("pr%020d", i)].show()
		if (q.Get("name") == "" || q.Get("name") == p["name"]) && (q.Get("status") == "" || q.Get("status") == p["status"]) {
			data = append(data, p)
		}
	}
	reply(w, 200, map[string]any{"data": data, "next_cursor": nil})
}

// next waits for more of a stream than offset, or for the end, or for the end of ctx.
func (p *background) next(ctx context.Context, at map[string]int) (name string, data []byte, exit map[string]any) {
	stop := context.AfterFunc(ctx, p.cond.Broadcast)
	defer stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for ctx.Err() == nil {
		for _, name := range []string{"stdout", "stderr"} {
			if kept := p.kept[name]; len(kept) > at[name] {
				data := kept[at[name]:min(len(kept), at[name]+32<<10)]
				at[name] += len(data)
				return name, data, nil
			}
		}
		if p.exit != nil {
			return "", nil, p.exit
		}
		p.cond.Wait()
	}
	return "", nil, nil
}

func (p *background) wait(w http.ResponseWriter, r *http.Request) {
	ms, _ := strconv.Atoi(r.URL.Query().Get("timeout_ms"))
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(ms)*time.Millisecond)
	defer cancel()
	p.mu.Lock()
	at := map[string]int{"stdout": 1 << 40, "stderr": 1 << 40}
	p.mu.Unlock()
	p.next(ctx, at)
	reply(w, 200, p.show())
}

func offsets(r *http.Request) map[string]int {
	at := map[string]int{}
	for _, name := range []string{"stdout", "stderr"} {
		at[name], _ = strconv.Atoi(r.URL.Query().Get(name + "_offset"))
	}
	return at
}

func (p *background) output(w http.ResponseWriter, r *http.Request) {
	events, at, ctx := &eventWriter{w: w}, offsets(r), r.Context()
	if r.URL.Query().Get("follow") != "true" {
		quick, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		ctx = quick
	}
	events.write(map[string]any{"type": "start", "id": p.record["id"]})
	for {
		from := map[string]int{"stdout": at["stdout"], "stderr": at["stderr"]}
		name, data, exit := p.next(ctx, at)
		switch {
		case name != "":
			events.write(map[string]any{"type": name, "offset": from[name], "data_b64": data})
			continue
		case exit != nil:
			events.write(exit)
		}
		return
	}
}

func (p *background) attach(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"dayfly.v1"}})
	if err != nil {
		return
	}
	defer c.CloseNow()
	c.SetReadLimit(1 << 20)
	p.mu.Lock()
	p.views[c] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.views, c)
		p.mu.Unlock()
	}()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	cols, _ := strconv.Atoi(r.URL.Query().Get("cols"))
	rows, _ := strconv.Atoi(r.URL.Query().Get("rows"))
	p.resize(size{cols, rows})
	go func() {
		defer cancel()
		for {
			kind, data, err := c.Read(ctx)
			if err != nil {
				return
			}
			if kind == websocket.MessageBinary {
				_, _ = p.stdin.Write(data[1:])
				continue
			}
			var control struct {
				Type string
				size
			}
			_ = json.Unmarshal(data, &control)
			if control.Type == "resize" {
				p.resize(control.size)
			}
		}
	}()
	at := offsets(r)
	start, _ := json.Marshal(map[string]any{"type": "start", "id": p.record["id"], "stdout_offset": at["stdout"], "stderr_offset": at["stderr"], "tty": p.record["tty"]})
	_ = c.Write(ctx, websocket.MessageText, start)
	for {
		name, data, exit := p.next(ctx, at)
		if name != "" {
			_ = c.Write(ctx, websocket.MessageBinary, append([]byte{map[string]byte{"stdout": 1, "stderr": 2}[name]}, data...))
			continue
		}
		if exit != nil {
			b, _ := json.Marshal(exit)
			_ = c.Write(ctx, websocket.MessageText, b)
			_ = c.Close(websocket.StatusNormalClosure, "")
		}
		return
	}
}

// cut breaks the connections of all viewers.
func (p *background) cut() {
	p.mu.Lock()
	views := slices.Collect(maps.Keys(p.views))
	p.mu.Unlock()
	for _, c := range views {
		_ = c.CloseNow()
	}
}

func (p *background) resize(to size) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.master != nil && to.Cols > 0 {
		_ = pty.Setsize(p.master, &pty.Winsize{Cols: uint16(to.Cols), Rows: uint16(to.Rows)})
	}
}
