package machine

import (
	"fmt"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/driver/fsmount"
)

const shownAttrs = fsmount.Plain | unix.MOUNT_ATTR_RDONLY

// Shown gives a detached read-only mount of what the node shows a machine of its run directory. The caller closes it.
func Shown(runDir string) (int, error) {
	fd, err := fsmount.Clone(runDir + "/in")
	if err != nil {
		return -1, err
	}
	if err := fsmount.Restrict(fd, shownAttrs); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("make %s/in read-only: %w", runDir, err)
	}
	return fd, nil
}
