package ground

import (
	"context"
	"errors"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/trial"
)

// Doubt adds an error that keeps a driver from working to what its probe tells; nil adds nothing.
func Doubt(c *dayfly.Capability, err error) {
	if err == nil {
		return
	}
	e := dayfly.AsError(err)
	c.Reasons = append(c.Reasons, e.Message)
	if e.Hint != "" {
		c.Install = append(c.Install, e.Hint)
	}
}

// Try boots a machine with an empty root file system, measures it and destroys it, within wait, unless something keeps the driver
// from working already. It completes c.
func Try[T dayfly.Instance](ctx context.Context, g *Ground, c *dayfly.Capability, wait time.Duration,
	start func(ctx context.Context, installation string, spec dayfly.InstanceSpec) (T, error),
	measure func(ctx context.Context, machine T) (idleBytes int64, err error)) {
	if len(c.Reasons) > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	idle, err := try(ctx, g, start, measure)
	if err != nil {
		c.Reasons = append(c.Reasons, "a trial machine failed: "+err.Error())
		return
	}
	c.Works, c.IdleBytes = true, idle
}

func try[T dayfly.Instance](ctx context.Context, g *Ground, start func(context.Context, string, dayfly.InstanceSpec) (T, error),
	measure func(context.Context, T) (int64, error)) (idleBytes int64, err error) {
	trial.Sweep(ctx, g.Host)
	spec, remove, err := trial.Spec(g.scratch)
	if err != nil {
		return 0, err
	}
	defer remove()
	i, err := start(ctx, trial.Installation, spec)
	defer func() { _ = g.Host.RemoveInstallation(trial.Installation) }() // busy while another probe runs
	if err != nil {
		return 0, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWait)
		defer cancel()
		err = errors.Join(err, i.Destroy(ctx))
	}()
	conn, err := i.Dial(ctx)
	if err != nil {
		return 0, err
	}
	_ = conn.Close()
	return measure(ctx, i)
}
