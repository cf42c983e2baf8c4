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

	mu    sync.Mutex
	timer *time.Timer // of the next sign of life, or nil before the first is due
	ended bool
	sent  bool // the head has gone
}

// mayTakeLong begins to keep the answer alive. status is that of success. Everything that writes an answer ends it first; until
// then nobody else may touch the response or its header.
func (c *call) mayTakeLong(status int) {
	c.wait = &waiting{c: c, status: status}
	c.wait.begin()
}

// afterBody is mayTakeLong from the end of the request's body on: before, the client does not look for an answer.
func (c *call) afterBody(status int) {
	body, ok := c.r.Body.(*requestBody)
	if !ok || c.r.ContentLength == 0 {
		c.mayTakeLong(status)
		return
	}
	c.wait = &waiting{c: c, status: status}
	body.mu.Lock()
	defer body.mu.Unlock()
	body.atEnd = c.wait.begin
}

// begin starts the signs of life, unless they have ended already.
func (w *waiting) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.timer = time.AfterFunc(w.c.silence, w.sign) // most answers come before it: nothing runs for them
	}
}

// sign sends one sign of life and has the next one come. That it cannot be written shows at the next write.
func (w *waiting) sign() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || w.c.ctx().Err() != nil {
		return
	}
	if !w.sent {
		w.sent = true
		w.c.w.Header().Set("Content-Type", "application/json")
		w.c.w.Header().Set("Cache-Control", "no-store")
		w.c.w.WriteHeader(w.status)
	}
	_, _ = w.c.w.Write([]byte(" "))
	_ = http.NewResponseController(w.c.w).Flush()
	w.timer.Reset(w.c.silence)
}

// end stops the signs of life and tells whether the head has gone. No sign is sent after it. It may be called again.
func (w *waiting) end() bool {
	w.mu.Lock() // waits for a sign that is being sent
	defer w.mu.Unlock()
	w.ended = true
	if w.timer != nil {
		w.timer.Stop()
	}
	return w.sent
}
