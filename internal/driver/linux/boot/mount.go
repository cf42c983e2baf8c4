package boot

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	attrsPlain = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	attrsPTS   = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC
	ttyGroup   = "5" // Debian's, Alpine's and Fedora's
	// terminalsMax is what a machine gets of the pseudo-terminals that all machines of the host share (kernel.pty.max).
	terminalsMax = "128"
	shmShare     = 2 // one part in so many of the memory may be files in /dev/shm
)

// pseudo are the machine's kernel file systems, detached until the root is there. -1 is one that this kernel lacks.
type pseudo struct {
	proc, sys, pts, mqueue, empty int
}

// option is one key=value of a file system.
type option struct{ key, value string }

// newMount makes a file system and a detached mount of it.
func newMount(kind string, attrs int, options ...option) (int, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", kind, err)
	}
	defer unix.Close(fs)
	for _, o := range options {
		if err := unix.FsconfigSetString(fs, o.key, o.value); err != nil {
			return -1, fmt.Errorf("set %s of %s: %w", o.key, kind, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("create %s: %w", kind, err)
	}
	m, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return -1, fmt.Errorf("mount %s: %w", kind, err)
	}
	return m, nil
}

// attach puts a detached mount onto the open directory or file target.
func attach(mount, target int) error {
	return unix.MoveMount(mount, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// privateMounts cuts this mount namespace off from the host's: no event goes either way.
func (b *boot) privateMounts() error {
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
}

// makePseudo makes the kernel file systems. It must run while the host's /proc and /sys are still visible here: the kernel
// lets a user namespace mount only what it could see anyway.
func (b *boot) makePseudo() (err error) {
	if b.mounts.proc, err = newMount("proc", attrsPlain); err != nil {
		return err
	}
	if b.mounts.sys, err = newMount("sysfs", attrsPlain|unix.MOUNT_ATTR_RDONLY); err != nil {
		return err
	}
	b.mounts.pts, err = newMount("devpts", attrsPTS, option{"ptmxmode", "0666"}, option{"mode", "0620"}, option{"gid", ttyGroup},
		option{"max", terminalsMax})
	if err != nil {
		return err
	}
	b.mounts.mqueue, err = newMount("mqueue", attrsPlain)
	if errors.Is(err, unix.ENODEV) { // a kernel without POSIX queues
		b.mounts.mqueue, err = -1, nil
	}
	if err != nil {
		return err
	}
	b.mounts.empty, err = newMount("tmpfs", attrsPlain|unix.MOUNT_ATTR_RDONLY, option{"size", "0"}, option{"nr_inodes", "2"}, option{"mode", "0555"})
	return err
}

// openCgroup opens the machine's own cgroup through a mount that is never attached anywhere: nothing inside can see it,
// and ".." ends at the machine's own group.
func (b *boot) openCgroup() error {
	m, err := newMount("cgroup2", attrsPlain)
	if err != nil {
		return err
	}
	defer unix.Close(m)
	b.cgroup, err = unix.Openat(m, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return err
}

// Score is the oom_score_adj of PID 1; the agent gives its commands more. When the whole host lacks memory the kernel kills
// machines before anything of the host.
const Score = "400"

// openScore opens what decides who dies first for lack of memory, and sets it. A node that is itself more exposed has its way.
func (b *boot) openScore() (err error) {
	b.score, err = unix.Openat(b.mounts.proc, "self/oom_score_adj", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if _, err := unix.Write(b.score, []byte(Score)); err != nil && !errors.Is(err, unix.EACCES) {
		return err
	}
	return nil
}

// mountRoot puts the overlay over the old root. The process is not in it yet.
func (b *boot) mountRoot() error {
	if err := unix.MoveMount(b.fds[fdRoot], "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return err
	}
	return unix.Fchdir(b.fds[fdRoot])
}

// mountPseudo mounts what every machine has besides its own files.
func (b *boot) mountPseudo() error {
	shm, err := newMount("tmpfs", attrsPlain, option{"mode", "1777"}, option{"size", shmSize(b.cfg.Limits.MemoryBytes)})
	if err != nil {
		return err
	}
	root, dev := b.fds[fdRoot], b.fds[fdDev]
	for _, m := range []struct {
		mount, below int
		name         string
	}{
		{b.mounts.proc, root, "proc"},
		{b.mounts.sys, root, "sys"},
		{dev, root, "dev"},
		{b.mounts.pts, dev, "pts"},
		{shm, dev, "shm"},
		{b.mounts.mqueue, dev, "mqueue"},
		{b.fds[fdRun], root, "run/dayfly"},
	} {
		if m.mount < 0 {
			continue
		}
		target, err := openDir(m.below, m.name, 0o755)
		if err != nil {
			return fmt.Errorf("open /%s: %w", m.name, err)
		}
		err = attach(m.mount, target)
		_ = unix.Close(target)
		if err != nil {
			return fmt.Errorf("mount /%s: %w", m.name, err)
		}
	}
	_ = unix.Close(shm)
	_ = unix.Close(b.mounts.pts)
	if b.mounts.mqueue >= 0 {
		_ = unix.Close(b.mounts.mqueue)
	}
	b.run, err = unix.Openat(b.fds[fdRun], ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	_ = unix.Close(b.fds[fdRun])
	if err != nil {
		return fmt.Errorf("open /run/dayfly: %w", err)
	}
	return nil
}

// shmSize limits /dev/shm to a part of the machine's memory, which it counts against: no death of a process frees it.
func shmSize(memoryBytes int64) string {
	if memoryBytes <= 0 {
		return "50%"
	}
	return strconv.FormatInt(memoryBytes/shmShare, 10)
}

// enterRoot makes the overlay this namespace's root and drops the host's tree. The working directory is the new root.
func (b *boot) enterRoot() error {
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	for _, fd := range []int{b.mounts.proc, b.mounts.sys, b.mounts.empty, b.fds[fdDev], b.fds[fdRoot]} {
		_ = unix.Close(fd)
	}
	return nil
}
