package cell

import (
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

// ChannelFD is the descriptor on which a cell finds its end of the channel to the driver, a connected unix stream socket.
const ChannelFD = 3

// Limits of the channel.
const (
	configMax = 32 << 20 // bytes of an encoded Config: the environment and the files are in it
	replyMax  = 64 << 10
	headBytes = 4 // length of the Config, big endian
)

// Config is what the driver tells a cell. All paths are the host's.
type Config struct {
	ID     string        `json:"id"`
	Root   dayfly.RootFS `json:"root"`
	RunDir string        `json:"run_dir"` // its subdirectory "in" holds the grant, and the mount points "agent" and "sock"
	Runsc  string        `json:"runsc"`
	Agent  string        `json:"agent"`
	Flags  []string      `json:"flags"` // global ones of runsc
	Limits dayfly.Limits `json:"limits"`
	// OpenMax is how many descriptors a process inside may have; it is cut to the host's hard limit.
	OpenMax uint64 `json:"open_max"`
	Guest   Guest  `json:"guest"`
}

// Guest is what the agent inside is told.
type Guest struct {
	User    dayfly.User       `json:"user"`
	Workdir string            `json:"workdir,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Files   []File            `json:"files,omitempty"`
	Granted int64             `json:"granted_nanos"`
	Memory  int64             `json:"memory_bytes"`
	Network bool              `json:"network"` // somebody connects the network
}

// File is one file to write into the root file system before anything runs.
type File struct {
	Path    string `json:"path"` // absolute inside
	Content []byte `json:"content"`
}

// reply is what a cell answers, once.
type reply struct {
	Step  string `json:"step,omitempty"` // that failed; empty: the machine is ready
	Error string `json:"error,omitempty"`
	Full  bool   `json:"full,omitempty"` // it failed because there was no room on its disk
}

// Send sends a cell its Config. It blocks until the cell has read it or c's deadline passes.
func Send(c net.Conn, cfg Config) error {
	body, err := json.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("encode cell config: %w", err)
	}
	if len(body) > configMax {
		return fmt.Errorf("cell config of %d bytes is larger than %d", len(body), configMax)
	}
	if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)); err != nil {
		return fmt.Errorf("send cell config: %w", err)
	}
	return nil
}

// Go tells a cell that its network is attached: from here on runsc may look at it.
func Go(c net.Conn) error {
	_, err := c.Write([]byte{1})
	return err
}

// Await blocks until the machine's agent accepts connections, or fails with the step that failed (ENOSPC: for lack of room on
// its disk), or c's deadline passes.
func Await(c net.Conn) error {
	b, err := io.ReadAll(io.LimitReader(c, replyMax))
	if err != nil {
		return fmt.Errorf("wait for the machine: %w", err)
	}
	if len(b) == 0 {
		return errors.New("the machine's cell died while it started")
	}
	var r reply
	if err := json.Unmarshal(b, &r); err != nil {
		return fmt.Errorf("read the cell's reply: %w", err)
	}
	switch {
	case r.Step == "":
		return nil
	case r.Full:
		return fmt.Errorf("%s: %s (%w)", r.Step, r.Error, unix.ENOSPC)
	}
	return fmt.Errorf("%s: %s", r.Step, r.Error)
}

// receive reads the Config.
func receive(channel *os.File) (cfg Config, err error) {
	var head [headBytes]byte
	if _, err := io.ReadFull(channel, head[:]); err != nil {
		return cfg, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > configMax {
		return cfg, fmt.Errorf("config of %d bytes", size)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(channel, body); err != nil {
		return cfg, err
	}
	return cfg, json.Unmarshal(body, &cfg)
}

// awaitGo waits until the network is attached.
func awaitGo(channel *os.File) error {
	var b [1]byte
	_, err := io.ReadFull(channel, b[:])
	return err
}

// answer sends the one reply and ends the channel.
func answer(channel *os.File, r reply) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(b) > replyMax {
		b, _ = json.Marshal(reply{Step: r.Step, Error: "the reason is too long to tell", Full: r.Full})
	}
	_, err = channel.Write(b)
	return errors.Join(err, channel.Close())
}
