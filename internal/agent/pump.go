package agent

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pumpBuffer is how much a pump reads at once, pipeWide the size of the pipe of a command that fills it.
const (
	pumpBuffer = 64 << 10
	pipeWide   = 256 << 10
)

// pump moves one output stream from its pipe into the capture until the last writer has closed it. After the leader's exit
// and the drain it reads on and discards, so that background children are not killed by a broken pipe.
func (t *try) pump(stream int) {
	p, pipe := t.p, t.pipes[stream]
	defer pipe.Close()
	raw, err := pipe.SyscallConn()
	if err != nil {
		p.part()
		return
	}
	keep := true
	for {
		n, err := t.readPipe(raw.Read, stream, keep)
		if os.IsTimeout(err) && keep && t.tty != nil {
			_ = raw.Control(func(fd uintptr) { p.drainTerminal(int(fd)) })
			break
		}
		if os.IsTimeout(err) && keep {
			_ = pipe.SetReadDeadline(time.Time{})
			_ = raw.Control(func(fd uintptr) { p.drain(int(fd), stream) })
			keep = false
			p.part()
			continue
		}
		if err != nil || n == 0 {
			break
		}
	}
	if t.tty.kernelForgets() {
		p.hangUpGroup()
	}
	t.tty.hangUp()
	if keep {
		p.part()
	}
}

// readPipe waits for output, reads what there is into a shared buffer and keeps it. 0 bytes without an error is the end.
func (t *try) readPipe(whenReady func(func(uintptr) bool) error, stream int, keep bool) (n int, err error) {
	var readErr error
	err = whenReady(func(fd uintptr) bool {
		buf := t.p.agent.buffers.Get().(*[pumpBuffer]byte)
		defer t.p.agent.buffers.Put(buf)
		if n, readErr = readFull(int(fd), buf[:]); n == 0 && readErr == unix.EAGAIN {
			return false
		}
		if n == pumpBuffer && !t.wide[stream] && t.tty == nil {
			t.wide[stream] = true
			_, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeWide) // a chatty command: fewer turns between it and the agent
		}
		if n > 0 && keep {
			t.p.keep(stream, buf[:n])
		}
		return true
	})
	if err == nil && n == 0 {
		err = readErr
	}
	return n, err
}

// readFull reads until the buffer is full or nothing more is there; a command that writes in small pieces is still
// creating some meanwhile. The error says why it stopped, nil at the end of the file.
func readFull(fd int, buf []byte) (n int, err error) {
	for n < len(buf) {
		got, err := unix.Read(fd, buf[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || got == 0 {
			return n, err
		}
		n += got
	}
	return n, nil
}

// drain keeps exactly what the pipe holds now: everything that was written before the leader's exit.
func (p *process) drain(fd, stream int) {
	left, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return
	}
	buf := p.agent.buffers.Get().(*[pumpBuffer]byte)
	defer p.agent.buffers.Put(buf)
	for left > 0 {
		n, err := unix.Read(fd, buf[:min(left, pumpBuffer)])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return
		}
		p.keep(stream, buf[:n])
		left -= n
	}
}

// keep puts output into the capture. For a followed process it waits as long as an attached reader would lose bytes.
func (p *process) keep(stream int, b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 {
		n := len(b)
		if p.follow {
			n = min(n, p.roomLocked(stream))
		}
		if n > 0 {
			p.out[stream].write(b[:n])
			b = b[n:]
			p.changedLocked()
			continue
		}
		if p.space == nil {
			p.space = make(chan struct{})
		}
		space := p.space
		p.mu.Unlock()
		<-space // a reader that leaves closes it too
		p.mu.Lock()
	}
}

// roomLocked is how much can be kept without dropping what an attached reader has yet to read.
func (p *process) roomLocked(stream int) int {
	room := pumpBuffer
	for r := range p.readers {
		room = min(room, p.out[stream].room(r.at[stream]))
	}
	return room
}

// spaceLocked wakes a pump that waits for a reader.
func (p *process) spaceLocked() {
	if p.space != nil {
		close(p.space)
		p.space = nil
	}
}
