package warden

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
)

// Ensure returns once a warden of this build watches the leases: it starts one if none runs, ends and replaces one that is
// stopped or stuck, and lets a newer build take over without a gap. It blocks for some tens of milliseconds when it has to
// start one, seconds at worst.
func (g *Guard) Ensure(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var err error
	for range ensureMax {
		if err = g.ensureLocked(ctx); err == nil || ctx.Err() != nil {
			return err
		}
		g.opt.Log.Warn("start warden", "error", err)
	}
	return err
}

func (g *Guard) ensureLocked(ctx context.Context) error {
	if err := g.Alive(); err == nil {
		b, err := ReadHeartbeat(g.opt.DataDir)
		if err != nil {
			return err
		}
		if b.Build == g.opt.Build {
			return nil
		}
		return g.start(ctx, true /* replace */)
	}
	old, err := holder(g.opt.DataDir)
	if err == nil {
		defer old.close()
		g.opt.Log.Warn("the warden shows no life, ending it", "pid", old.pid)
		if err := old.kill(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, handoverWait)
		defer cancel()
		if err := old.wait(ctx); err != nil {
			return fmt.Errorf("wait for the old warden to die: %w", err)
		}
	} else if !errors.Is(err, errNoHolder) {
		return err
	}
	return g.start(ctx, false /* replace */)
}

// start starts a warden and waits until it watches.
func (g *Guard) start(ctx context.Context, replace bool) error {
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	if err := os.MkdirAll(wardenDir(g.opt.DataDir), dirMode); err != nil {
		return fmt.Errorf("make warden directory: %w", err)
	}
	changed := make(chan struct{}, 1)
	w, err := newWatcher(func([]notice) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return err
	}
	defer w.close()
	if _, err := w.add(wardenDir(g.opt.DataDir), unix.IN_MODIFY|unix.IN_CREATE); err != nil {
		return err
	}
	pid, died, err := g.spawn(replace)
	if err != nil {
		return err
	}
	for {
		if b, err := ReadHeartbeat(g.opt.DataDir); err == nil && b.PID == pid && g.Alive() == nil {
			g.opt.Log.Info("warden watches", "pid", pid)
			return nil
		}
		select {
		case <-changed:
		case err := <-died:
			return fmt.Errorf("the warden ended at once (%v); its log is %s", err, g.logPath())
		case <-ctx.Done():
			return fmt.Errorf("wait for the warden: %w; its log is %s", ctx.Err(), g.logPath())
		}
	}
}

func (g *Guard) logPath() string { return filepath.Join(g.opt.DataDir, logsName, logName) }

// spawn starts the warden's process: a session and control groups of its own, no descriptor and no environment of ours. It
// is meant to outlive this process; while this one lives, a goroutine reaps it, and died gets its end.
func (g *Guard) spawn(replace bool) (pid int, died <-chan error, err error) {
	group, err := g.opt.Host.Group(g.opt.Installation, cgroup.WardenID)
	if err != nil {
		return 0, nil, err
	}
	if err := group.Create(dayfly.Limits{}); err != nil && dayfly.ErrorCode(err) != dayfly.CodeConflict {
		return 0, nil, fmt.Errorf("start warden: %w", err)
	}
	log, err := openLog(g.logPath())
	if err != nil {
		return 0, nil, fmt.Errorf("start warden: %w", err)
	}
	defer log.Close()
	args := []string{"dayfly", "warden", "--data", g.opt.DataDir}
	if replace {
		args = append(args, "--replace")
	}
	cmd := &exec.Cmd{
		Path: g.opt.Exe, Args: args, Dir: "/", Env: append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, g.opt.Env...),
		Stdout: log, Stderr: log, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := group.StartCmd(cmd); err != nil {
		return 0, nil, fmt.Errorf("start warden: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return cmd.Process.Pid, ended, nil
}

// openLog opens the warden's log for appending; one that has grown too long starts anew.
func openLog(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, fileMode)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err == nil && info.Size() > logMaxBytes {
		_ = f.Truncate(0)
	}
	return f, nil
}

// Watch calls onDeath, on this goroutine, each time there is no live warden: at once when it dies, within seconds when it is
// stopped or stuck. onDeath is meant to call Ensure. Watch returns when ctx ends.
func (g *Guard) Watch(ctx context.Context, onDeath func(ctx context.Context)) {
	for ctx.Err() == nil {
		if g.Alive() != nil {
			onDeath(ctx)
		}
		g.sleep(ctx)
	}
}

// sleep blocks until the warden dies, watchEvery has passed, or ctx ends.
func (g *Guard) sleep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	p, err := holder(g.opt.DataDir)
	if err != nil {
		<-ctx.Done() // nobody to wait for; not faster, or a warden that cannot start would be tried without end
		return
	}
	defer p.close()
	_ = p.wait(ctx)
}

// Leaving asks the warden to leave as soon as no lease is left and waits for that until ctx ends. Nil when none runs.
func (g *Guard) Leaving(ctx context.Context) error {
	p, err := holder(g.opt.DataDir)
	if errors.Is(err, errNoHolder) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.close()
	if err := p.signal(unix.SIGTERM); err != nil {
		return fmt.Errorf("ask the warden to leave: %w", err)
	}
	if err := p.wait(ctx); err != nil {
		return fmt.Errorf("wait for the warden to leave: %w", err)
	}
	return nil
}
