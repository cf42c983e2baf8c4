package warden

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/clock"
)

// alarm is a timer on CLOCK_BOOTTIME: suspended time counts, a step of the wall clock does not.
type alarm struct {
	file  *os.File
	fired chan struct{} // one element after it fired
	done  chan struct{}
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make timer: %w", err)
	}
	a := &alarm{file: os.NewFile(uintptr(fd), "timerfd"), fired: make(chan struct{}, 1), done: make(chan struct{})}
	go func() {
		defer close(a.done)
		var buf [8]byte
		for {
			if _, err := a.file.Read(buf[:]); err != nil {
				return // closed
			}
			select {
			case a.fired <- struct{}{}:
			default:
			}
		}
	}()
	return a, nil
}

// set arms the alarm to fire after d, at once for d ≤ 0. The time is absolute in the kernel, so a stopped process that
// goes on fires at once.
func (a *alarm) set(d time.Duration) error {
	at := max(1, int64(clock.Boot()+max(0, d)))
	conn, err := a.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("set timer: %w", err)
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(at)}
	var setErr error
	if err := conn.Control(func(fd uintptr) {
		setErr = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &spec, nil)
	}); err != nil {
		return fmt.Errorf("set timer: %w", err)
	}
	if setErr != nil {
		return fmt.Errorf("set timer: %w", setErr)
	}
	return nil
}

func (a *alarm) close() {
	_ = a.file.Close()
	<-a.done
}
