// Package ground is what a driver stands on, whatever its machines are: the host's control groups and the watch on them, CPUs,
// root file systems, first processes, and the machines found by all that. A driver embeds Ground and adds how a machine is
// started and dialled.
//
// It starts nothing but first processes, and knows no isolation. What only one driver needs belongs to that driver.
package ground

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

// Options say what to stand on.
type Options struct {
	// Installation is the id that every object on the host carries.
	Installation string
	// Scratch is an existing directory for the short-lived files of a probe; empty means the system's.
	Scratch string
	// Agent gives the agent's binary. CodeUnavailable: this program was built without it.
	Agent func() ([]byte, error)
}

// Ground implements what dayfly.Driver asks about machines that nobody holds.
type Ground struct {
	// Unfit is why this host or this program cannot run the driver, or nil; otherwise nothing but it is set, and every
	// method answers it.
	Unfit error

	Host   cgroup.Host
	CPUs   *machine.CPUs
	Roots  *rootfs.Maker
	Parent *birth.Parent

	installation string
	scratch      string
	watcher      machine.Watcher
}

// Open prepares it. On a host that cannot run the driver there is a Ground too, which is Unfit. Close releases what it holds.
func Open(o Options) (*Ground, error) {
	if !dayfly.ValidInstallation(o.Installation) {
		return nil, fmt.Errorf("%q is no installation id", o.Installation)
	}
	g := &Ground{installation: o.Installation, scratch: o.Scratch}
	switch err := g.prepare(o.Agent); {
	case err == nil:
		return g, nil
	case dayfly.ErrorCode(err) == dayfly.CodeUnavailable:
		return &Ground{Unfit: err}, nil
	default:
		return nil, err
	}
}

func (g *Ground) prepare(agent func() ([]byte, error)) (err error) {
	if g.Host, err = cgroup.Detect("/"); err != nil {
		return err
	}
	binary, err := agent()
	if err != nil {
		return err
	}
	if g.CPUs, err = machine.NewCPUs(); err != nil {
		return err
	}
	var undo cleanup.Stack
	defer undo.Clean()
	if g.Parent, err = birth.NewParent(binary); err != nil {
		return err
	}
	undo.Add(func() { _ = g.Parent.Close() })
	if g.Roots, err = rootfs.NewMaker(); err != nil {
		return err
	}
	undo.Add(g.Roots.Close)
	if g.watcher.Events, err = cgroup.NewEvents(); err != nil {
		return err
	}
	undo.Release()
	return nil
}

// Close releases the descriptors and waits for goroutines. Machines run on. Nothing of the driver or of its instances may be
// called afterwards.
func (g *Ground) Close() error {
	if g.Unfit != nil {
		return nil
	}
	err := g.watcher.Events.Close()
	g.watcher.Ending.Wait()
	g.Roots.Close()
	return errors.Join(err, g.Parent.Close())
}

// group is a machine's control group.
func (g *Ground) group(id string) (*cgroup.Group, error) {
	if g.Unfit != nil {
		return nil, g.Unfit
	}
	return g.Host.Group(g.installation, id)
}

// List implements dayfly.Driver: the machines are the installation's control groups.
func (g *Ground) List(ctx context.Context) ([]string, error) {
	if g.Unfit != nil {
		return nil, g.Unfit
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return g.Host.List(g.installation)
}

// Alive tells whether a process of a machine lives. An error means "could not look".
func (g *Ground) Alive(id string) (bool, error) {
	group, err := g.group(id)
	if err != nil {
		return false, err
	}
	return group.Populated()
}

// OutOfMemory tells whether anything of a machine, which may be dead, was killed for lack of memory. CodeGone: its control group
// is not there any more.
func (g *Ground) OutOfMemory(id string) (bool, error) {
	group, err := g.group(id)
	if err != nil {
		return false, err
	}
	counter, err := group.OOMCounter()
	if err != nil {
		return false, err
	}
	defer counter.Close()
	kills, err := counter.Kills()
	return kills > 0, err
}

// Reclaim implements dayfly.Driver. A machine's mounts, namespaces and interfaces end with its last process.
func (g *Ground) Reclaim(ctx context.Context, id string) error {
	group, err := g.group(id)
	if err != nil {
		return err
	}
	return errors.Join(group.Kill(ctx), group.Remove()) // both, whatever the first one meets
}
