package linux

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/ground"
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
	ground.Doubt(&c, d.Unfit)
	ground.Try(ctx, d.Ground, &c, probeWait, d.start, idle)
	if c.Works {
		c.Reasons = append(c.Reasons, shortcomings()...)
	}
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

// idle is what a machine costs.
func idle(ctx context.Context, i *instance) (int64, error) {
	usage, err := i.Usage(ctx)
	if err != nil {
		return 0, err
	}
	pss, err := trial.Proportional(i.PID)
	return max(pss, usage.MemoryBytes), err
}
