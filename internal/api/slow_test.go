package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// smallWindow is the receive buffer of a client that is slow on purpose.
const smallWindow = 4 << 10

// narrow dials with a small receive buffer.
func narrow(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if ctlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, smallWindow) }); ctlErr != nil {
			return ctlErr
		}
		return err
	}}
	return d.DialContext(ctx, network, address)
}

// slowGet sends a GET over a connection of its own with a small receive buffer, and reads the head of the answer.
func (b *bed) slowGet(t *testing.T, path string) *http.Response {
	t.Helper()
	transport := &http.Transport{DialContext: narrow, ReadBufferSize: smallWindow}
	t.Cleanup(transport.CloseIdleConnections)
	req, err := http.NewRequestWithContext(t.Context(), "GET", b.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+b.key)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// large is a process that has written n bytes of numbered lines, with what they are.
func (b *bed) large(t *testing.T, id string, n int) (pid string, all []byte) {
	t.Helper()
	for i := 0; len(all) < n; i++ {
		all = fmt.Appendf(all, "line %d \"é\"\n", i)
	}
	b.send("PUT", "/v1/sandboxes/"+id+"/files/content?path=large", bytes.NewReader(all)).ok(t, 200)
	return b.launch(t, id, `{"command":"cat large; read end","stdin_open":true}`)["id"].(string), all
}

// left waits until nobody follows the output of the sandbox's processes.
func (b *bed) left(t *testing.T, id string) {
	t.Helper()
	for deadline := time.Now().Add(waitMax); b.node.machine(id).waiting() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a client that takes nothing is still waited for")
		}
	}
}

// readOutput reads events of output up to the last one, and checks that they follow each other.
func readOutput(t *testing.T, from io.Reader, offset int64) (data []byte, last map[string]any) {
	t.Helper()
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var e map[string]any
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%.100q: %v", lines.Text(), err)
		}
		last = e
		if e["type"] != "stdout" {
			continue
		}
		if got := int64(e["offset"].(float64)); got != offset+int64(len(data)) {
			t.Fatalf("offset %d after %d bytes", got, len(data))
		}
		data = append(data, e["data"].(string)...)
	}
	return data, last
}

// TestSlowReader: a client that takes nothing is left, and its process is not. When it reads on, it is told where to go on.
func TestSlowReader(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	pid, all := b.large(t, id, 8<<20)
	output := "/v1/sandboxes/" + id + "/processes/" + pid + "/output?follow=true"
	resp := b.slowGet(t, output)
	b.left(t, id)
	if p := b.get("/v1/sandboxes/"+id+"/processes/"+pid).ok(t, 200).json(t); p["status"] != "running" {
		t.Errorf("the process: %v", p)
	}
	data, last := readOutput(t, resp.Body, 0)
	told, ok := last["error"].(map[string]any)
	if !ok || told["type"] != "slow_reader" || told["status"] != 408.0 {
		t.Fatalf("the stream of %d bytes ends in %v", len(data), last)
	}
	details := told["details"].(map[string]any)
	if details["stdout_offset"] != float64(len(data)) || details["stderr_offset"] != 0.0 || details["process"] != pid || len(data) == len(all) {
		t.Errorf("after %d of %d bytes: %v", len(data), len(all), details)
	}
	b.send("POST", "/v1/sandboxes/"+id+"/processes/"+pid+"/stdin", strings.NewReader("\n")).ok(t, 200)
	again := b.get(fmt.Sprintf("%s&stdout_offset=%d", output, len(data))).ok(t, 200)
	rest, last := readOutput(t, bytes.NewReader(again.body), int64(len(data)))
	if !bytes.Equal(append(data, rest...), all) || last["type"] != "exit" {
		t.Errorf("together %d of %d bytes, then %v", len(data)+len(rest), len(all), last)
	}
}

