package api

import (
	"net/http"
	"sync"
	"time"
)

// waiting keeps a long plain answer alive: after a silence the head of success goes out, then a space for each further one.
type waiting struct {
	c      *call
	status int
	stop   chan struct{}
	done   sync.WaitGroup

	mu    sync.Mutex
	ended bool
	sent  bool // the head has gone
}

// mayTakeLong begins to keep the answer alive. status is that of success. Everything that writes an answer ends it first; until
// then nobody else may touch the response or its header.
func (c *call) mayTakeLong(status int) {
	c.wait = &waiting{c: c, status: status, stop: make(chan struct{})}
	c.wait.begin()
}

// afterBody is mayTakeLong from the end of the request's body on: before, the client does not look for an answer.
func (c *call) afterBody(status int) {
	body, ok := c.r.Body.(*requestBody)
	if !ok || c.r.ContentLength == 0 {
		c.mayTakeLong(status)
		return
	}
	c.wait = &waiting{c: c, status: status, stop: make(chan struct{})}
	body.mu.Lock()
	defer body.mu.Unlock()
	body.atEnd = c.wait.begin
}

// begin starts the signs of life, unless they have ended already.
func (w *waiting) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.done.Go(w.run)
	}
}

func (w *waiting) run() {
	tick := time.NewTicker(w.c.silence)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-w.c.ctx().Done():
			return
		case <-tick.C:
			w.sign()
		}
	}
}

// sign sends one sign of life. That it cannot be written shows at the next write.
func (w *waiting) sign() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.sent {
		w.sent = true
		w.c.w.Header().Set("Content-Type", "application/json")
		w.c.w.Header().Set("Cache-Control", "no-store")
		w.c.w.WriteHeader(w.status)
	}
	_, _ = w.c.w.Write([]byte(" "))
	_ = http.NewResponseController(w.c.w).Flush()
}

// end stops the signs of life and tells whether the head has gone. It may be called again.
func (w *waiting) end() bool {
	w.mu.Lock()
	if !w.ended {
		w.ended = true
		close(w.stop)
	}
	w.mu.Unlock()
	w.done.Wait()
	return w.sent
}
