package gvisor

import (
	"context"
	"errors"
	"runtime"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/trial"
)

const probeWait = 30 * time.Second

// Probe implements dayfly.Driver. It boots a machine with an empty root file system and measures it.
func (d *Driver) Probe(ctx context.Context) dayfly.Capability {
	c := dayfly.Capability{OOM: dayfly.OOMEndsSandbox}
	trial.Check(&c, trial.Root, trial.Kernel, trial.UserNamespaces, trial.Overlay, trial.Seccomp,
		trial.Requirement{Fault: architectureFault, Install: "use isolation linux"})
	var runsc program
	err := d.unfit
	if err == nil {
		runsc, err = d.runsc()
	}
	if err != nil {
		e := dayfly.AsError(err)
		c.Reasons = append(c.Reasons, e.Message)
		if e.Hint != "" {
			c.Install = append(c.Install, e.Hint)
		}
	}
	if len(c.Reasons) > 0 {
		return c
	}
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	idle, err := d.trial(ctx)
	if err != nil {
		c.Reasons = append(c.Reasons, "a trial machine failed: "+err.Error())
		return c
	}
	c.Works, c.IdleBytes = true, idle
	if runsc.foreign != "" {
		c.Reasons = append(c.Reasons, "it uses "+runsc.path+", version "+runsc.foreign+", instead of the built-in gVisor")
	}
	return c
}

func architectureFault() string {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return "gVisor does not run on " + runtime.GOARCH
	}
	return ""
}

// trial starts a machine, measures its idle memory and destroys it.
func (d *Driver) trial(ctx context.Context) (idleBytes int64, err error) {
	trial.Sweep(ctx, d.host)
	spec, remove, err := trial.Spec(d.scratch)
	if err != nil {
		return 0, err
	}
	defer remove()
	inst, err := d.start(ctx, trial.Installation, spec)
	defer func() { _ = d.host.RemoveInstallation(trial.Installation) }() // busy while another probe runs
	if err != nil {
		return 0, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWait)
		defer cancel()
		err = errors.Join(err, inst.Destroy(ctx))
	}()
	conn, err := inst.Dial(ctx)
	if err != nil {
		return 0, err
	}
	_ = conn.Close()
	return inst.idle(ctx)
}

// idle is what the machine costs: the private share of its processes, which the group's counter of memory may not hold.
func (i *instance) idle(ctx context.Context) (int64, error) {
	usage, err := i.Usage(ctx)
	if err != nil {
		return 0, err
	}
	pids, err := i.Group.Processes()
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, pid := range pids {
		if pss, err := trial.Proportional(pid); err == nil { // one that has ended costs nothing
			sum += pss
		}
	}
	return max(sum, usage.MemoryBytes), nil
}
