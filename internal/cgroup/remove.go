package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"time"
)

const (
	removeTries = 50                   // the kernel tells of no event when a v1 group may be removed
	removeWait  = 4 * time.Millisecond // between two tries
)

// Remove removes the group and those below it in every hierarchy, children first. ErrBusy: something lives in it (Kill
// first); nothing is forgotten, it may be called again. Removing what is not there succeeds. It blocks for at most 0.2 s.
func (g *Group) Remove() error {
	var errs []error
	for _, dir := range g.paths.dirs() {
		errs = append(errs, removeTree(dir))
	}
	return errors.Join(errs...)
}

// removeTree removes dir. A process that just died may hold its group for a moment, so EBUSY is tried again.
func removeTree(dir string) error {
	var err error
	for try := range removeTries {
		if try > 0 {
			time.Sleep(removeWait)
		}
		var dirs []string
		if dirs, err = subtree(dir); err != nil {
			return fmt.Errorf("list cgroups below %s: %w", dir, err)
		}
		err = nil
		for _, d := range slices.Backward(dirs) {
			err = errors.Join(err, rmdir(d))
		}
		if !errors.Is(err, ErrBusy) {
			return err
		}
	}
	return err
}

// rmdirs removes groups that have none below them.
func rmdirs(dirs []string) error {
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, rmdir(dir))
	}
	return errors.Join(errs...)
}

// rmdir removes one group. Missing is fine; in use is ErrBusy.
func rmdir(dir string) error {
	err := syscall.Rmdir(dir)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.ENOTEMPTY):
		return fmt.Errorf("remove %s: %w", dir, ErrBusy)
	}
	return fmt.Errorf("remove %s: %w", dir, err)
}
