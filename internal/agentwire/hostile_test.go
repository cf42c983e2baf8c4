package agentwire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"dayfly.dev/dayfly"
)

// Limits of what hostile agents may cost the node in these tests.
const (
	hostileBytes = 64 << 20  // in use soon after an attack
	peakBytes    = 512 << 20 // from the system, at most, for all attacks, this test's own included
	lastBytes    = 16 << 20  // in use after all attacks
	hostileWait  = time.Minute
	stallWait    = 200 * time.Millisecond // how long a caller waits for one that stalls
	floodBytes   = 4 << 20                // taken from an endless stream before its reader leaves
	callsAtOnce  = 2
)

// sockets gives both ends of a connection as between node and agent.
func sockets(t *testing.T) (node, agent net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if node, err = net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if agent, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return node, agent
}

// greeted says an honest agent's hello and then has serve do what it wants with the connection, which ends with the test.
func greeted(t *testing.T, serve func(conn net.Conn)) *Client {
	t.Helper()
	node, agent := sockets(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := welcome(agent); err == nil {
			serve(agent)
		}
	}()
	c, err := NewClient(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ended := make(chan struct{})
		go func() { defer close(ended); _ = c.Close() }()
		select {
		case <-ended:
		case <-time.After(hostileWait):
			t.Error("the client cannot be closed")
		}
		_ = agent.Close()
		<-done
	})
	return c
}

// answering is an agent that answers every request with the attack.
func answering(t *testing.T, attack func(conn net.Conn, s *yamux.Stream)) *Client {
	t.Helper()
	return greeted(t, func(conn net.Conn) {
		session, err := yamux.Server(conn, muxConfig())
		if err != nil {
			return
		}
		defer session.Close()
		var all sync.WaitGroup
		defer all.Wait()
		defer session.Close()
		for {
			s, err := session.AcceptStream()
			if err != nil {
				return
			}
			all.Go(func() {
				defer s.Close()
				attack(conn, s)
			})
		}
	})
}

// endless writes a first message and then the same bytes for ever.
func endless(first string, again ...string) func(net.Conn, *yamux.Stream) {
	one := strings.Join(again, "")
	all := []byte(strings.Repeat(one, 1+dataMax/len(one)))
	return func(_ net.Conn, s *yamux.Stream) {
		_, err := io.WriteString(s, first)
		for err == nil {
			_, err = s.Write(all)
		}
	}
}

// once writes bytes and then says nothing more, until the client has left.
func once(text string) func(net.Conn, *yamux.Stream) {
	return func(_ net.Conn, s *yamux.Stream) {
		if _, err := io.WriteString(s, text); err == nil {
			_, _ = io.Copy(io.Discard, s)
		}
	}
}

// wire is a frame as it travels.
func wire(kind byte, payload string) string {
	return string(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(payload)))) + payload
}

func wireJSON(format string, args ...any) string {
	return wire(frameJSON, fmt.Sprintf(format, args...))
}

// many is a list of n of the same thing, as much as a frame takes.
func many(thing string, n int) string {
	return strings.TrimSuffix(strings.Repeat(thing+",", min(n, (jsonMax-1000)/(len(thing)+1))), ",")
}