// TestSteadyReader: one that takes a little, again and again, is waited for, however long it takes.
func TestSteadyReader(t *testing.T) {
	const limit, pace = 600 * time.Millisecond, 100 * time.Millisecond // some pieces may come late on a busy host
	b := newBedThatCuts(t, limit, nil)
	id := b.sandbox("{}")
	pid, all := b.large(t, id, 512<<10)
	for b.node.machine(id).liveOne(pid).record().StdoutBytes < int64(len(all)) {
		time.Sleep(time.Millisecond)
	}
	resp := b.slowGet(t, "/v1/sandboxes/"+id+"/processes/"+pid+"/output?follow=false")
	began := time.Now()
	var body bytes.Buffer
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for range tick.C { // at a pace at which the server's single writes take longer than the limit
		if _, err := io.CopyN(&body, resp.Body, 8<<10); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if data, last := readOutput(t, &body, 0); !bytes.Equal(data, all) || last["type"] != "stdout" {
		t.Errorf("%d of %d bytes after %s, last %.200v", len(data), len(all), time.Since(began), last)
	}
	if time.Since(began) < 2*limit {
		t.Errorf("it took %s only", time.Since(began))
	}
}

// TestSlowAttachment is the same over a WebSocket.
func TestSlowAttachment(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	pid, all := b.large(t, id, 8<<20)
	slow := *b
	slow.http = &http.Client{Transport: &http.Transport{DialContext: narrow, ReadBufferSize: smallWindow}}
	w := slow.attach(t, id, pid, "")
	b.left(t, id)
	w.event("start")
	e := w.event("error")["error"].(map[string]any)
	if e["type"] != "slow_reader" || e["details"].(map[string]any)["stdout_offset"] != float64(len(w.out[1])) || !bytes.HasPrefix(all, w.out[1]) {
		t.Errorf("after %d bytes: %v", len(w.out[1]), e)
	}
	w.closed(websocket.StatusInternalError)
	if p := b.get("/v1/sandboxes/"+id+"/processes/"+pid).ok(t, 200).json(t); p["status"] != "running" {
		t.Errorf("the process: %v", p)
	}
}

// TestSlowWatcher: who follows changes or events and takes nothing is left too.
func TestSlowWatcher(t *testing.T) {
	b := newBed(t, nil)
	at := b.files(t)
	id := strings.Split(at, "/")[3]
	m := b.node.machine(id)
	resp := b.slowGet(t, at+"/watch?path=.")
	m.awaitWatch(t)
	long := "/" + strings.Repeat("long/", 800)
	for m.waiting() > 0 {
		m.tell(dayfly.FileChange{Kind: dayfly.ChangeModified, Path: long})
		if t.Context().Err() != nil {
			t.Fatal("it is still waited for")
		}
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(strings.TrimSpace(string(body)), "\n"); !strings.Contains(lines[len(lines)-1], `"slow_reader"`) {
		t.Errorf("it ends in %s", lines[len(lines)-1])
	}
}

// TestManySlowReadersTakeLittleMemory: what is kept for a client that takes nothing is bounded.
func TestManySlowReadersTakeLittleMemory(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	pid, _ := b.large(t, id, 4<<20)
	m := b.node.machine(id)
	for m.liveOne(pid).record().StdoutBytes < 4<<20 {
		time.Sleep(time.Millisecond)
	}
	heap := func() int64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc)
	}
	before := heap()
	const clients, each = 40, 500 << 10
	for range clients {
		b.slowGet(t, "/v1/sandboxes/"+id+"/processes/"+pid+"/output?follow=true")
	}
	if grown := heap() - before; grown > clients*each {
		t.Errorf("%d KiB for each of %d clients that take nothing", grown/clients>>10, clients)
	}
	b.left(t, id)
}

