package api_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"dayfly.dev/dayfly/internal/api"
)

// TestLimit: somebody who opens connections and says nothing gets as many as the limit and no more; a closed one makes room.
func TestLimit(t *testing.T) {
	const most = 3
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := api.NewServer(http.NotFoundHandler(), nil)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(api.Limit(inner, most)) }()
	t.Cleanup(func() {
		_ = srv.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	dial := func() net.Conn {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(waitMax))
		return c
	}
	ask := func(c net.Conn) error {
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return err
		}
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil {
			_ = r.Body.Close()
		}
		return err
	}
	var open []net.Conn
	for range most {
		c := dial()
		if err := ask(c); err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	if err := ask(dial()); err == nil {
		t.Error("a connection over the limit is served")
	}
	if err := ask(open[0]); err != nil {
		t.Errorf("a connection within the limit: %v", err)
	}
	_ = open[0].Close()
	for begun := time.Now(); ask(dial()) != nil; { // the server notices the close in its own time
		if time.Since(begun) > waitMax {
			t.Fatal("no room after a connection was closed")
		}
	}
}
