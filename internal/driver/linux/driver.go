package linux

import (
	"fmt"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/ground"
)

// Options configure a Driver.
type Options struct {
	// Installation is the id that every object on the host carries.
	Installation string
	// Agent is the path of the agent's binary; empty means the embedded one.
	Agent string
	// Scratch is an existing directory for the short-lived files of a probe; empty means the system's.
	Scratch string
}

// Driver implements dayfly.Driver.
type Driver struct {
	*ground.Ground
	seccomp []byte
	masked  []string
}

// New prepares the driver. On a host that cannot run it there is a driver too, whose Probe tells why and whose other methods
// answer CodeUnavailable. Close releases what it holds; it ends no machine.
func New(o Options) (*Driver, error) {
	seccomp, err := seccompProgram()
	if err != nil {
		return nil, fmt.Errorf("linux driver: %w", err)
	}
	g, err := ground.Open(ground.Options{
		Installation: o.Installation, Scratch: o.Scratch, Agent: func() ([]byte, error) { return AgentBinary(o.Agent) },
	})
	if err != nil {
		return nil, fmt.Errorf("linux driver: %w", err)
	}
	return &Driver{Ground: g, seccomp: seccomp, masked: maskedPaths()}, nil
}

// Name implements dayfly.Driver.
func (d *Driver) Name() dayfly.Isolation { return dayfly.IsolationLinux }
