package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mountAt mounts a file system: its type and, maybe, its options.
func mountAt(dir string, a []string) error {
	options := ""
	if len(a) > 1 {
		options = a[1]
	}
	return unix.Mount(a[0], dir, a[0], 0, options)
}

func mountOverlay(dir string) error {
	for _, d := range []string{"tmp", "tmp/u", "tmp/w", "m"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
		if d == "tmp" { // an overlay cannot be the upper layer of another
			_ = unix.Mount("tmpfs", filepath.Join(dir, d), "tmpfs", 0, "")
		}
	}
	defer func() {
		_ = unix.Unmount(filepath.Join(dir, "m"), unix.MNT_DETACH)
		_ = unix.Unmount(filepath.Join(dir, "tmp"), unix.MNT_DETACH)
	}()
	options := fmt.Sprintf("lowerdir=/tmp,upperdir=%s/tmp/u,workdir=%s/tmp/w", dir, dir)
	return unix.Mount("overlay", filepath.Join(dir, "m"), "overlay", 0, options)
}

// mountByDescriptor makes a file system by the calls that know no path.
func mountByDescriptor(dir string) error {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return err
	}
	m, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(m)
	return unix.MoveMount(m, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

func cloneTree(dir string) error {
	m, err := unix.OpenTree(unix.AT_FDCWD, "/proc", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(m)
	return unix.MoveMount(m, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

func clearReadOnly(a []string) error {
	return unix.MountSetattr(unix.AT_FDCWD, a[0], 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
}

func pivot(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	if err := unix.Chdir(dir); err != nil {
		return err
	}
	return unix.PivotRoot(".", ".")
}

// chrootDance leaves a root directory by the oldest way: a directory stays open while the root goes below it.
func chrootDance(dir string) error {
	root, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	if err := unix.Chroot(dir); err != nil {
		return err
	}
	if err := unix.Fchdir(root); err != nil {
		return err
	}
	for range 64 {
		if err := unix.Chdir(".."); err != nil {
			return err
		}
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	if _, err := os.Stat("/inside-marker"); err == nil {
		return errors.New("inside")
	}
	if there, err := os.ReadDir("/"); err == nil && len(there) == 0 {
		return errors.New("nowhere") // above a machine's root a user-space kernel may have an empty directory
	}
	return nil
}

// openHandle opens a file by its number instead of its name, as "shocker" did to leave Docker.
func openHandle([]string) error {
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, "/", 0)
	if err != nil {
		return err
	}
	root, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	fd, err := unix.OpenByHandleAt(root, handle, unix.O_RDONLY|unix.O_CLOEXEC)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// inUserNamespace makes another attempt as root of new user and mount namespaces.
func inUserNamespace(a []string) error {
	cmd := exec.Command("/proc/self/exe", append([]string{"attempt"}, a...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	if said := strings.TrimSpace(string(out)); said != "ok" {
		return errors.New(said)
	}
	return nil
}

// joinNamespaces enters the namespaces of a process.
func joinNamespaces(a []string) error {
	pid, err := strconv.Atoi(a[0])
	if err != nil {
		return err
	}
	if pid == 0 {
		pid = os.Getpid()
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Setns(fd, unix.CLONE_NEWNET)
}

func immutable(dir string) error {
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	const immutableFlag = 0x10
	flags := int32(immutableFlag)
	set := func() error {
		return raw(unix.SYS_IOCTL, f.Fd(), unix.FS_IOC_SETFLAGS, uintptr(unsafe.Pointer(&flags)))()
	}
	err = set()
	flags = 0
	_ = set()
	return err
}