// TestServerSentEventsAreFramed: whatever a command writes, an event is one data line; ids say where to go on.
func TestServerSentEventsAreFramed(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	text := "a\r\nb\n\ndata: x\n: comment\rid: 7\u2028\n"
	b.send("PUT", "/v1/sandboxes/"+id+"/files/content?path=odd", strings.NewReader(text)).ok(t, 200)
	a := b.json("POST", "/v1/sandboxes/"+id+"/exec", `{"command":"cat odd; printf '\\377'; echo err >&2"}`, "Accept", "text/event-stream").ok(t, 200)
	var joined []byte
	lastID, pid := "", ""
	for _, block := range strings.Split(strings.TrimSuffix(string(a.body), "\n\n"), "\n\n") {
		var e struct {
			Type, ID string
			Data     string
			B64      []byte `json:"data_b64"`
		}
		head := ""
		if rest, ok := strings.CutPrefix(block, "id: "); ok {
			head, block, _ = strings.Cut(rest, "\n")
			lastID = head
		}
		line, ok := strings.CutPrefix(block, "data: ")
		if !ok || strings.ContainsAny(line, "\r\n") || json.Unmarshal([]byte(line), &e) != nil {
			t.Fatalf("block %q", block)
		}
		if (head != "") != (e.Type == "stdout" || e.Type == "stderr") {
			t.Errorf("id %q of %s", head, line)
		}
		if e.Type == "stdout" {
			joined = append(append(joined, e.Data...), e.B64...)
		}
		if e.Type == "start" {
			pid = e.ID
		}
	}
	if string(joined) != text+"\xff" || lastID != fmt.Sprintf("%d:4", len(text)+1) {
		t.Errorf("joined %q, last id %s", joined, lastID)
	}
	output := "/v1/sandboxes/" + id + "/processes/" + pid + "/output"
	if got := kinds(parseEvents(t, b.get(output, "Accept", "text/event-stream", "Last-Event-ID", lastID).ok(t, 200))); got != "start exit" {
		t.Errorf("from the last event on: %s", got)
	}
	for _, bad := range []string{"x", "1", "1:", ":1", "-1:0", "1:2:3", "9223372036854775808:0"} {
		b.get(output, "Last-Event-ID", bad).want(t, 400, "invalid_request")
	}
}

// TestBug13ManyCharactersStayWhole and bug 14: whatever the pieces are, text stays text, and bytes come back as they were.
func TestBug13And14OutputComesBackExactly(t *testing.T) {
	b := newBed(t, nil)
	id := b.sandbox("{}")
	for name, content := range map[string]string{
		"characters": strings.Repeat("☕", 100_000), "one odd byte": strings.Repeat("a", 70_000) + "\xff\xfe" + strings.Repeat("é", 40_000), "zeros": strings.Repeat("\x00", 200_000),
	} {
		t.Run(name, func(t *testing.T) {
			b.send("PUT", "/v1/sandboxes/"+id+"/files/content?path=f", strings.NewReader(content)).ok(t, 200)
			pid := b.launch(t, id, `{"command":"cat f; exit 3"}`)["id"].(string)
			var joined []byte
			all := parseEvents(t, b.get("/v1/sandboxes/"+id+"/processes/"+pid+"/output?follow=true").ok(t, 200))
			for _, e := range all {
				if s, ok := e["data"].(string); ok {
					if strings.ContainsRune(s, '\uFFFD') {
						t.Fatal("a replaced character")
					}
					joined = append(joined, s...)
				} else if s, ok := e["data_b64"].(string); ok {
					joined = append(joined, decode(t, s)...)
				}
			}
			if string(joined) != content || all[len(all)-1]["exit_code"] != 3.0 {
				t.Errorf("%d of %d bytes, last %v", len(joined), len(content), all[len(all)-1])
			}
			body := string(b.get("/v1/sandboxes/"+id+"/processes/"+pid+"/output").ok(t, 200).body)
			if name == "zeros" && len(body) > len(content)*3/2 {
				t.Errorf("%d bytes for %d", len(body), len(content))
			}
		})
	}
}