// calls are all that a node asks of an agent. Each reads its answer to the end, or to floodBytes of it.
func calls(c *Client) map[string]func(ctx context.Context) error {
	drain := func(r io.ReadCloser, err error) error {
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = io.CopyN(io.Discard, r, floodBytes)
		return err
	}
	output := func(out dayfly.OutputStream, err error) error {
		if err != nil {
			return err
		}
		defer out.Close()
		for n := 0; n < floodBytes; {
			o, err := out.Next()
			if err != nil {
				return err
			}
			n += len(o.Data) + frameHeader + offsetBytes
		}
		return nil
	}
	spec := dayfly.ProcessSpec{ID: "pr1", Command: "c"}
	return map[string]func(ctx context.Context) error{
		"ping":      func(ctx context.Context) error { return c.Ping(ctx) },
		"run":       func(ctx context.Context) error { _, err := c.Run(ctx, spec, nil); return err },
		"result":    func(ctx context.Context) error { _, err := c.Result(ctx, "pr1"); return err },
		"start":     func(ctx context.Context) error { out, _, err := c.Start(ctx, spec, nil); return output(out, err) },
		"process":   func(ctx context.Context) error { _, err := c.Process(ctx, "pr1"); return err },
		"processes": func(ctx context.Context) error { _, err := c.Processes(ctx); return err },
		"stat":      func(ctx context.Context) error { _, err := c.Stat(ctx, "f"); return err },
		"write": func(ctx context.Context) error {
			_, err := c.Write(ctx, "f", nil, io.LimitReader(endlessZeros{}, floodBytes))
			return err
		},
		"list": func(ctx context.Context) error {
			_, _, err := c.List(ctx, dayfly.ListQuery{Path: "d", Limit: 1000})
			return err
		},
		"read": func(ctx context.Context) error {
			_, r, err := c.Read(ctx, "f", dayfly.FileRange{Length: -1})
			return drain(r, err)
		},
		"read archive": func(ctx context.Context) error { return drain(c.ReadArchive(ctx, "d")) },
		"search": func(ctx context.Context) error {
			_, err := c.Search(ctx, dayfly.SearchQuery{Path: ".", Pattern: "x", Limit: dayfly.SearchLimitMax})
			return err
		},
		"find": func(ctx context.Context) error {
			_, _, err := c.Find(ctx, dayfly.FindQuery{Path: ".", Limit: dayfly.SearchLimitMax})
			return err
		},
		"watch": func(ctx context.Context) error {
			w, err := c.Watch(ctx, ".", true)
			if err != nil {
				return err
			}
			defer w.Close()
			for n := 0; n < floodBytes; {
				change, err := w.Next()
				if err != nil {
					return err
				}
				n += len(change.Path) + 64 // what a change costs at least
			}
			return nil
		},
	}
}

type endlessZeros struct{}

