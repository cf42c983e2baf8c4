package linux

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/trial"
)

const (
	probeWait   = 20 * time.Second
	filesWanted = 65536 // open files of a process inside that real programs have asked for
)

// Probe implements dayfly.Driver. It boots a machine with an empty root file system and measures it.
func (d *Driver) Probe(ctx context.Context) dayfly.Capability {
	c := dayfly.Capability{OOM: dayfly.OOMEndsCommand}
	trial.Check(&c, trial.Root, trial.Kernel, trial.UserNamespaces, trial.Overlay, trial.Seccomp)
	if d.unfit != nil {
		e := dayfly.AsError(d.unfit)
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
	c.Reasons = append(c.Reasons, shortcomings()...)
	return c
}

// shortcomings tells what works with less on this host.
func shortcomings() (out []string) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err == nil && l.Max < filesWanted {
		out = append(out, fmt.Sprintf("a process inside may open only %d files, the hard limit that this server was started with", l.Max))
	}
	if on, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil && on == 1 {
		out = append(out, "sudo does not work inside, because this server was started with NoNewPrivileges")
	}
	return out
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
	usage, err := inst.Usage(ctx)
	if err != nil {
		return 0, err
	}
	pss, err := trial.Proportional(inst.PID)
	return max(pss, usage.MemoryBytes), err
}
