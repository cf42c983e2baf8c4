package warden

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/reserve"
)

// Run is the warden of one data directory, until nobody needs it: no lease is left and no server runs, or a newer warden
// has taken over. Ending ctx, like SIGTERM, asks it to leave as soon as no lease is left; nothing but SIGKILL makes it leave
// machines without an enforcer. CodeConflict: a warden runs there already (without Replace).
func Run(ctx context.Context, o Options) error {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(oomScore), 0) // needs a capability that not every root has
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	if err := os.MkdirAll(wardenDir(o.DataDir), dirMode); err != nil {
		return fmt.Errorf("make warden directory: %w", err)
	}
	dir, err := OpenDir(o.DataDir)
	if err != nil {
		return err
	}
	k, err := newKeeper(o, dir)
	if err != nil {
		return err
	}
	defer k.close()
	if o.Replace {
		k.rescan() // every lease is loaded before the older warden is asked to go
	}
	lock, err := k.takeLock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	keepLastBoot(o.DataDir, o.Clock.Now())
	beat, err := os.OpenFile(heartbeatPath(o.DataDir), os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return fmt.Errorf("open heartbeat: %w", err)
	}
	defer beat.Close()
	k.resolve()
	k.rescan()
	return k.loop(ctx, beat)
}

// takeLock takes the warden's lock, from an older warden if need be, and says in it who holds it.
func (k *keeper) takeLock(ctx context.Context) (*os.File, error) {
	path := lockPath(k.opt.DataDir)
	lock, err := reserve.Lock(path)
	if errors.Is(err, reserve.ErrHeld) && k.opt.Replace {
		if err := k.takeOver(ctx); err != nil {
			return nil, err
		}
		lock, err = reserve.Lock(path)
	}
	if errors.Is(err, reserve.ErrHeld) {
		return nil, dayfly.Errorf(dayfly.CodeConflict, "a warden for %s runs already", k.opt.DataDir).
			WithHint("it needs no help; --replace makes a newer one take over").WithCause(err)
	}
	if err != nil {
		return nil, err
	}
	undo := cleanup.Make(func() { _ = lock.Close() })
	defer undo.Clean()
	if err := lock.Truncate(0); err != nil {
		return nil, fmt.Errorf("write warden lock: %w", err)
	}
	if _, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, fmt.Errorf("write warden lock: %w", err)
	}
	_ = os.Remove(handoverPath(k.opt.DataDir)) // whoever was asked has gone
	undo.Release()
	return lock, nil
}

// takeOver asks the warden that holds the lock to make room and waits for its death; one that does not go is killed, which
// a warden survives by design: its marks tell what it had begun.
func (k *keeper) takeOver(ctx context.Context) error {
	old, err := holder(k.opt.DataDir)
	if errors.Is(err, errNoHolder) {
		return nil
	}
	if err != nil {
		return err
	}
	defer old.close()
	if err := os.WriteFile(handoverPath(k.opt.DataDir), []byte(strconv.Itoa(os.Getpid())), fileMode); err != nil {
		k.opt.Log.Warn("cannot ask the older warden to make room", "error", err)
	}
	asked, cancel := context.WithTimeout(ctx, handoverWait)
	defer cancel()
	if err := old.wait(asked); err == nil {
		return nil
	}
	k.opt.Log.Warn("the older warden does not make room, ending it", "pid", old.pid)
	if err := old.kill(); err != nil {
		return err
	}
	killed, cancel := context.WithTimeout(context.WithoutCancel(ctx), handoverWait)
	defer cancel()
	return old.wait(killed)
}
