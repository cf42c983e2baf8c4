// Package channel is the connection between a driver and a machine that starts: one message there, with a configuration and
// descriptors, and one reply back. It knows neither's content. Both ends are of the same binary's making, but the machine's end
// may be killed at any moment, so every wait ends with the other end's death or the connection's deadline.
//
// To tell a machine more, add a field to the driver's own configuration.
package channel

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// FD is the descriptor on which a machine's first process finds its end, a connected unix stream socket.
const FD = 3

// Limits of a channel.
const (
	configMax = 32 << 20 // bytes of an encoded configuration: the environment and the files are in it
	replyMax  = 64 << 10 // bytes of an encoded reply
	headBytes = 4        // length of the configuration, big endian; the descriptors travel with these bytes
	fdsMax    = 16       // descriptors of one message
)

// ErrDied says that a machine's first process ended, or let go of the channel, without a word.
var ErrDied = errors.New("it died while it started")

// Reply is what a machine answers, once.
type Reply struct {
	Step  string `json:"step,omitempty"` // that failed; empty: the machine is ready
	Error string `json:"error,omitempty"`
	Full  bool   `json:"full,omitempty"` // it failed because there was no room on its disk
}

// Failed is the reply of a machine in which a step failed.
func Failed(step string, err error) Reply {
	return Reply{Step: step, Error: err.Error(), Full: noRoom(err)}
}

// noRoom tells whether a step failed for lack of room on the machine's disk. An overlay that finds no room for its work
// directory is mounted read-only, and what is written to it then fails for that.
func noRoom(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS)
}

// Pair makes a channel: the driver's end and the machine's. The caller closes both.
func Pair() (*net.UnixConn, *os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make channel: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "channel"), os.NewFile(uintptr(pair[1]), "channel")
	defer ours.Close() // FileConn makes a copy
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make channel: %w", err), theirs.Close())
	}
	return conn.(*net.UnixConn), theirs, nil
}

// Send sends a machine its configuration with descriptors, which it does not close. It blocks until the machine has read it
// or c's deadline passes.
func Send(c *net.UnixConn, cfg any, fds ...int) error {
	body, err := json.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("encode configuration: %w", err)
	}
	if len(body) > configMax {
		return fmt.Errorf("configuration of %d bytes is larger than %d", len(body), configMax)
	}
	head := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	if _, _, err := c.WriteMsgUnix(head, unix.UnixRights(fds...), nil); err != nil {
		return fmt.Errorf("send descriptors: %w", err)
	}
	if _, err := c.Write(body); err != nil {
		return fmt.Errorf("send configuration: %w", err)
	}
	return nil
}

// Await blocks until the machine says that it is ready, or fails with the step that failed in it (ENOSPC: for lack of
// room on its disk; ErrDied: it said nothing), or c's deadline passes.
func Await(c *net.UnixConn) error {
	b, err := io.ReadAll(io.LimitReader(c, replyMax))
	if err != nil {
		return fmt.Errorf("wait for the machine: %w", err)
	}
	if len(b) == 0 {
		return ErrDied
	}
	var r Reply
	if err := json.Unmarshal(b, &r); err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	switch {
	case r.Step == "":
		return nil
	case r.Full:
		return fmt.Errorf("%s: %s (%w)", r.Step, r.Error, unix.ENOSPC)
	}
	return fmt.Errorf("%s: %s", r.Step, r.Error)
}

// Receive reads the configuration into cfg, a pointer, and as many descriptors as fds has. All are close-on-exec.
func Receive(fd int, cfg any, fds []int) error {
	head := make([]byte, headBytes)
	oob := make([]byte, unix.CmsgSpace(fdsMax*4))
	n, oobn, flags, _, err := recvmsg(fd, head, oob)
	if err != nil {
		return err
	}
	if n != headBytes || flags&unix.MSG_CTRUNC != 0 {
		return fmt.Errorf("short message: %d bytes, flags %#x", n, flags)
	}
	if err := rights(oob[:oobn], fds); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head)
	if size > configMax {
		return fmt.Errorf("config of %d bytes", size)
	}
	body := make([]byte, size)
	for done := 0; done < len(body); {
		n, err := unix.Read(fd, body[done:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		done += n
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	return dec.Decode(cfg)
}

func recvmsg(fd int, b, oob []byte) (n, oobn, flags int, from unix.Sockaddr, err error) {
	for {
		n, oobn, flags, from, err = unix.Recvmsg(fd, b, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_WAITALL)
		if !errors.Is(err, unix.EINTR) {
			return n, oobn, flags, from, err
		}
	}
}

func rights(oob []byte, fds []int) error {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("parse descriptors: %w", err)
	}
	if len(messages) != 1 {
		return fmt.Errorf("%d control messages", len(messages))
	}
	got, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return fmt.Errorf("parse descriptors: %w", err)
	}
	if len(got) != len(fds) {
		return fmt.Errorf("%d descriptors instead of %d", len(got), len(fds))
	}
	copy(fds, got)
	return nil
}

// Answer sends the one reply and ends the channel. What the driver sent and nobody read is thrown away first: closing a
// socket with unread bytes in it would take the reply back.
func Answer(f *os.File, r Reply) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(b) > replyMax {
		b, _ = json.Marshal(Reply{Step: r.Step, Error: "the reason is too long to tell", Full: r.Full})
	}
	_, err = f.Write(b)
	err = errors.Join(err, unix.Shutdown(int(f.Fd()), unix.SHUT_WR))
	if r.Step != "" {
		_, _ = io.Copy(io.Discard, io.LimitReader(f, configMax+headBytes))
	}
	return errors.Join(err, f.Close())
}
