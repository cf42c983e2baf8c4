package boot

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

	"dayfly.dev/dayfly"
)

// ChannelFD is the descriptor on which boot finds its end of the boot channel, a connected unix stream socket.
const ChannelFD = 3

// Limits of the boot channel.
const (
	configMax = 32 << 20 // bytes of an encoded Config: the environment and the files are in it
	replyMax  = 64 << 10 // bytes of an encoded reply
	headBytes = 4        // length of the Config, big endian; the descriptors travel with these bytes
)

// The descriptors that travel with a Config, in this order.
const (
	fdRoot   = iota // detached overlay mount: the root file system
	fdDev           // detached tmpfs with the device nodes
	fdRun           // detached read-only bind mount of the node's directory for this machine
	fdListen        // listening unix socket
	fdOOM           // the file that counts processes killed for lack of memory, open for reading
	fdCount
)

// Config is what the driver tells a machine that boots.
type Config struct {
	ID       string            `json:"id"`
	Hostname string            `json:"hostname"`
	User     dayfly.User       `json:"user"`
	Workdir  string            `json:"workdir,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	Files    []File            `json:"files,omitempty"`
	Granted  int64             `json:"granted_nanos"`
	Limits   dayfly.Limits     `json:"limits"`
	Network  bool              `json:"network"` // somebody connects the network, brings loopback up and turns IPv6 off

	Masked   []string `json:"masked"`    // absolute paths below /proc and /sys that show nothing
	ReadOnly []string `json:"read_only"` // absolute paths below /proc and /sys that cannot be written
	Seccomp  []byte   `json:"seccomp"`   // classic BPF program, 8 bytes an instruction, native order
	OpenMax  uint64   `json:"open_max"`  // descriptors a process inside may have; cut to the host's hard limit
}

// File is one file to write into the root file system before anything runs.
type File struct {
	Path    string `json:"path"` // absolute inside
	Content []byte `json:"content"`
}

// Descriptors are the host's objects that go with a Config. Send does not close them.
type Descriptors struct {
	Root, Dev, Run, Listen, OOM int
}

// reply is what boot answers, once.
type reply struct {
	Step  string `json:"step,omitempty"` // that failed; empty: the machine is ready
	Error string `json:"error,omitempty"`
	Full  bool   `json:"full,omitempty"` // it failed because there was no room on its disk
}

// Send sends a machine its Config with the descriptors. It blocks until the machine has read it or c's deadline passes.
func Send(c *net.UnixConn, cfg Config, fds Descriptors) error {
	body, err := json.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("encode boot config: %w", err)
	}
	if len(body) > configMax {
		return fmt.Errorf("boot config of %d bytes is larger than %d", len(body), configMax)
	}
	head := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	rights := unix.UnixRights(fds.Root, fds.Dev, fds.Run, fds.Listen, fds.OOM)
	if _, _, err := c.WriteMsgUnix(head, rights, nil); err != nil {
		return fmt.Errorf("send boot descriptors: %w", err)
	}
	if _, err := c.Write(body); err != nil {
		return fmt.Errorf("send boot config: %w", err)
	}
	return nil
}

// Await blocks until the machine says that it is ready, or fails with the step that failed in it (ENOSPC: for lack of
// room on its disk), or c's deadline passes.
func Await(c *net.UnixConn) error {
	b, err := io.ReadAll(io.LimitReader(c, replyMax))
	if err != nil {
		return fmt.Errorf("wait for boot: %w", err)
	}
	if len(b) == 0 {
		return errors.New("the agent died while it booted")
	}
	var r reply
	if err := json.Unmarshal(b, &r); err != nil {
		return fmt.Errorf("read boot reply: %w", err)
	}
	switch {
	case r.Step == "":
		return nil
	case r.Full:
		return fmt.Errorf("boot: %s: %s (%w)", r.Step, r.Error, unix.ENOSPC)
	}
	return fmt.Errorf("boot: %s: %s", r.Step, r.Error)
}

// receive reads the Config on the inside. All descriptors are close-on-exec.
func receive(fd int) (Config, [fdCount]int, error) {
	var cfg Config
	var fds [fdCount]int
	head := make([]byte, headBytes)
	oob := make([]byte, unix.CmsgSpace(fdCount*4))
	n, oobn, flags, _, err := recvmsg(fd, head, oob)
	if err != nil {
		return cfg, fds, err
	}
	if n != headBytes || flags&unix.MSG_CTRUNC != 0 {
		return cfg, fds, fmt.Errorf("short message: %d bytes, flags %#x", n, flags)
	}
	if fds, err = rights(oob[:oobn]); err != nil {
		return cfg, fds, err
	}
	size := binary.BigEndian.Uint32(head)
	if size > configMax {
		return cfg, fds, fmt.Errorf("config of %d bytes", size)
	}
	body := make([]byte, size)
	for done := 0; done < len(body); {
		n, err := unix.Read(fd, body[done:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return cfg, fds, err
		}
		if n == 0 {
			return cfg, fds, io.ErrUnexpectedEOF
		}
		done += n
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	return cfg, fds, dec.Decode(&cfg)
}

func recvmsg(fd int, b, oob []byte) (n, oobn, flags int, from unix.Sockaddr, err error) {
	for {
		n, oobn, flags, from, err = unix.Recvmsg(fd, b, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_WAITALL)
		if !errors.Is(err, unix.EINTR) {
			return n, oobn, flags, from, err
		}
	}
}

func rights(oob []byte) (fds [fdCount]int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fds, fmt.Errorf("parse descriptors: %w", err)
	}
	if len(messages) != 1 {
		return fds, fmt.Errorf("%d control messages", len(messages))
	}
	got, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return fds, fmt.Errorf("parse descriptors: %w", err)
	}
	if len(got) != fdCount {
		return fds, fmt.Errorf("%d descriptors instead of %d", len(got), fdCount)
	}
	copy(fds[:], got)
	return fds, nil
}

// answer sends the one reply and ends the channel. What the driver sent and nobody read is thrown away first: closing a
// socket with unread bytes in it would take the reply back.
func answer(channel *os.File, r reply) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(b) > replyMax {
		return fmt.Errorf("boot reply of %d bytes", len(b))
	}
	_, err = channel.Write(b)
	err = errors.Join(err, unix.Shutdown(int(channel.Fd()), unix.SHUT_WR))
	if r.Step != "" {
		_, _ = io.Copy(io.Discard, io.LimitReader(channel, configMax+headBytes))
	}
	return errors.Join(err, channel.Close())
}
