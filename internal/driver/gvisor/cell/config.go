package cell

import (
	"errors"
	"io"
	"net"
	"os"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/beneath"
	"dayfly.dev/dayfly/internal/driver/channel"
)

// The descriptors that travel with a Config, in this order.
const (
	fdRoot   = iota // detached overlay mount: the machine's root file system
	fdDev           // detached tmpfs with device nodes, for runsc itself
	fdShown         // detached read-only mount of the node's directory for this machine
	fdRunsc         // detached read-only mount of runsc
	fdAgent         // the agent's binary, to be executed behind the user-space kernel
	fdNumber        // how many there are
)

// Config is what the driver tells a cell.
type Config struct {
	ID      string         `json:"id"`
	Flags   []string       `json:"flags"` // global ones of runsc
	Limits  dayfly.Limits  `json:"limits"`
	Files   []beneath.File `json:"files,omitempty"` // to write into the root file system before anything runs
	Network bool           `json:"network"`         // somebody connects the network, brings loopback up and turns IPv6 off
	Waits   bool           `json:"waits"`           // this runsc can be started early: it waits for the cell (waitFD)
	// OpenMax is how many descriptors a process inside may have; it is cut to the host's hard limit.
	OpenMax uint64 `json:"open_max"`
	Guest   Guest  `json:"guest"`
}

// Guest is what the agent inside is told.
type Guest struct {
	ID      string            `json:"id"`
	User    dayfly.User       `json:"user"`
	Workdir string            `json:"workdir,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Granted int64             `json:"granted_nanos"`
	Memory  int64             `json:"memory_bytes"`
}

// Descriptors are the host's objects that go with a Config. Send does not close them.
type Descriptors struct {
	Root, Dev, Shown, Runsc, Agent int
}

// Send sends a cell its Config with the descriptors. It blocks until the cell has read it or c's deadline passes.
func Send(c *net.UnixConn, cfg Config, fds Descriptors) error {
	return channel.Send(c, cfg, fds.Root, fds.Dev, fds.Shown, fds.Runsc, fds.Agent)
}

// Go tells a cell that its network is attached: from here on runsc may look at it.
func Go(c net.Conn) error {
	_, err := c.Write([]byte{1})
	return err
}

// awaitGo waits until the network is attached.
func awaitGo(end *os.File) error {
	var b [1]byte
	_, err := io.ReadFull(end, b[:])
	if errors.Is(err, io.EOF) {
		return errors.New("the node is gone")
	}
	return err
}
