package node_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// hostileWait bounds what must not depend on an agent that does not do its part.
const hostileWait = 30 * time.Second

// greeting answers the node's hello as an agent of today does.
func greeting(conn net.Conn) error {
	head := make([]byte, 6)
	if _, err := io.ReadFull(conn, head); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint16(head[4:]))); err != nil {
		return err
	}
	says := `{"min":1,"max":1,"features":["processes-2","files-2"]}`
	_, err := conn.Write(append([]byte{'D', 'F', 'A', '1', 0, byte(len(says))}, says...))
	return err
}

// answering greets and has every request answered by do.
func answering(do func(conn net.Conn, s *yamux.Stream)) func(net.Conn) {
	return func(conn net.Conn) {
		defer conn.Close()
		if greeting(conn) != nil {
			return
		}
		c := yamux.DefaultConfig()
		c.EnableKeepAlive, c.LogOutput = false, io.Discard
		session, err := yamux.Server(conn, c)
		if err != nil {
			return
		}
		defer session.Close()
		for {
			s, err := session.AcceptStream()
			if err != nil {
				return
			}
			go func() {
				defer s.Close()
				do(conn, s)
			}()
		}
	}
}

// TestHostileAgent puts somebody else behind the connection of one sandbox. Its callers get an error, at the latest when they
// lose patience; another sandbox, the reconciler and the sandbox's own end do not depend on it.
func TestHostileAgent(t *testing.T) {
	flood := bytes.Repeat([]byte("J\x00\x00\x00\x02{}"), 10_000)
	for _, tt := range []struct {
		name  string
		serve func(net.Conn)
	}{
		{"no hello", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }},
		{"a hello without end", func(c net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, c) }()
			for _, err := c.Write([]byte("DFA1\xff\xff")); err == nil; _, err = c.Write(flood) {
			}
		}},
		{"no answer", answering(func(_ net.Conn, s *yamux.Stream) { _, _ = io.Copy(io.Discard, s) })},
		{"answers without end", answering(func(_ net.Conn, s *yamux.Stream) {
			for _, err := s.Write(flood); err == nil; _, err = s.Write(flood) {
			}
		})},
		{"half an answer", answering(func(_ net.Conn, s *yamux.Stream) {
			_, _ = s.Write([]byte("J\x00\x00\x01\x00{"))
			_, _ = io.Copy(io.Discard, s)
		})},
		{"death at each request", answering(func(conn net.Conn, _ *yamux.Stream) { _ = conn.Close() })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			bad, good := w.create(), w.create()
			inst := w.driver.instance(bad.ID)
			inst.other.Store(&tt.serve)
			inst.cut()
			m := w.machine(bad.ID)
			var all sync.WaitGroup
			for name, call := range impatient(m) {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					done := make(chan error, 1)
					go func() { done <- call(ctx) }()
					select {
					case err := <-done:
						if err == nil {
							t.Errorf("%s: no error", name)
						}
					case <-time.After(hostileWait):
						t.Errorf("%s does not end", name)
					}
				})
			}
			w.runs(good.ID)
			if err := w.sweep(); err != nil {
				t.Errorf("the reconciler: %v", err)
			}
			all.Wait()
			w.runs(good.ID)
			ended := make(chan struct{})
			go func() { defer close(ended); w.destroy(bad.ID) }()
			select {
			case <-ended:
			case <-time.After(hostileWait):
				t.Error("it cannot be destroyed")
			}
			w.runs(good.ID)
			w.destroy(good.ID)
		})
	}
}

// impatient are calls into a machine that end with their context.
func impatient(m control.Machine) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"run": func(ctx context.Context) error { _, err := m.Run(ctx, command("true"), nil); return err },
		"start": func(ctx context.Context) error {
			s, _, err := m.Start(ctx, command("true"), strings.NewReader("x"))
			if err != nil {
				return err
			}
			defer s.Close()
			for {
				if _, err := s.Next(); err != nil {
					return err
				}
			}
		},
		"list": func(ctx context.Context) error {
			_, _, err := m.List(ctx, dayfly.ListQuery{Path: ".", Limit: 10})
			return err
		},
		"read": func(ctx context.Context) error {
			_, r, err := m.Read(ctx, "f", dayfly.FileRange{Length: -1})
			if err != nil {
				return err
			}
			defer r.Close()
			_, err = io.Copy(io.Discard, r)
			return err
		},
		"write": func(ctx context.Context) error {
			_, err := m.Write(ctx, "f", nil, io.LimitReader(zero{}, 64<<20))
			return err
		},
		"search": func(ctx context.Context) error {
			_, err := m.Search(ctx, dayfly.SearchQuery{Path: ".", Pattern: "x", Limit: 10})
			return err
		},
		"watch": func(ctx context.Context) error {
			s, err := m.Watch(ctx, ".", true /* recursive */)
			if err != nil {
				return err
			}
			defer s.Close()
			for {
				if _, err := s.Next(); err != nil {
					return err
				}
			}
		},
	}
}

type zero struct{}

func (zero) Read(p []byte) (int, error) { clear(p); return len(p), nil }
