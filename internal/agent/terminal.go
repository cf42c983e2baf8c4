package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Facts and limits of pseudo terminals.
const (
	ptmxMajor        = 5 // of the device that makes terminals
	ptmxMinor        = 2
	slaveMajor       = 136     // of the first 256 terminals; the sandbox has fewer
	terminalDrainMax = 1 << 20 // bytes that a terminal can hold when its leader exits: the kernel holds less
	endOfFile        = 4       // Ctrl-D, where the terminal's own character cannot be known
)

// ptmxNames are where terminals are made, the sandbox's own first. The image may have put something else there.
var ptmxNames = [...]string{"/dev/pts/ptmx", "/dev/ptmx"}

var errNotTerminal = errors.New("it is not the terminal device")

// terminal is the pseudo terminal of one try. The agent holds both ends: a command that closes all of its own descriptors does
// not end the output, which ends after the leader has.
type terminal struct {
	master *os.File // never blocks a thread
	slave  *os.File

	mu      sync.Mutex
	midLine bool // the last byte that was typed was not the end of a line
}

// openTerminal makes a terminal owned by the command's user.
func openTerminal(who identity, size dayfly.TerminalSize) (*terminal, error) {
	master, err := openMaster()
	if err != nil {
		return nil, err
	}
	slave, err := openSlave(master)
	if err != nil {
		_ = unix.Close(master)
		return nil, err
	}
	if who.change {
		_ = unix.Fchown(slave, int(who.uid), -1) // the group stays the terminals' own
	}
	if t, err := unix.IoctlGetTermios(slave, unix.TCGETS); err == nil {
		t.Iflag |= unix.IUTF8 // so that erasing erases a whole character
		_ = unix.IoctlSetTermios(slave, unix.TCSETS, t)
	}
	_ = unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, winsize(size))
	return &terminal{master: os.NewFile(uintptr(master), "terminal"), slave: os.NewFile(uintptr(slave), "terminal")}, nil
}

func winsize(size dayfly.TerminalSize) *unix.Winsize {
	return &unix.Winsize{Col: uint16(size.Cols), Row: uint16(size.Rows)}
}

// openMaster opens a new terminal's agent end, and makes sure that it is one.
func openMaster() (int, error) {
	var failed error
	for _, name := range ptmxNames {
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			if isDevice(fd, ptmxMajor, ptmxMinor) {
				return fd, nil
			}
			_ = unix.Close(fd)
			err = errNotTerminal
		}
		if failed == nil || errors.Is(err, unix.ENOSPC) {
			failed = fmt.Errorf("open %s: %w", name, err)
		}
	}
	return -1, failed
}

// openSlave opens the command's end through the agent's one where the kernel can, so that no path decides what it is.
func openSlave(master int) (int, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return -1, fmt.Errorf("unlock terminal: %w", err)
	}
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	if fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags); errno == 0 {
		return int(fd), nil
	}
	n, err := unix.IoctlGetUint32(master, unix.TIOCGPTN)
	if err != nil {
		return -1, fmt.Errorf("number of terminal: %w", err)
	}
	fd, err := unix.Open("/dev/pts/"+strconv.Itoa(int(n)), flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open terminal %d: %w", n, err)
	}
	if !isDevice(fd, slaveMajor, n) {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("open terminal %d: %w", n, errNotTerminal)
	}
	_ = unix.SetNonblock(fd, false)
	return fd, nil
}

func isDevice(fd int, major, minor uint32) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(major, minor)
}

// hangUp ends the terminal, or nil: the kernel tells those that still have it.
func (t *terminal) hangUp() {
	if t != nil {
		_ = t.master.Close()
		_ = t.slave.Close()
	}
}

// kernelForgets tells, of a terminal or nil, whether its kernel hangs nobody up when the terminal's leader exits. Such a kernel
// does not tell the terminal's other end of its foreground group either, which Linux does.
func (t *terminal) kernelForgets() bool {
	forgets := false
	if t != nil {
		t.control(func(fd int) {
			_, err := unix.IoctlGetUint32(fd, unix.TIOCGPGRP)
			forgets = err == unix.ENOTTY
		})
	}
	return forgets
}

