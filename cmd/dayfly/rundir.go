package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	runDirMode = 0o711
	runDirSize = "64m" // of a tmpfs of our own: a sandbox has four small files in it
)

func runDirOf(installation string) string { return filepath.Join(runRoot, installation) }

// openRunDir makes the directory of everything that lives as long as a machine: sockets and grants. Where /run is on a disk
// (minimal systems, containers) a tmpfs of our own is mounted there, because four files made and removed with every sandbox
// are costly on one: on ext4 without a journal a tenth of a create. It stays mounted until removeRunDir.
func openRunDir(installation string) (string, error) {
	dir := runDirOf(installation)
	for _, d := range []string{runRoot, dir} {
		if err := os.MkdirAll(d, runDirMode); err != nil {
			return "", fmt.Errorf("make the run directory: %w", err)
		}
	}
	mount, err := wantsTmpfs(dir)
	if err != nil || !mount {
		return dir, err
	}
	options := fmt.Sprintf("mode=%o,size=%s", runDirMode, runDirSize)
	if err := unix.Mount("dayfly", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return "", fmt.Errorf("mount the run directory: %w", err)
	}
	return dir, nil
}

// wantsTmpfs tells whether dir is an empty directory on a disk. One with files in it is left alone: machines may live that
// have their sockets there. So is everything in a mount namespace of its own, which would take the mount along when this
// server ends.
func wantsTmpfs(dir string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, fmt.Errorf("look at the run directory: %w", err)
	}
	if st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC {
		return false, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, fmt.Errorf("look at the run directory: %w", err)
	}
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return false, fmt.Errorf("look at the mount namespace: %w", err)
	}
	hosts, err := os.Readlink("/proc/1/ns/mnt")
	private := err == nil && ours != hosts // in a container that may not look at PID 1 it is taken for the host's
	return len(entries) == 0 && !private, nil
}

// removeRunDir takes the directory and its tmpfs away. Removing what is not there succeeds.
func removeRunDir(installation string) error {
	dir := runDirOf(installation)
	err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) { // EINVAL: no mount point
		return fmt.Errorf("unmount the run directory: %w", err)
	}
	return os.RemoveAll(dir)
}
