// Package console drives a program on a pseudo terminal, as a person at a keyboard would: it types, reads the screen's bytes,
// changes the window's size, and looks at the terminal's modes from the outside. It understands no escape sequence. Tests of the
// command line use it; to look at one more property of a terminal, add a method that asks the kernel for it.
package console

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// waitMax bounds every wait for text or for the program's end, on a busy machine.
const waitMax = 60 * time.Second

// lastMax is how long what a program wrote last may be on its way once it has ended.
const lastMax = 2 * time.Second

// keepMax is how much of the screen's bytes is kept, from the end.
const keepMax = 64 << 20

// Console is a program on a terminal of its own.
type Console struct {
	t      testing.TB
	cmd    *exec.Cmd
	master *os.File // ends its reads when it is closed
	slave  *os.File // stays open, so that its modes can be read after the program's end
	before unix.Termios
	ended  chan struct{}
	read   chan struct{}

	mu   sync.Mutex
	cond *sync.Cond
	seen []byte
	at   int // what Expect has gone past
}

// Start runs cmd, which must not be started, on a new terminal. It is killed at the end of the test should it still run.
func Start(t testing.TB, cmd *exec.Cmd, cols, rows int) *Console {
	t.Helper()
	master, slave, err := open()
	if err != nil {
		t.Fatalf("open a terminal: %v", err)
	}
	c := &Console{t: t, cmd: cmd, master: master, slave: slave, ended: make(chan struct{}), read: make(chan struct{})}
	c.cond = sync.NewCond(&c.mu)
	c.Resize(cols, rows)
	c.before = c.Modes()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", cmd.Path, err)
	}
	go c.collect()
	go func() {
		_ = cmd.Wait() // Wait tells by ProcessState
		close(c.ended)
		c.cond.Broadcast()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-c.ended
		_, _ = slave.Close(), master.Close()
		<-c.read
	})
	return c
}

// open opens a pseudo terminal. The master never blocks in the kernel, so that closing it ends its reads.
func open() (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		_ = master.Close()
		return nil, nil, err
	}
	return master, slave, nil
}

// collect reads the screen's bytes until the terminal is closed.
func (c *Console) collect() {
	defer close(c.read)
	buf := make([]byte, 64<<10)
	for {
		n, err := c.master.Read(buf)
		c.mu.Lock()
		c.seen = append(c.seen, buf[:n]...)
		if over := len(c.seen) - keepMax; over > 0 {
			c.seen, c.at = c.seen[over:], max(0, c.at-over)
		}
		c.mu.Unlock()
		c.cond.Broadcast()
		if err != nil {
			return
		}
	}
}

// Type types keys.
func (c *Console) Type(keys string) {
	c.t.Helper()
	if _, err := io.WriteString(c.master, keys); err != nil {
		c.t.Fatalf("type %q: %v", keys, err)
	}
}

// Expect waits for text behind what was expected before, and gives all up to its end.
func (c *Console) Expect(text string) string {
	c.t.Helper()
	deadline := time.AfterFunc(waitMax, c.cond.Broadcast)
	defer deadline.Stop()
	began, ended := time.Now(), time.Time{} // ended is when the program was first seen to be over
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if i := bytes.Index(c.seen[c.at:], []byte(text)); i >= 0 {
			got := string(c.seen[c.at : c.at+i+len(text)])
			c.at += i + len(text)
			return got
		}
		if time.Since(began) >= waitMax || !ended.IsZero() && time.Since(ended) >= lastMax {
			c.t.Fatalf("%q did not come; since the last that did: %q", text, tail(c.seen[c.at:]))
		}
		if ended.IsZero() && c.over() {
			ended = time.Now()
			time.AfterFunc(lastMax, c.cond.Broadcast)
		}
		c.cond.Wait()
	}
}

func (c *Console) over() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

func tail(b []byte) []byte {
	const shown = 2000
	return b[max(0, len(b)-shown):]
}

// Screen is all that was written so far.
func (c *Console) Screen() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.seen)
}

// Resize changes the window's size and lets the program know.
func (c *Console) Resize(cols, rows int) {
	c.t.Helper()
	if err := unix.IoctlSetWinsize(int(c.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(cols), Row: uint16(rows)}); err != nil {
		c.t.Fatalf("resize: %v", err)
	}
}

// Signal sends a signal to the program alone.
func (c *Console) Signal(sig syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(sig); err != nil {
		c.t.Fatalf("send %v: %v", sig, err)
	}
}

// HangUp closes the window: the program loses its terminal.
func (c *Console) HangUp() {
	_, _ = c.slave.Close(), c.master.Close()
}

// Wait waits for the program's end and gives its exit code, 128+n after death by signal n.
func (c *Console) Wait() int {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(waitMax):
		c.t.Fatalf("the program did not end; the screen ends with %q", tail([]byte(c.Screen())))
	}
	c.drain()
	if status := c.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal())
	}
	return c.cmd.ProcessState.ExitCode()
}

// endMark is written behind all that the program wrote, to know when that has been read.
const endMark = "\x00\x00the end\x00\x00"

// drain waits until all that the program wrote has been read.
func (c *Console) drain() {
	if _, err := c.slave.WriteString(endMark); err != nil {
		return // the window was closed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for !bytes.HasSuffix(c.seen, []byte(endMark)) {
		c.cond.Wait()
	}
	c.seen = c.seen[:len(c.seen)-len(endMark)]
}

// Modes are the terminal's modes as the kernel has them.
func (c *Console) Modes() unix.Termios {
	c.t.Helper()
	modes, err := unix.IoctlGetTermios(int(c.slave.Fd()), unix.TCGETS)
	if err != nil {
		c.t.Fatalf("read the terminal's modes: %v", err)
	}
	return *modes
}

// Cook gives the terminal the modes that it had before the start, as a shell does that takes it back.
func (c *Console) Cook() {
	c.t.Helper()
	if err := unix.IoctlSetTermios(int(c.slave.Fd()), unix.TCSETS, &c.before); err != nil {
		c.t.Fatalf("set the terminal's modes: %v", err)
	}
}

// Raw tells whether keys reach the program unchanged and unechoed.
func (c *Console) Raw() bool { return c.Modes().Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) == 0 }

// Restored fails the test unless the modes are those from before the start.
func (c *Console) Restored() {
	c.t.Helper()
	if now := c.Modes(); now != c.before {
		c.t.Errorf("the terminal's modes are %+v, and were %+v", now, c.before)
	}
}

// Need skips the test where no terminal can be opened.
func Need(t testing.TB) {
	t.Helper()
	master, slave, err := open()
	if err != nil {
		t.Skip("no pseudo terminal can be opened here: ", err)
	}
	_, _ = slave.Close(), master.Close()
}
