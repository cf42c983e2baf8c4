package api

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"dayfly.dev/dayfly"
)

const (
	portMax = 65535
	// portLook is how long a look at a port may take at least, also where no wait was asked for: the question has to get there.
	portLook = time.Second
)

// listeningJSON tells whether something listens on a port.
type listeningJSON struct {
	Port      int   `json:"port"`
	Listening bool  `json:"listening"`
	WaitedMS  int64 `json:"waited_ms"`
}

// port is the {port} of the path.
func (c *call) port() (int, error) {
	text := c.r.PathValue("port")
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > portMax || strconv.Itoa(n) != text {
		bad := &problems{}
		bad.add("port", "must be a whole number from 1 to %d", portMax)
		return 0, bad.error()
	}
	return n, nil
}

// awaitPort answers once something listens on a port, or the time is over.
func awaitPort(c *call, timeout time.Duration) error {
	port, err := c.port()
	if err != nil {
		return err
	}
	m, err := c.machine()
	if err != nil {
		return err
	}
	c.mayTakeLong(http.StatusOK)
	begun := time.Now() // for waited_ms only
	ctx, cancel := context.WithTimeout(c.ctx(), max(timeout, portLook))
	defer cancel()
	err = m.AwaitPort(ctx, port)
	if err != nil && (ctx.Err() == nil || c.ctx().Err() != nil || dayfly.ErrorCode(err) == dayfly.CodeGone) {
		return err
	}
	return c.answer(http.StatusOK, listeningJSON{Port: port, Listening: err == nil, WaitedMS: time.Since(begun).Milliseconds()})
}
