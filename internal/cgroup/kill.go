package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	killFile   = "cgroup.kill"
	freezeFile = "cgroup.freeze"
	killRounds = 1000 // of killing by freezing; a round ends early only when something got away
	freezeWait = 200 * time.Millisecond
	roundWait  = 100 * time.Millisecond
)

// Kill ends every process of the group and of those below it: fork bombs, stopped, frozen and detached ones. It returns once
// none lives, or with ctx's error. It is final: no process can be born in the group afterwards (its pids limit stays 0), so
// that a start that was under way fails instead of escaping. A group that does not exist is dead.
//
// Processes that are in a v1 group but not in the v2 one are never killed: such a one can only be a thread of the caller
// that is just starting something.
func (g *Group) Kill(ctx context.Context) error {
	closing := write(filepath.Join(g.paths.of("pids"), "pids.max"), "0")
	if gone(closing) {
		closing = nil
	}
	err := write(filepath.Join(g.paths.V2, killFile), "1")
	if errors.Is(err, fs.ErrNotExist) {
		err = g.killByFreezing(ctx)
	}
	if err != nil && !gone(err) {
		return errors.Join(fmt.Errorf("kill cgroup: %w", err), closing)
	}
	if err := g.waitEvents(ctx, isEmpty); err != nil {
		return errors.Join(fmt.Errorf("wait for the cgroup to empty: %w", err), closing)
	}
	if closing != nil {
		return fmt.Errorf("close the cgroup: %w", closing)
	}
	return nil
}

// killByFreezing is for a kernel without cgroup.kill: nothing can fork while frozen, and a killed process dies when thawed.
func (g *Group) killByFreezing(ctx context.Context) error {
	for range killRounds {
		populated, err := g.Populated()
		if err != nil || !populated {
			return err
		}
		frozen, cancel := context.WithTimeout(ctx, freezeWait)
		err = g.Freeze(frozen)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		pids, err := g.Processes()
		if err != nil {
			return err
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // gone already is as good
		}
		if err := g.thawAll(); err != nil {
			return err
		}
		emptied, cancel := context.WithTimeout(ctx, roundWait)
		err = g.waitEvents(emptied, isEmpty)
		cancel()
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return fmt.Errorf("still populated after %d rounds", killRounds)
}

// thawAll thaws the group and those below it: a sandbox may have frozen its own.
func (g *Group) thawAll() error {
	dirs, err := subtree(g.paths.V2)
	for _, dir := range dirs {
		if werr := write(filepath.Join(dir, freezeFile), "0"); werr != nil && !gone(werr) {
			err = errors.Join(err, werr)
		}
	}
	return err
}

// Freeze stops every process of the group and waits until all are stopped. After an error they may be partly stopped: Thaw.
func (g *Group) Freeze(ctx context.Context) error {
	if err := write(filepath.Join(g.paths.V2, freezeFile), "1"); err != nil {
		return fmt.Errorf("freeze cgroup: %w", err)
	}
	if err := g.waitEvents(ctx, isFrozen); err != nil {
		return fmt.Errorf("wait for the cgroup to freeze: %w", err)
	}
	return nil
}

// Thaw lets the processes run on and waits until the kernel says so.
func (g *Group) Thaw(ctx context.Context) error {
	if err := write(filepath.Join(g.paths.V2, freezeFile), "0"); err != nil {
		return fmt.Errorf("thaw cgroup: %w", err)
	}
	if err := g.waitEvents(ctx, isThawed); err != nil {
		return fmt.Errorf("wait for the cgroup to thaw: %w", err)
	}
	return nil
}

// Freezing tells whether the group is frozen or on its way to it: whether Freeze was called, by whomever, and Thaw was not since.
// A group that does not exist is not frozen.
func (g *Group) Freezing() (bool, error) {
	b, err := readLimited(filepath.Join(g.paths.V2, freezeFile), fileMax)
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read whether the cgroup is frozen: %w", err)
	}
	return strings.TrimSpace(string(b)) == "1", nil
}

func isEmpty(events []byte) bool  { v, ok := field(events, "populated"); return ok && v == 0 }
func isFrozen(events []byte) bool { v, ok := field(events, "frozen"); return ok && v == 1 }
func isThawed(events []byte) bool { v, ok := field(events, "frozen"); return ok && v == 0 }
