package gvisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/driver/beneath"
	"dayfly.dev/dayfly/internal/driver/birth"
	"dayfly.dev/dayfly/internal/driver/channel"
	"dayfly.dev/dayfly/internal/driver/fsmount"
	"dayfly.dev/dayfly/internal/driver/ground"
	"dayfly.dev/dayfly/internal/driver/gvisor/cell"
	"dayfly.dev/dayfly/internal/driver/machine"
	"dayfly.dev/dayfly/internal/failpoint"
)

const (
	hangUpWait = time.Second // for a cell to say why it hung up
	openFiles  = 1 << 20     // descriptors of a process inside, if the host allows
	runscAttrs = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

	// The user-space kernel has threads of its own on the host: its group's limit of processes must not be what a program
	// inside meets first. That is RLIMIT_NPROC, set inside.
	pidsShare = 4
	pidsBase  = 1000

	// Memory of the user-space kernel itself, on top of the limit of what runs inside.
	overheadBytes = 96 << 20
)

// Start implements dayfly.Driver.
func (d *Driver) Start(ctx context.Context, spec dayfly.InstanceSpec) (dayfly.Instance, error) {
	return ground.Start(ctx, d.Ground, spec, d.start)
}

func (d *Driver) start(ctx context.Context, installation string, spec dayfly.InstanceSpec) (*instance, error) {
	if spec.Limits.PIDs == 0 {
		spec.Limits.PIDs = dayfly.PIDsDefault
	}
	outer := spec.Limits
	outer.PIDs = outer.PIDs*pidsShare + pidsBase
	if outer.MemoryBytes > 0 {
		outer.MemoryBytes += d.overheadBytes
	}
	begun, err := d.Begin(ctx, installation, spec.ID, outer)
	if err != nil {
		return nil, err
	}
	inst := &instance{begun}
	undo := cleanup.Make(ground.Undo(ctx, inst.Destroy))
	defer undo.Clean()
	failpoint.Hit("gvisor.start.group")
	c, err := d.Bear(begun, birth.Order{UIDBase: spec.UIDBase, Name: "dayfly-cell", Mode: "cell"})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	failpoint.Hit("gvisor.start.spawned")
	if err := d.raise(ctx, c, spec); err != nil {
		if kills, kerr := inst.OOMKills(); kerr == nil && kills > 0 && ctx.Err() == nil {
			return nil, tooSmall(spec.Limits.MemoryBytes, err)
		}
		return nil, err
	}
	failpoint.Hit("gvisor.start.raised")
	c.Free() // the cell runs: it left this memory long ago
	if err := fixScores(inst.Group); err != nil {
		return nil, err
	}
	if err := inst.Settle(spec.RunDir, inst.CPUs); err != nil {
		return nil, err
	}
	undo.Release()
	return inst, nil
}

// tooSmall tells that a machine ran out of memory before it could do anything.
func tooSmall(limitBytes int64, err error) error {
	return dayfly.Errorf(dayfly.CodeInvalid, "the memory limit of %d MiB is too small for a sandbox under gVisor to start", limitBytes>>20).
		WithHint("give it more memory").WithCause(err)
}

// raise brings a cell to life: its network in parallel with its root directory, then runsc.
func (d *Driver) raise(ctx context.Context, c *birth.Child, spec dayfly.InstanceSpec) error {
	stop := context.AfterFunc(ctx, func() { _ = c.Channel.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err := d.furnish(c, spec)
	if err == nil {
		if err := ground.Attach(ctx, c, spec); err != nil {
			return fmt.Errorf("attach network: %w", err)
		}
		failpoint.Hit("gvisor.start.attached")
		err = cell.Go(c.Channel)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	aerr := await(c, err)
	if aerr != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return aerr
}

// await waits until the machine is ready. sendErr, or nil, is what the driver met before: a cell that has hung up may have said
// why.
func await(c *birth.Child, sendErr error) error {
	if sendErr != nil {
		if !errors.Is(sendErr, unix.EPIPE) && !errors.Is(sendErr, unix.ECONNRESET) {
			return sendErr
		}
		_ = c.Channel.SetDeadline(time.Now().Add(hangUpWait))
	}
	err := channel.Await(c.Channel)
	switch {
	case errors.Is(err, channel.ErrDied):
		return errors.Join(err, sendErr, c.Died())
	case err != nil && sendErr != nil:
		return errors.Join(sendErr, err)
	case err != nil:
		return err
	}
	return sendErr
}

// furnish sends the cell what it needs of the host.
func (d *Driver) furnish(c *birth.Child, spec dayfly.InstanceSpec) error {
	if err := c.MapIDs(spec.UIDBase); err != nil {
		return err
	}
	userns, err := c.Open("user")
	if err != nil {
		return errors.Join(err, c.Died())
	}
	defer userns.Close()
	m, err := d.Roots.Make(spec.Root, int(userns.Fd()), spec.UIDBase)
	if err != nil {
		return err
	}
	defer m.Close()
	shown, err := machine.Shown(spec.RunDir)
	if err != nil {
		return err
	}
	defer unix.Close(shown)
	use, err := d.runsc()
	if err != nil {
		return err
	}
	runsc, err := fsmount.Clone(use.path)
	if err != nil {
		return err
	}
	defer unix.Close(runsc)
	if err := fsmount.Restrict(runsc, runscAttrs); err != nil {
		return fmt.Errorf("make runsc read-only: %w", err)
	}
	failpoint.Hit("gvisor.start.mounted")
	return cell.Send(c.Channel, config(spec, use), cell.Descriptors{Root: m.Root, Dev: m.Dev, Shown: shown, Runsc: runsc, Agent: d.Parent.Agent()})
}

func config(spec dayfly.InstanceSpec, use program) cell.Config {
	cfg := cell.Config{
		ID: spec.ID, Flags: flags(), Limits: spec.Limits, Network: spec.AttachNetwork != nil, OpenMax: openFiles,
		Waits: use.foreign == "",
		Guest: cell.Guest{
			ID: spec.ID, User: spec.User, Workdir: spec.Workdir, Env: spec.Env, Granted: int64(spec.Granted), Memory: spec.Limits.MemoryBytes,
		},
	}
	for path, content := range spec.Files {
		cfg.Files = append(cfg.Files, beneath.File{Path: path, Content: content})
	}
	return cfg
}
