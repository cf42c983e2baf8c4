// Package clock is the one place that reads the host's clocks. Everything else takes a dayfly.Instant or a Clock, so tests
// can step time. It makes no decisions.
package clock

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Clock reads the clocks of the host.
type Clock interface {
	// Now never blocks.
	Now() dayfly.Instant
}

const bootIDFile = "/proc/sys/kernel/random/boot_id"

// Host is the clock of this host.
type Host struct {
	bootID string
}

// NewHost reads the boot id once; it cannot change while a process lives.
func NewHost() (Host, error) {
	b, err := os.ReadFile(bootIDFile)
	if err != nil {
		return Host{}, fmt.Errorf("read boot id: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if id == "" {
		return Host{}, fmt.Errorf("read boot id: %s is empty", bootIDFile)
	}
	return Host{bootID: id}, nil
}

// Now implements Clock.
func (h Host) Now() dayfly.Instant {
	return dayfly.Instant{Wall: time.Now(), Boot: Boot(), BootID: h.bootID}
}

// Boot reads CLOCK_BOOTTIME: the time since boot, suspended time included. It cannot fail on Linux.
func Boot() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano())
}
