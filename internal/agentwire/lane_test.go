package agentwire_test

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agentwire"
)

// laneWait bounds the wait for a lane.
const laneWait = 10 * time.Second

// widened joins a client and a server that serves m on as many connections as the client opens. opened counts them, open are
// those that are there now.
type widened struct {
	*agentwire.Client
	opened, open atomic.Int32
}

func widen(t *testing.T, m agentwire.Machine) *widened {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	w := &widened{}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w.opened.Add(1)
			w.open.Add(1)
			all.Go(func() {
				defer w.open.Add(-1)
				_ = agentwire.ServeConn(context.WithoutCancel(t.Context()), conn, m)
			})
		}
	})
	dial := func(context.Context) (net.Conn, error) { return net.Dial("unix", l.Addr().String()) }
	conn, err := dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if w.Client, err = agentwire.NewClient(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	w.Widen(dial)
	t.Cleanup(func() {
		_ = w.Close()
		_ = l.Close()
		all.Wait()
	})
	return w
}

// onLanes runs commands until n lanes were opened beside the session.
func (w *widened) onLanes(t *testing.T, n int32) {
	t.Helper()
	for end := time.Now().Add(laneWait); w.opened.Load() < 1+n; {
		if _, err := w.Run(t.Context(), dayfly.ProcessSpec{ID: "warm"}, nil); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatalf("%d lanes", w.opened.Load()-1)
		}
	}
}

func TestLanes(t *testing.T) {
	ok := func(_ context.Context, spec dayfly.ProcessSpec, _ io.Reader) (dayfly.Result, error) {
		if spec.Command == "fail" {
			return dayfly.Result{}, dayfly.Errorf(dayfly.CodeInvalid, "no")
		}
		return dayfly.Result{ID: spec.ID, Stdout: dayfly.Captured{Head: []byte(spec.Command), Bytes: int64(len(spec.Command))}}, nil
	}
	t.Run("one after the other", func(t *testing.T) {
		w := widen(t, machine{run: ok})
		w.onLanes(t, 1)
		for _, command := range []string{"a", "", strings.Repeat("long", 100<<10), "b"} {
			res, err := w.Run(t.Context(), dayfly.ProcessSpec{ID: "x", Command: command}, nil)
			if err != nil || string(res.Stdout.Head) != command {
				t.Errorf("%.10q: %.10q, %v", command, res.Stdout.Head, err)
			}
		}
		if n := w.opened.Load(); n > 3 {
			t.Errorf("%d connections", n)
		}
	})
	t.Run("errors", func(t *testing.T) {
		w := widen(t, machine{run: ok})
		w.onLanes(t, 1)
		for range 20 {
			if _, err := w.Run(t.Context(), dayfly.ProcessSpec{ID: "x", Command: "fail"}, nil); dayfly.ErrorCode(err) != dayfly.CodeInvalid {
				t.Error(err)
			}
			if _, err := w.Run(t.Context(), dayfly.ProcessSpec{ID: "x"}, nil); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("many at once", func(t *testing.T) {
		w := widen(t, machine{run: ok})
		w.onLanes(t, 1)
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				res, err := w.Run(t.Context(), dayfly.ProcessSpec{ID: "x", Command: "c"}, nil)
				if err != nil || string(res.Stdout.Head) != "c" {
					t.Error(res, err)
				}
			})
		}
		all.Wait()
	})
	t.Run("who leaves is noticed, and the next one is served", func(t *testing.T) {
		started, left := make(chan struct{}, 1), make(chan struct{}, 1)
		w := widen(t, machine{run: func(ctx context.Context, spec dayfly.ProcessSpec, in io.Reader) (dayfly.Result, error) {
			if spec.Command != "wait" {
				return ok(ctx, spec, in)
			}
			started <- struct{}{}
			<-ctx.Done()
			left <- struct{}{}
			return dayfly.Result{}, ctx.Err()
		}})
		w.onLanes(t, 1)
		const leavers = 30
		before := runtime.NumGoroutine()
		for range leavers {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-started
				cancel()
			}()
			if _, err := w.Run(ctx, dayfly.ProcessSpec{ID: "x", Command: "wait"}, nil); !errors.Is(err, context.Canceled) {
				t.Errorf("the caller got %v", err)
			}
			<-left
			if res, err := w.Run(t.Context(), dayfly.ProcessSpec{ID: "x", Command: "next"}, nil); err != nil || string(res.Stdout.Head) != "next" {
				t.Error(res, err)
			}
		}
		for end := time.Now().Add(laneWait); runtime.NumGoroutine() > before+leavers/2; {
			if time.Now().After(end) {
				t.Fatalf("%d goroutines, then %d", before, runtime.NumGoroutine())
			}
			time.Sleep(time.Millisecond) // goroutines that end give no event
		}
	})
	t.Run("a long one", func(t *testing.T) {
		w := widen(t, machine{run: func(ctx context.Context, spec dayfly.ProcessSpec, in io.Reader) (dayfly.Result, error) {
			if spec.Command == "long" {
				select {
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond): // longer than nobody watches
				}
			}
			return ok(ctx, spec, in)
		}})
		w.onLanes(t, 1)
		for range 3 {
			if res, err := w.Run(t.Context(), dayfly.ProcessSpec{ID: "x", Command: "long"}, nil); err != nil || string(res.Stdout.Head) != "long" {
				t.Error(res, err)
			}
		}
	})
	t.Run("closing ends them", func(t *testing.T) {
		w := widen(t, machine{run: ok})
		w.onLanes(t, 1)
		_ = w.Close()
		if _, err := w.Run(t.Context(), dayfly.ProcessSpec{ID: "x"}, nil); !errors.Is(err, agentwire.ErrLost) {
			t.Error(err)
		}
		for end := time.Now().Add(laneWait); w.open.Load() > 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond) // the other end of a socket gives no event
		}
		if n := w.open.Load(); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	})
}