func (endlessZeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestHostileAnswers: whatever an agent answers, the call ends, the node's memory stays bounded, and others do not notice.
func TestHostileAnswers(t *testing.T) {
	const file = `{"name":"Zg==","path":"L2Y=","type":"file","size":2,"mode":420,"modified_at":"2026-01-02T03:04:05Z"}`
	const process = `{"process":{"id":"pr1","pid":7,"status":"running","command":"YQ==","on_disconnect":"grace"}}`
	big := strings.Repeat("QUFB", 200<<10/4)
	honest := connectNothing(t)
	if err := honest.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := memory()
	goroutines := runtime.NumGoroutine()
	for _, tt := range []struct {
		name   string
		attack func(net.Conn, *yamux.Stream)
		stalls bool // only the caller's own patience ends a call
	}{
		{"empty messages for ever", endless("", wireJSON(`{}`)), false},
		{"data for ever", endless("", wire(frameData, strings.Repeat("x", dataMax))), false},
		{"empty data for ever", endless(wireJSON(`{"files":[%s]}`, file), wire(frameData, "")), false},
		{"a file for ever", endless(wireJSON(`{"files":[%s]}`, file), wire(frameData, strings.Repeat("x", dataMax))), false},
		{"output for ever", endless(wireJSON(process), wire(frameStdout, "\x00\x00\x00\x00\x00\x00\x00\x01x"), wire(frameStderr, "\xff\xff\xff\xff\xff\xff\xff\xffx")), false},
		{"empty output for ever", endless(wireJSON(process), wire(frameStdout, "\x00\x00\x00\x00\x00\x00\x00\x00")), false},
		{"processes for ever", endless("", wireJSON(process)), false},
		{"entries for ever", endless("", wireJSON(`{"files":[%s]}`, file)), false},
		{"large entries for ever", endless("", wireJSON(`{"files":[{"name":"%s","path":"%s","target":"%s"}]}`, big, big, big)), false},
		{"empty entries, as many as fit", endless("", wireJSON(`{"files":[%s]}`, many("{}", jsonMax))), false},
		{"matches for ever", endless("", wireJSON(`{"matches":[{"path":"Lw==","line":1,"column":1,"text":"%s"}]}`, big)), false},
		{"empty matches, as many as fit", endless("", wireJSON(`{"matches":[%s]}`, many("{}", jsonMax))), false},
		{"empty lines, as many as fit", endless("", wireJSON(`{"matches":[{"before":[%s]}]}`, many(`""`, jsonMax))), false},
		{"changes for ever", endless(wireJSON(`{}`), wireJSON(`{"change":{"kind":"created","path":"%s"}}`, big)), false},
		{"changes of no kind", endless(wireJSON(`{}`), wireJSON(`{"change":{"kind":"?","path":"","type":"?"}}`)), false},
		{"a huge head", once(wireJSON(`{"result":{"stdout":{"head":1073741824,"bytes":1073741824}}}`)), true},
		{"a negative head", once(wireJSON(`{"result":{"stdout":{"head":-1,"bytes":-1}}}`)), true},
		{"a head that never comes", once(wireJSON(`{"result":{"stdout":{"head":16777216,"bytes":16777216}}}`)), true},
		{"numbers beyond all", once(wireJSON(`{"process":{"pid":1e400}}`)), true},
		{"deep nesting", once(wire(frameJSON, strings.Repeat(`[`, jsonMax-1))), true},
		{"a long error", once(wireJSON(`{"error":{"code":"unauthorized","message":"%s","hint":"%s"}}`, big, big)), true},
		{"an unknown frame", once("?\x00\x00\x00\x00"), true},
		{"a frame beyond the limit", once("D\xff\xff\xff\xff"), true},
		{"half a header", once("J\x00"), true},
		{"half a message", once(wireJSON(process)[:20]), true},
		{"half a file", once(wireJSON(`{"files":[%s]}`, file) + wire(frameData, "xyz")[:7]), true},
		{"nothing at all", once(""), true},
		{"the end at once", func(_ net.Conn, s *yamux.Stream) { _ = s.Close() }, false},
		{"death in the middle", func(conn net.Conn, s *yamux.Stream) { _, _ = io.WriteString(s, wireJSON(process)); _ = conn.Close() }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var all sync.WaitGroup
			for name, call := range calls(answering(t, tt.attack)) {
				for range callsAtOnce {
					all.Go(func() { endsInTime(t, name, call, tt.stalls) })
				}
			}
			if err := honest.Ping(t.Context()); err != nil {
				t.Errorf("another sandbox: %v", err)
			}
			all.Wait()
			backTo(t, "memory", func() bool { return grown(before) <= hostileBytes })
		})
	}
	if peak := int64(memory().Sys) - int64(before.Sys); peak > peakBytes {
		t.Errorf("the node took %d MiB", peak>>20)
	}
	backTo(t, "goroutines", func() bool { return runtime.NumGoroutine() <= goroutines })
	backTo(t, "memory", func() bool { return grown(before) <= lastBytes })
}

// memory is what this process has now, without garbage.
func memory() (m runtime.MemStats) {
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}

// grown is by how much what is in use grew.
func grown(before runtime.MemStats) int64 { return int64(memory().HeapAlloc) - int64(before.HeapAlloc) }

// endsInTime makes a call and waits for its end, which comes by itself unless the agent stalls.
func endsInTime(t *testing.T, name string, call func(context.Context) error, stalls bool) {
	patience := 2 * hostileWait
	if stalls {
		patience = stallWait
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	select {
	case err := <-done:
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, context.DeadlineExceeded) {
			checkError(t, err)
		}
	case <-time.After(hostileWait):
		t.Errorf("%s does not end", name)
	}
}

// backTo waits until something is as before.
func backTo(t *testing.T, what string, same func() bool) {
	t.Helper()
	const tick = 20 * time.Millisecond
	for deadline := time.Now().Add(hostileWait); !same(); <-time.After(tick) {
		if time.Now().After(deadline) {
			buf := make([]byte, 64<<10)
			t.Fatalf("%s: not as before\n%s", what, buf[:runtime.Stack(buf, true)])
		}
	}
}

// connectNothing gives a client of an honest agent that does nothing.
func connectNothing(t *testing.T) *Client {
	t.Helper()
	node, agent := sockets(t)
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { served <- ServeConn(ctx, agent, nothing{}) }()
	c, err := NewClient(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		cancel()
		<-served
	})
	return c
}

