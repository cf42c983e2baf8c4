package boot

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/driver/beneath"
	"dayfly.dev/dayfly/internal/driver/fsmount"
)

const (
	attrsPTS = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC
	ttyGroup = "5" // Debian's, Alpine's and Fedora's
	// terminalsMax is what a machine gets of the pseudo-terminals that all machines of the host share (kernel.pty.max).
	terminalsMax = "128"
	shmShare     = 2 // one part in so many of the memory may be files in /dev/shm
)

// pseudo are the machine's kernel file systems, detached until the root is there. -1 is one that this kernel lacks.
type pseudo struct {
	proc, sys, pts, mqueue, empty int
}

// privateMounts cuts this mount namespace off from the host's: no event goes either way.
func (b *boot) privateMounts() error {
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
}

// makePseudo makes the kernel file systems. It must run while the host's /proc and /sys are still visible here: the kernel
// lets a user namespace mount only what it could see anyway.
func (b *boot) makePseudo() (err error) {
	if b.mounts.proc, err = fsmount.New("proc", fsmount.Plain); err != nil {
		return err
	}
	if b.mounts.sys, err = fsmount.New("sysfs", fsmount.Plain|unix.MOUNT_ATTR_RDONLY); err != nil {
		return err
	}
	b.mounts.pts, err = fsmount.New("devpts", attrsPTS, fsmount.Option{Key: "ptmxmode", Value: "0666"}, fsmount.Option{Key: "mode", Value: "0620"}, fsmount.Option{Key: "gid", Value: ttyGroup},
		fsmount.Option{Key: "max", Value: terminalsMax})
	if err != nil {
		return err
	}
	b.mounts.mqueue, err = fsmount.New("mqueue", fsmount.Plain)
	if errors.Is(err, unix.ENODEV) { // a kernel without POSIX queues
		b.mounts.mqueue, err = -1, nil
	}
	if err != nil {
		return err
	}
	b.mounts.empty, err = fsmount.New("tmpfs", fsmount.Plain|unix.MOUNT_ATTR_RDONLY, fsmount.Option{Key: "size", Value: "0"}, fsmount.Option{Key: "nr_inodes", Value: "2"}, fsmount.Option{Key: "mode", Value: "0555"})
	return err
}

// openCgroup opens the machine's own cgroup through a mount that is never attached anywhere: nothing inside can see it,
// and ".." ends at the machine's own group.
func (b *boot) openCgroup() error {
	m, err := fsmount.New("cgroup2", fsmount.Plain)
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
	return fsmount.AttachAt(b.fds[fdRoot], "/")
}

// mountPseudo mounts what every machine has besides its own files.
func (b *boot) mountPseudo() error {
	shm, err := fsmount.New("tmpfs", fsmount.Plain, fsmount.Option{Key: "mode", Value: "1777"}, fsmount.Option{Key: "size", Value: shmSize(b.cfg.Limits.MemoryBytes)})
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
		target, err := beneath.OpenDir(m.below, m.name, 0o755)
		if err != nil {
			return fmt.Errorf("open /%s: %w", m.name, err)
		}
		err = fsmount.Attach(m.mount, target)
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
	if err := fsmount.EnterRoot(b.fds[fdRoot]); err != nil {
		return err
	}
	for _, fd := range []int{b.mounts.proc, b.mounts.sys, b.mounts.empty, b.fds[fdDev], b.fds[fdRoot]} {
		_ = unix.Close(fd)
	}
	return nil
}
