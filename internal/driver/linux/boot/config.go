package boot

import (
	"net"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/beneath"
	"dayfly.dev/dayfly/internal/driver/channel"
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
	Files    []beneath.File    `json:"files,omitempty"`
	Granted  int64             `json:"granted_nanos"`
	Limits   dayfly.Limits     `json:"limits"`
	Network  bool              `json:"network"` // somebody connects the network, brings loopback up and turns IPv6 off

	Masked   []string `json:"masked"`    // absolute paths below /proc and /sys that show nothing
	ReadOnly []string `json:"read_only"` // absolute paths below /proc and /sys that cannot be written
	Seccomp  []byte   `json:"seccomp"`   // classic BPF program, 8 bytes an instruction, native order
	OpenMax  uint64   `json:"open_max"`  // descriptors a process inside may have; cut to the host's hard limit
}

// Descriptors are the host's objects that go with a Config. Send does not close them.
type Descriptors struct {
	Root, Dev, Run, Listen, OOM int
}

// Send sends a machine its Config with the descriptors. It blocks until the machine has read it or c's deadline passes.
func Send(c *net.UnixConn, cfg Config, fds Descriptors) error {
	return channel.Send(c, cfg, fds.Root, fds.Dev, fds.Run, fds.Listen, fds.OOM)
}
