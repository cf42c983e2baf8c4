package agentwire

import (
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
)

// FuzzCalls answers every kind of call with the same bytes, over a whole session: each call ends, and believes nothing that no
// agent may say.
func FuzzCalls(f *testing.F) {
	const file = `{"name":"Zg==","path":"L2Y=","type":"file","size":2,"mode":420,"modified_at":"2026-01-02T03:04:05Z"}`
	for kind, answer := range map[string]string{
		"list":      wireJSON(`{"files":[%s,%s]}`, file, file) + wireJSON(`{"page":{"next":"x"}}`),
		"find":      wireJSON(`{"files":[%s]}`, file) + wireJSON(`{"found":{"truncated":true}}`),
		"search":    wireJSON(`{"matches":[{"path":"Lw==","line":1,"column":2,"text":"eA==","before":["YQ=="]}]}`) + wireJSON(`{"found":{"files":3}}`),
		"watch":     wireJSON(`{}`) + wireJSON(`{"change":{"kind":"moved","path":"YQ==","from":"Yg==","type":"file"}}`) + wire(frameEnd, ""),
		"processes": wireJSON(`{"process":{"id":"x","terminal":{"cols":0,"rows":-1},"restarts":-3}}`) + wire(frameEnd, ""),
		"run":       wireJSON(`{"result":{"stdout":{"head":1,"bytes":9}}}`) + wire(frameData, "x"),
		"start":     wireJSON(`{"process":{"id":"x"}}`) + wire(frameStdout, "\x00\x00\x00\x00\x00\x00\x00\x07y") + wireJSON(`{"exit":{"code":-1}}`),
		"read":      wireJSON(`{"files":[%s]}`, file) + wire(frameData, "abc") + wire(frameEnd, ""),
		"ping":      wireJSON(`{"error":{"code":"unauthorized"}}`),
	} {
		f.Add(kind, []byte(answer))
	}
	f.Fuzz(func(t *testing.T, kind string, answer []byte) {
		node, agent := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			serveAnswer(agent, answer)
		}()
		ctx, cancel := context.WithTimeout(t.Context(), hostileWait)
		defer cancel()
		c, err := NewClient(ctx, node)
		if err != nil {
			t.Fatal(err)
		}
		all := calls(c)
		call, known := all[kind]
		if !known { // any of them, always the same for the same bytes
			names := make([]string, 0, len(all))
			for name := range all {
				names = append(names, name)
			}
			slices.Sort(names)
			call = all[names[len(kind)%len(names)]]
		}
		if err := call(ctx); err != nil && !strings.HasSuffix(err.Error(), io.EOF.Error()) {
			checkError(t, err)
		}
		if ctx.Err() != nil {
			t.Fatal("the call hung")
		}
		_ = c.Close()
		<-done
	})
}

// serveAnswer speaks the agent's end of one connection: the first stream gets the answer and is closed.
func serveAnswer(conn net.Conn, answer []byte) {
	defer conn.Close()
	if _, err := welcome(conn); err != nil {
		return
	}
	session, err := yamux.Server(conn, muxConfig())
	if err != nil {
		return
	}
	defer session.Close()
	s, err := session.AcceptStream()
	if err != nil {
		return
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(io.Discard, s)
	}()
	_, _ = s.Write(answer)
	_ = s.Close()
	<-read
	<-session.CloseChan()
}

// FuzzServe lets a node, or who took its place, say anything at all after a proper hello: the agent's end ends with the
// connection, and never before it has answered what it took.
func FuzzServe(f *testing.F) {
	stream := func(text string) []byte {
		b := []byte{0, muxUpdate, 0, muxSYN, 0, 0, 0, 1, 0, 0, 0, 0}
		b = append(b, 0, muxData, 0, 0, 0, 0, 0, 1, 0, 0, 0, byte(len(text)))
		return append(b, text...)
	}
	f.Add([]byte{})
	f.Add(stream(wireJSON(`{"op":"ping"}`)))
	f.Add(stream(wireJSON(`{"op":"list","limit":5,"params":2,"param_bytes":9}`) + wire(frameParams, "\x00\x00\x00\x01p\x00\x00\x00\x00")))
	f.Add(stream(wireJSON(`{"op":"write","body":true,"params":1,"param_bytes":5}`) + wire(frameParams, "\x00\x00\x00\x01p") + wire(frameData, "x")))
	f.Add([]byte{0, muxPing, 0, muxSYN, 0, 0, 0, 0, 0, 0, 0, 9})
	f.Add([]byte{0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) { toAgent(t, hello{Min: versionMin, Max: versionMax}, in) })
}

// FuzzLane sends bytes to the agent's end of a lane.
func FuzzLane(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte(wireJSON(`{"op":"ping"}`)))
	f.Add([]byte(wireJSON(`{"op":"ping"}`) + wireJSON(`{"op":"list","limit":5,"params":2,"param_bytes":9}`) + wire(frameParams, "\x00\x00\x00\x01p\x00\x00\x00\x00")))
	f.Add([]byte(wireJSON(`{"op":"write","body":true,"params":1,"param_bytes":5}`) + wire(frameParams, "\x00\x00\x00\x01p")))
	f.Add([]byte(wireJSON(`{"op":"run","unknown":1}`)))
	f.Fuzz(func(t *testing.T, in []byte) { toAgent(t, hello{Min: versionMin, Max: versionMax, Lane: true}, in) })
}

// toAgent sends a hello and bytes to an agent, which must end with the connection.
func toAgent(t *testing.T, ours hello, in []byte) {
	node, agent := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- ServeConn(context.Background(), agent, nothing{}) }()
	if _, _, err := greet(node, ours); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(io.Discard, node)
	}()
	_ = node.SetWriteDeadline(time.Now().Add(hostileWait))
	_, _ = node.Write(in)
	_ = node.Close()
	<-read
	select {
	case <-served:
	case <-time.After(hostileWait):
		t.Fatal("the agent's end hung")
	}
}