// hangUpGroup does what Linux does when the leader of a terminal has exited: it hangs up those of the leader's group that are left.
func (p *process) hangUpGroup() {
	p.mu.Lock()
	leader := p.kin.pid
	p.mu.Unlock()
	if p.agent.children.leads(p) {
		return
	}
	for _, pid := range p.session(leader) {
		if group, err := unix.Getpgid(pid); err == nil && group == leader {
			_ = unix.Kill(pid, unix.SIGHUP)
			_ = unix.Kill(pid, unix.SIGCONT)
		}
	}
}

// session lists the living processes of p in the session of leader, where they are known by their mark.
func (p *process) session(leader int) []int {
	return slices.DeleteFunc(p.marked(), func(pid int) bool {
		session, err := unix.Getsid(pid)
		return err != nil || session != leader
	})
}

// redrawAll tells all of a terminal's session that its size was set. Who does not draw does not heed it.
func (p *process) redrawAll() {
	p.mu.Lock()
	leader := p.kin.pid
	p.mu.Unlock()
	for _, pid := range p.session(leader) {
		_ = unix.Kill(pid, unix.SIGWINCH)
	}
}

// control calls f with the agent's end, unless the terminal has ended.
func (t *terminal) control(f func(fd int)) {
	if raw, err := t.master.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// resize sets the size. The kernel tells the foreground processes when it is another one; the agent does when it is not. untold:
// it cannot know which they are (see kernelForgets).
func (t *terminal) resize(size dayfly.TerminalSize) (untold bool) {
	t.control(func(fd int) {
		want := winsize(size)
		now, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err != nil || now.Col != want.Col || now.Row != want.Row {
			_ = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, want)
			return
		}
		group, err := unix.IoctlGetUint32(fd, unix.TIOCGPGRP)
		if err == nil && int32(group) > 1 {
			_ = unix.Kill(-int(int32(group)), unix.SIGWINCH)
		}
		untold = err == unix.ENOTTY
	})
	return untold
}

// typed notes what was written to the terminal.
func (t *terminal) typed(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.midLine = b[len(b)-1] != '\n' && b[len(b)-1] != '\r'
}

// endInput types what a program that reads lines takes for the end of its input. In the middle of a line the first one only
// hands the line over. A program that reads single keys reads the key.
func (t *terminal) endInput() error {
	keys := []byte{endOfFile}
	t.control(func(fd int) {
		termios, err := unix.IoctlGetTermios(fd, unix.TCGETS) // of the command's end
		if err == nil && termios.Lflag&unix.ICANON != 0 {
			keys[0] = termios.Cc[unix.VEOF]
		}
	})
	t.mu.Lock()
	if t.midLine {
		keys = append(keys, keys[0])
	}
	t.midLine = false
	t.mu.Unlock()
	_, err := t.master.Write(keys)
	return err
}

// drainTerminal keeps what the terminal holds after the leader's exit. What others go on writing is bounded by what it can hold.
func (p *process) drainTerminal(fd int) {
	buf := p.agent.buffers.Get().(*[pumpBuffer]byte)
	defer p.agent.buffers.Put(buf)
	for left := terminalDrainMax; left > 0; {
		n, err := unix.Read(fd, buf[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return
		}
		p.keep(stdout, buf[:n])
		left -= n
	}
}

// Resize implements agentwire.Machine.
func (a *Agent) Resize(ctx context.Context, id string, size dayfly.TerminalSize) error {
	if !validSize(size) {
		return dayfly.Errorf(dayfly.CodeInvalid, "a terminal's sides must be 1 to %d", dayfly.TerminalSizeMax)
	}
	p, release, err := a.settled(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	p.mu.Lock()
	if p.size == nil {
		p.mu.Unlock()
		return dayfly.Errorf(dayfly.CodeConflict, "process %s has no terminal", p.id)
	}
	if p.exit == nil {
		p.size = &size
	}
	t := p.try
	p.mu.Unlock()
	if t != nil && t.tty != nil && t.tty.resize(size) {
		p.redrawAll()
	}
	return nil
}

func validSize(s dayfly.TerminalSize) bool {
	return s.Cols >= 1 && s.Rows >= 1 && s.Cols <= dayfly.TerminalSizeMax && s.Rows <= dayfly.TerminalSizeMax
}
