package agent_test

import (
	"context"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

// freePort gives a port that nothing listens on. Another test may take it, which these tests survive.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func TestAwaitPort(t *testing.T) {
	m := startAgent(t, options{})
	for _, host := range []string{"127.0.0.1", "127.0.0.77", "::1"} {
		t.Run(host, func(t *testing.T) {
			port := freePort(t)
			ctx, cancel := context.WithTimeout(t.Context(), testLimit)
			defer cancel()
			var listening time.Time
			var waiters sync.WaitGroup
			late := make(chan time.Time, 50)
			for range cap(late) {
				waiters.Go(func() {
					if err := m.AwaitPort(ctx, port); err != nil {
						t.Error(err)
					}
					late <- time.Now()
				})
			}
			m.run(t, shell("sleep 0.1"))
			if len(late) > 0 {
				t.Error("somebody was told before anything listened")
			}
			l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
			if err != nil {
				t.Skip(err)
			}
			defer l.Close()
			listening = time.Now()
			waiters.Wait()
			close(late)
			worst := time.Duration(0)
			for at := range late {
				worst = max(worst, at.Sub(listening))
			}
			t.Logf("told after at most %s", worst)
			start := time.Now()
			if err := m.AwaitPort(ctx, port); err != nil {
				t.Error(err)
			}
			t.Logf("told of an open one in %s", time.Since(start))
		})
	}
}

func TestAwaitPortInside(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		port := freePort(t)
		s := shell(`sleep 0.1; exec python3 -c "
import socket
s=socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', ` + strconv.Itoa(port) + `)); s.listen(); input()"`)
		s.OpenStdin = true
		m.start1(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), testLimit)
		defer cancel()
		if err := m.AwaitPort(ctx, port); err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	})
}

func TestAwaitPortRefuses(t *testing.T) {
	m := startAgent(t, options{})
	for _, port := range []int{-1, 0, 65536} {
		wantCode(t, m.AwaitPort(t.Context(), port), dayfly.CodeInvalid)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := m.AwaitPort(ctx, freePort(t)); err == nil || ctx.Err() == nil {
		t.Errorf("it returned %v before the time was over", err)
	}
}
