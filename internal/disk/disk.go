// Package disk holds what the pool technologies below it share: what a disk may be called, and how the kernel's "no room"
// is told. It stores nothing itself.
//
// To add a technology, implement dayfly.Pool in a package below this one and pass disktest.
package disk

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

const idMax = 63 // bytes

// ValidID tells whether id can name a disk: lower-case letters and digits, so no id is a path.
func ValidID(id string) bool {
	for i := range len(id) {
		if c := id[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return id != "" && len(id) <= idMax
}

// CheckID is ValidID as a CodeInvalid error.
func CheckID(id string) error {
	if !ValidID(id) {
		return dayfly.Errorf(dayfly.CodeInvalid, "%.80q is not the id of a disk", id)
	}
	return nil
}

// Error wraps err with the step it failed in, and makes it the user's when the cause is a lack of room. nil stays nil.
func Error(step string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return dayfly.Errorf(dayfly.CodeDiskFull, "the disk pool is full").
			WithHint("delete sandboxes, or give the pool more room").WithCause(fmt.Errorf("%s: %w", step, err))
	case errors.Is(err, unix.EROFS):
		return dayfly.Errorf(dayfly.CodeUnavailable, "the disk pool became read-only").
			WithHint("the host's disk is full or failing: see the kernel's log").WithCause(fmt.Errorf("%s: %w", step, err))
	}
	return fmt.Errorf("%s: %w", step, err)
}