// TestHostileSessions: an agent that breaks the session's own rules loses the session, and nobody else notices.
func TestHostileSessions(t *testing.T) {
	mux := func(kind byte, flags uint16, stream, size uint32) string {
		b := []byte{0, kind}
		b = binary.BigEndian.AppendUint16(b, flags)
		b = binary.BigEndian.AppendUint32(b, stream)
		return string(binary.BigEndian.AppendUint32(b, size))
	}
	const ack, fin, rst = 2, 4, 8
	honest := connectNothing(t)
	if err := honest.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	goroutines := runtime.NumGoroutine()
	for _, tt := range []struct {
		name  string
		again string
		fatal bool // the session ends for it
	}{
		{"pings", mux(muxPing, muxSYN, 0, 1), true},
		{"answers to no ping", mux(muxPing, ack, 0, 1), true},
		{"streams of its own", mux(muxUpdate, muxSYN, 2, 0), true},
		{"streams with data of its own", mux(muxData, muxSYN, 2, 1) + "x", true},
		{"data of no stream", mux(muxData, 0, 99, 1000) + strings.Repeat("x", 1000), false},
		{"data beyond the window", mux(muxData, ack, 1, windowBytes+1) + strings.Repeat("x", windowBytes+1), false},
		{"windows beyond all", mux(muxUpdate, ack, 1, 0xffffffff), false},
		{"resets", mux(muxUpdate, rst, 1, 0), false},
		{"ends", mux(muxUpdate, fin, 1, 0), false},
		{"farewells", mux(3, 0, 0, 0), false},
		{"an unknown version", "\x09" + mux(muxData, 0, 1, 0)[1:], true},
		{"an unknown type", mux(9, 0, 1, 0), true},
		{"noise", "\xde\xad\xbe\xef", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := greeted(t, func(conn net.Conn) {
				go func() { _, _ = io.Copy(io.Discard, conn) }()
				flood := strings.Repeat(tt.again, 1+dataMax/len(tt.again))
				for n := 0; n < floodBytes; n += len(flood) {
					if _, err := io.WriteString(conn, flood); err != nil {
						return
					}
				}
			})
			var all sync.WaitGroup
			for name, call := range calls(c) {
				all.Go(func() { endsInTime(t, name, call, true /* it may never answer */) })
			}
			all.Wait()
			if tt.fatal {
				select {
				case <-c.Done():
				case <-time.After(hostileWait):
					t.Error("the session goes on")
				}
			}
			if err := honest.Ping(t.Context()); err != nil {
				t.Errorf("another sandbox: %v", err)
			}
		})
	}
	backTo(t, "goroutines", func() bool { return runtime.NumGoroutine() <= goroutines })
}

// TestAgentThatTakesNothing: requests that an agent does not take cost bounded memory, and nothing once it is gone.
func TestAgentThatTakesNothing(t *testing.T) {
	const requests, each = 100, 4 << 20
	honest := connectNothing(t)
	if err := honest.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, goroutines := memory(), runtime.NumGoroutine()
	for _, tt := range []struct {
		name  string
		serve func(conn net.Conn)
	}{
		{"reads no stream", func(conn net.Conn) {
			session, err := yamux.Server(conn, muxConfig())
			if err != nil {
				return
			}
			defer session.Close()
			<-session.CloseChan()
		}},
		{"takes streams and reads nothing of them", func(conn net.Conn) {
			session, err := yamux.Server(conn, muxConfig())
			if err != nil {
				return
			}
			defer session.Close()
			for {
				if _, err := session.AcceptStream(); err != nil {
					return
				}
			}
		}},
		{"reads nothing at all", func(net.Conn) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := greeted(t, tt.serve)
			for range requests {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				spec := dayfly.ProcessSpec{ID: "pr1", Command: strings.Repeat("x", each)}
				if _, err := c.Run(ctx, spec, nil); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v", err)
				}
				cancel()
			}
			if held := grown(before); held > 2*sendingMax { // what is being sent, and copies of it
				t.Errorf("the node holds %d MiB", held>>20)
			}
			if n := runtime.NumGoroutine() - goroutines; n > 2*requests {
				t.Errorf("%d goroutines more", n)
			}
			if err := honest.Ping(t.Context()); err != nil {
				t.Errorf("another sandbox: %v", err)
			}
		})
	}
	backTo(t, "goroutines", func() bool { return runtime.NumGoroutine() <= goroutines })
	backTo(t, "memory", func() bool { return grown(before) <= lastBytes })
}
