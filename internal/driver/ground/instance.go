package ground

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/driver/birth"
	"dayfly.dev/dayfly/internal/driver/machine"
)

const (
	undoWait   = 10 * time.Second // for a failed start to be undone
	uidBaseMin = dayfly.IDCount   // ids below belong to the host
)

// Instance is a machine with what it holds of the ground. Its end gives that back.
type Instance struct {
	*machine.Machine
	CPUs  []int
	child *birth.Child // nil for a recovered machine
}

func (g *Ground) instance(id string, group *cgroup.Group) *Instance {
	i := &Instance{}
	i.Machine = machine.New(&g.watcher, id, group, func() {
		g.CPUs.Give(i.CPUs)
		if i.child != nil {
			i.child.Free()
		}
	})
	return i
}

// Begin makes the control group of a machine of an installation, which may be that of trials, deals it its CPUs, and gives the
// instance. The caller destroys it when the start fails.
func (g *Ground) Begin(ctx context.Context, installation, id string, limits dayfly.Limits) (*Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	group, err := g.Host.Group(installation, id)
	if err != nil {
		return nil, err
	}
	if err := group.Create(limits); err != nil {
		return nil, err
	}
	i := g.instance(id, group)
	i.CPUs = g.CPUs.Take(limits.VCPU)
	return i, nil
}

// Bear starts the first process of an instance; o's group and CPUs are the instance's. The caller closes the child, and frees
// it once it runs its binary.
func (g *Ground) Bear(i *Instance, o birth.Order) (*birth.Child, error) {
	o.Group, o.CPUs = i.Group, i.CPUs
	c, err := g.Parent.Start(o)
	if err != nil {
		return nil, err
	}
	i.PID, i.Ours, i.child = c.PID, true, c
	return c, nil
}

// Retake takes hold of a machine that runs, from what Instance.State gave. CodeGone: it has ended.
func (g *Ground) Retake(ctx context.Context, id string, raw json.RawMessage) (*Instance, machine.State, error) {
	fail := func(err error) (*Instance, machine.State, error) {
		return nil, machine.State{}, fmt.Errorf("recover %s: %w", id, err)
	}
	group, err := g.group(id)
	if err != nil {
		return nil, machine.State{}, err
	}
	st, err := machine.Parse(raw)
	if err != nil {
		return fail(err)
	}
	i := g.instance(id, group)
	i.CPUs = st.CPUs
	g.CPUs.Hold(i.CPUs)
	if err := i.Recover(ctx, raw, st); err != nil {
		if !i.Ended() { // its end gives them back
			g.CPUs.Give(i.CPUs)
		}
		return fail(err)
	}
	return i, st, nil
}

// Undo destroys a machine whose start failed, whatever became of the start's context. What it cannot remove is in List, for
// Reclaim.
func Undo(ctx context.Context, destroy func(context.Context) error) func() {
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWait)
		defer cancel()
		_ = destroy(ctx)
	}
}

// Start checks a spec and starts a machine of the ground's installation by start.
func Start[T dayfly.Instance](ctx context.Context, g *Ground, spec dayfly.InstanceSpec,
	start func(ctx context.Context, installation string, spec dayfly.InstanceSpec) (T, error)) (dayfly.Instance, error) {
	if err := check(spec); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.ID, err)
	}
	if g.Unfit != nil {
		return nil, g.Unfit
	}
	i, err := start(ctx, g.installation, spec)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(ctx.Err(), err)
		}
		return nil, fmt.Errorf("start %s: %w", spec.ID, err)
	}
	return i, nil
}

// check refuses what only a fault of the node can ask for.
func check(spec dayfly.InstanceSpec) error {
	if !dayfly.ValidID(dayfly.PrefixSandbox, spec.ID) {
		return fmt.Errorf("%q is no sandbox id", spec.ID)
	}
	if spec.UIDBase < uidBaseMin {
		return fmt.Errorf("host uid %d is not for machines", spec.UIDBase)
	}
	for _, dir := range append([]string{spec.RunDir, spec.Root.Upper}, spec.Root.Lower...) {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("%q is no absolute path", dir)
		}
	}
	return nil
}

// Attach connects the network of a machine whose first process is c, if anybody wants that.
func Attach(ctx context.Context, c *birth.Child, spec dayfly.InstanceSpec) error {
	if spec.AttachNetwork == nil {
		return nil
	}
	netns, err := c.Open("net")
	if err != nil {
		return err
	}
	defer netns.Close()
	return spec.AttachNetwork(ctx, netns)
}
