package linux

import (
	"context"
	"errors"
	"fmt"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/driver/birth"
	"dayfly.dev/dayfly/internal/driver/machine"
	"dayfly.dev/dayfly/internal/driver/rootfs"
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
	installation string
	scratch      string
	unfit        error // why this host or this binary cannot run the driver, or nil; then nothing below is set

	host    cgroup.Host
	watcher machine.Watcher
	parent  *birth.Parent
	seccomp []byte
	masked  []string
	cpus    *machine.CPUs
	roots   *rootfs.Maker
}

// New prepares the driver. On a host that cannot run it there is a driver too, whose Probe tells why and whose other methods
// answer CodeUnavailable. Close releases what it holds; it ends no machine.
func New(o Options) (*Driver, error) {
	if !dayfly.ValidInstallation(o.Installation) {
		return nil, fmt.Errorf("linux driver: %q is no installation id", o.Installation)
	}
	d := &Driver{installation: o.Installation, scratch: o.Scratch}
	switch err := d.prepare(o.Agent); {
	case err == nil:
		return d, nil
	case dayfly.ErrorCode(err) == dayfly.CodeUnavailable:
		return &Driver{installation: o.Installation, scratch: o.Scratch, unfit: err}, nil
	default:
		return nil, fmt.Errorf("linux driver: %w", err)
	}
}

func (d *Driver) prepare(agent string) (err error) {
	if d.host, err = cgroup.Detect("/"); err != nil {
		return err
	}
	binary, err := AgentBinary(agent)
	if err != nil {
		return err
	}
	if d.seccomp, err = seccompProgram(); err != nil {
		return err
	}
	if d.cpus, err = machine.NewCPUs(); err != nil {
		return err
	}
	d.masked = maskedPaths()
	var undo cleanup.Stack
	defer undo.Clean()
	if d.parent, err = birth.NewParent(binary); err != nil {
		return err
	}
	undo.Add(func() { _ = d.parent.Close() })
	if d.roots, err = rootfs.NewMaker(); err != nil {
		return err
	}
	undo.Add(d.roots.Close)
	if d.watcher.Events, err = cgroup.NewEvents(); err != nil {
		return err
	}
	undo.Release()
	return nil
}

// Close releases the driver's descriptors and waits for its goroutines. Machines run on. Nothing of the driver or of its
// instances may be called afterwards.
func (d *Driver) Close() error {
	if d.unfit != nil {
		return nil
	}
	err := d.watcher.Events.Close()
	d.watcher.Ending.Wait()
	d.roots.Close()
	return errors.Join(err, d.parent.Close())
}

// Name implements dayfly.Driver.
func (d *Driver) Name() dayfly.Isolation { return dayfly.IsolationLinux }

// List implements dayfly.Driver: the machines are the installation's cgroups.
func (d *Driver) List(ctx context.Context) ([]string, error) {
	if d.unfit != nil {
		return nil, d.unfit
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return d.host.List(d.installation)
}

// Alive tells whether a process of a machine lives. An error means "could not look".
func (d *Driver) Alive(id string) (bool, error) {
	if d.unfit != nil {
		return false, d.unfit
	}
	group, err := d.host.Group(d.installation, id)
	if err != nil {
		return false, err
	}
	return group.Populated()
}

// Reclaim implements dayfly.Driver. A machine's mounts, namespaces and interfaces end with its last process.
func (d *Driver) Reclaim(ctx context.Context, id string) error {
	if d.unfit != nil {
		return d.unfit
	}
	group, err := d.host.Group(d.installation, id)
	if err != nil {
		return err
	}
	return errors.Join(group.Kill(ctx), group.Remove()) // both, whatever the first one meets
}
