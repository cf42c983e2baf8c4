package gvisor

import (
	"context"
	"runtime"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/ground"
	"dayfly.dev/dayfly/internal/driver/trial"
)

const probeWait = 30 * time.Second

// startsPerCPU: while several user-space kernels start, they spin for each other's turn on a CPU. A hundred starts with a first
// command each took 9.7 s on two CPUs with 16 at once for each, 7.6 s with 2, and 7.9 s with 1 (bench/RESULTS.md).
const startsPerCPU = 2

// Probe implements dayfly.Driver. It boots a machine with an empty root file system and measures it.
func (d *Driver) Probe(ctx context.Context) dayfly.Capability {
	c := dayfly.Capability{OOM: dayfly.OOMEndsSandbox, StartsPerCPU: startsPerCPU}
	trial.Check(&c, trial.Root, trial.Kernel, trial.UserNamespaces, trial.Overlay, trial.Seccomp, trapped, traced,
		trial.Requirement{Fault: architectureFault, Install: "use isolation linux"})
	var runsc program
	err := d.Unfit
	if err == nil {
		runsc, err = d.runsc()
	}
	ground.Doubt(&c, err)
	ground.Try(ctx, d.Ground, &c, probeWait, d.start, idle)
	if runsc.foreign != "" {
		c.Reasons = append(c.Reasons, "it uses "+runsc.path+", version "+runsc.foreign+", instead of the built-in gVisor, "+
			"and may end a machine at one of many pauses, which the built-in one does not")
		if !c.Works {
			c.Install = append(c.Install, foreignHint)
		}
	}
	return c
}

func architectureFault() string {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return "gVisor does not run on " + runtime.GOARCH
	}
	return ""
}

// idle is what the machine costs: the private share of its processes, which the group's counter of memory may not hold.
func idle(ctx context.Context, i *instance) (int64, error) {
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
