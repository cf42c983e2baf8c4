// Package driver is the wiring list of the isolation drivers: which ones this binary has. It holds no driver's code and makes
// no choice between them; that is the node's. To add one, write a package beside linux, let it pass drivertest, and add it
// to All, stronger isolation first. The fake driver isolates nothing and is not in the list.
package driver

import (
	"errors"
	"io"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/gvisor"
	"dayfly.dev/dayfly/internal/driver/linux"
)

// Options are what the drivers need to know.
type Options struct {
	Installation string // that every object on the host carries
	Agent        string // path of the agent's binary; empty means the embedded one
	Helpers      string // existing directory of the installation where embedded programs are unpacked, each by its content
	Runsc        string // path of a runsc to use instead of the embedded one, or empty
	Scratch      string // existing directory for short-lived files of a probe; empty means the system's
}

// Driver is a driver that holds descriptors until it is closed. Closing it ends no machine.
type Driver interface {
	dayfly.Driver
	io.Closer
}

// All makes every driver, also those that this host cannot run: Probe tells. The caller closes them.
func All(o Options) ([]Driver, error) {
	g, err := gvisor.New(gvisor.Options{
		Installation: o.Installation, Dir: o.Helpers, Runsc: o.Runsc, Scratch: o.Scratch,
		Agent: func() ([]byte, error) { return linux.AgentBinary(o.Agent) },
	})
	if err != nil {
		return nil, err
	}
	l, err := linux.New(linux.Options{Installation: o.Installation, Agent: o.Agent, Scratch: o.Scratch})
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return []Driver{g, l}, nil
}

// Close closes all drivers and joins the errors.
func Close(drivers []Driver) error {
	var errs []error
	for _, d := range drivers {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}
