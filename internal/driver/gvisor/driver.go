// Package gvisor is the isolation of a user-space kernel: every machine runs on gVisor's sentry, which answers system calls
// itself, so code inside never speaks to the host's kernel directly. runsc is built from its Go module in helper/gvisor and
// embedded; nothing has to be installed.
//
// A machine is one cell (package cell): the control group, namespaces and root directory around runsc, all made before it
// starts, so that runsc itself configures nothing on the host and the warden ends everything by the group, as under every
// driver. Nothing of a machine is root on the host: its cell has a user namespace with the machine's own range of ids. The agent
// is PID 1 inside and accepts on a unix socket that the gofer makes in the cell; the node dials it there.
//
// It makes no disks and no networks, and calls into no running machine but by the agent. What a machine has inside is
// cell/spec.go; how runsc is called is flags below.
package gvisor

import (
	"fmt"
	"sync"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/ground"
)

// Options configure a Driver.
type Options struct {
	// Installation is the id that every object on the host carries.
	Installation string
	// Dir is an existing directory that belongs to the installation: the helper is kept there, by content.
	Dir string
	// Agent gives the agent's binary.
	Agent func() ([]byte, error)
	// Runsc is the path of a runsc to use instead of the embedded one, or empty.
	Runsc string
	// Scratch is an existing directory for the short-lived files of a probe; empty means the system's.
	Scratch string
}

// Driver implements dayfly.Driver.
type Driver struct {
	*ground.Ground
	runsc         func() (program, error) // unpacked when it is first needed; then always the same answer
	overheadBytes int64                   // what a machine may use of memory on top of its own limit
}

// flags are runsc's global flags. The cell has made the cgroups and the network; the root file system is the same overlay on
// the same pool as under the linux driver, so the sentry keeps none of its own; host-uds lets the agent's socket be dialled
// from outside (nothing outside lets itself be dialled: only creating is allowed); net-raw is for ping, and what it sends meets
// the same rules of the host as under every driver.
func flags() []string {
	return []string{
		"--root=/state", "--platform=systrap", "--network=sandbox", "--ignore-cgroups", "--overlay2=none", "--host-uds=create",
		"--allow-suid", "--net-raw", "--host-settings=ignore",
	}
}

// New prepares the driver. On a host that cannot run it there is a driver too, whose Probe tells why and whose other methods
// answer CodeUnavailable. Close releases what it holds; it ends no machine.
func New(o Options) (*Driver, error) {
	g, err := ground.Open(ground.Options{Installation: o.Installation, Scratch: o.Scratch, Agent: o.Agent})
	if err != nil {
		return nil, fmt.Errorf("gvisor driver: %w", err)
	}
	return &Driver{
		Ground: g, runsc: sync.OnceValues(func() (program, error) { return findRunsc(o) }), overheadBytes: overheadBytes,
	}, nil
}

// Name implements dayfly.Driver.
func (d *Driver) Name() dayfly.Isolation { return dayfly.IsolationGVisor }

// program is the runsc that a driver uses.
type program struct {
	path    string
	foreign string // version of one that is not the embedded one, or empty
}

// findRunsc unpacks the embedded runsc, or looks at the operator's.
func findRunsc(o Options) (p program, err error) {
	if p.path = o.Runsc; p.path == "" {
		p.path, err = extract(o.Dir)
	} else {
		p.foreign, err = versionOf(p.path)
	}
	return p, err
}
