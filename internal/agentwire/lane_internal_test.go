package agentwire

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

// laneWait bounds the wait for two answers.
const laneWait = 10 * time.Second

// laned is a client of an honest agent with one lane, on which somebody answers the first request with the given bytes, and stays
// or leaves.
func laned(t *testing.T, answer []byte, stays bool) (c *Client, end func()) {
	node, agent := net.Pipe()
	served, said := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(served)
		_ = ServeConn(context.Background(), agent, nothing{})
	}()
	c, err := NewClient(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	c.lanes.made = lanesMax // no others
	c.closing.Add(1)
	c.addLane(func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer close(said)
			if _, err := welcome(far); err != nil {
				return
			}
			in := newFrameReader(far)
			if _, _, err := in.next(); err != nil {
				return
			}
			read := make(chan struct{})
			go func() {
				defer close(read)
				_, _ = io.Copy(io.Discard, far)
			}()
			_, _ = far.Write(answer)
			if stays {
				<-read
			}
			_ = far.Close()
			<-read
		}()
		return near, nil
	})
	return c, func() {
		_ = c.Close()
		c.lanes.end()
		<-served
		<-said
	}
}

// FuzzLaneAnswers answers a command on a lane with any bytes: the command ends, and what was said beyond its answer is not believed.
func FuzzLaneAnswers(f *testing.F) {
	const result = `{"result":{"id":"x","exit":{"code":3},"stdout":{"head":1,"bytes":1}}}`
	f.Add([]byte{})
	f.Add([]byte(wireJSON(result) + wire(frameData, "x") + wire(frameEnd, "")))
	f.Add([]byte(wireJSON(result) + wire(frameData, "x") + wire(frameEnd, "") + wireJSON(result) + wire(frameData, "y")))
	f.Add([]byte(wireJSON(result) + wire(frameData, "xy")))
	f.Add([]byte(wireJSON(`{"error":{"code":"invalid_request","message":"no"}}`) + wireJSON(result)))
	f.Add([]byte("J\x00\x00"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		c, end := laned(t, answer, false)
		defer end()
		ctx, cancel := context.WithTimeout(t.Context(), hostileWait)
		defer cancel()
		if _, err := c.Run(ctx, dayfly.ProcessSpec{ID: "x", Command: "true"}, nil); err != nil && !errors.Is(err, ErrLost) && !strings.HasSuffix(err.Error(), io.EOF.Error()) {
			checkError(t, err)
		}
		if ctx.Err() != nil {
			t.Fatal("the call hung")
		}
	})
}

// TestALaneThatSaysTooMuch: an answer that nobody asked for is not the next command's.
func TestALaneThatSaysTooMuch(t *testing.T) {
	said := wireJSON(`{"result":{"id":"x","exit":{"code":7}}}`)
	c, end := laned(t, []byte(said+said), true)
	defer end()
	ctx, cancel := context.WithTimeout(t.Context(), laneWait)
	defer cancel()
	for i, want := range []int{7, 0} {
		res, err := c.Run(ctx, dayfly.ProcessSpec{ID: "x", Command: "true"}, nil)
		if err != nil || res.Exit.Code != want {
			t.Errorf("command %d: %+v, %v", i, res.Exit, err)
		}
	}
}
