package agent

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Limits of the agent's own clock.
const (
	clockLate = dayfly.AgentLate // after the lease's end
	grantMax  = 32               // bytes of a grant file
)

// clock is the last resort that ends the machine. It counts on the monotonic clock, so no step of any wall clock matters, and it
// knows no host time: it counts from its own start until a node tells how old the lease was then, which is more where a start took long.
type clock struct {
	older chan struct{} // wakes run

	mu   sync.Mutex
	born time.Time // of the lease, as far as is known

	granted time.Duration
	dir     *os.File // of the grant file, held open so that nothing mounted over it later hides it, or nil
	name    string
}

func newClock(granted time.Duration, file string) (*clock, error) {
	c := &clock{born: time.Now(), granted: granted, older: make(chan struct{}, 1)}
	if file == "" {
		return c, nil
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return nil, fmt.Errorf("open the grant's directory: %w", err)
	}
	c.dir, c.name = dir, filepath.Base(file)
	return c, nil
}

// aged takes what a node says of the lease's age. It only ever makes it older.
func (c *clock) aged(age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	born := time.Now().Add(-age)
	if !born.Before(c.born) {
		return
	}
	c.born = born
	select {
	case c.older <- struct{}{}:
	default: // it is told already
	}
}

func (c *clock) birth() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.born
}

// run waits for the end of the grant and calls end, unless the grant has grown by then. Without a grant it only returns
// when ctx ends.
func (c *clock) run(ctx context.Context, end func()) {
	if c.granted <= 0 {
		return
	}
	for {
		timer := time.NewTimer(time.Until(c.birth().Add(c.granted + clockLate)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-c.older:
			timer.Stop()
			continue
		case <-timer.C:
		}
		granted, err := c.read()
		if err != nil || granted <= c.granted { // an unreadable grant is the last known one
			end()
			return
		}
		c.granted = granted
	}
}

// read reads the grant file as it is now.
func (c *clock) read() (time.Duration, error) {
	if c.dir == nil {
		return 0, os.ErrNotExist
	}
	fd, err := unix.Openat(int(c.dir.Fd()), c.name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open grant: %w", err)
	}
	f := os.NewFile(uintptr(fd), c.name)
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, grantMax+1))
	if err != nil {
		return 0, fmt.Errorf("read grant: %w", err)
	}
	return parseGrant(b)
}

// parseGrant reads the seconds granted since birth: digits and perhaps a newline.
func parseGrant(b []byte) (time.Duration, error) {
	s := strings.TrimSuffix(string(b), "\n")
	if len(b) > grantMax || s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, fmt.Errorf("grant %q is not a number of seconds", b[:min(len(b), grantMax)])
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n > int64(dayfly.LeaseCeiling/time.Second) {
		return 0, fmt.Errorf("grant of %s seconds is beyond the ceiling", s)
	}
	return time.Duration(n) * time.Second, nil
}
