package cell

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/driver/beneath"
	"dayfly.dev/dayfly/internal/driver/fsmount"
)

// The cell's root directory: a small file system in memory that nothing outside the cell can see by a path of its own.
const (
	rootDir   = "/root"   // the machine's root file system
	shownDir  = "/shown"  // shown inside, read-only, at guestShown
	sockDir   = "/sock"   // shown inside until the agent has made its socket in it
	stateDir  = "/state"  // runsc's own
	bundleDir = "/bundle" // config.json
	procDir   = "/proc"
	devDir    = "/dev"
	runscPath = "/runsc"
	sockName  = "sock"

	treeBytes = "1m" // runsc's state and the specification need a few KiB
	treeNodes = "256"
	sockBytes = "64k"
	sockNodes = "8"

	dirPerm  = 0o755
	filePerm = 0o644
	tmpPerm  = 0o1777
)

// SocketPath is the agent's socket in the cell's root directory.
const SocketPath = sockDir + "/" + sockName

// overlayAttrs: setuid programs and device nodes are the user-space kernel's business; the host's kernel never honours them.
const overlayAttrs = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

// pseudo are the cell's own file systems, detached.
type pseudo struct {
	base, proc, sock int
}

// makePseudo makes them. It must run while the host's /proc is still visible here: the kernel lets a user namespace mount
// only what it could see anyway.
func makePseudo() (p pseudo, err error) {
	p.base, err = fsmount.New("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, fsmount.Option{Key: "mode", Value: "0755"},
		fsmount.Option{Key: "size", Value: treeBytes}, fsmount.Option{Key: "nr_inodes", Value: treeNodes})
	if err != nil {
		return p, err
	}
	p.sock, err = fsmount.New("tmpfs", fsmount.Plain, fsmount.Option{Key: "mode", Value: "0755"},
		fsmount.Option{Key: "size", Value: sockBytes}, fsmount.Option{Key: "nr_inodes", Value: sockNodes})
	if err != nil {
		return p, err
	}
	p.proc, err = fsmount.New("proc", fsmount.Plain)
	return p, err
}

// makeTree builds the root directory of what the driver sent and enters it. It closes the mounts' descriptors but the
// machine's root.
func (p pseudo) makeTree(fds [fdNumber]int) error {
	for _, dir := range []string{rootDir, shownDir, sockDir, stateDir, bundleDir, procDir, devDir, "/tmp", "/etc"} {
		if err := unix.Mkdirat(p.base, strings.TrimPrefix(dir, "/"), dirPerm); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	f, err := unix.Openat(p.base, strings.TrimPrefix(runscPath, "/"), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, dirPerm)
	if err != nil {
		return fmt.Errorf("make %s: %w", runscPath, err)
	}
	_ = unix.Close(f)
	if err := fsmount.Restrict(fds[fdRoot], overlayAttrs); err != nil {
		return fmt.Errorf("restrict the machine's root: %w", err)
	}
	if err := fsmount.AttachAt(p.base, "/"); err != nil {
		return fmt.Errorf("mount the cell's root: %w", err)
	}
	for path, mount := range map[string]int{
		rootDir: fds[fdRoot], shownDir: fds[fdShown], runscPath: fds[fdRunsc], devDir: fds[fdDev], procDir: p.proc, sockDir: p.sock,
	} {
		target, err := beneath.Open(p.base, path, unix.O_PATH, 0, beneath.Strict)
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		err = fsmount.Attach(mount, target)
		_ = unix.Close(target)
		if err != nil {
			return fmt.Errorf("mount %s: %w", path, err)
		}
	}
	if err := fsmount.EnterRoot(p.base); err != nil {
		return err
	}
	for _, fd := range []int{p.base, p.proc, p.sock, fds[fdDev], fds[fdShown], fds[fdRunsc]} {
		_ = unix.Close(fd)
	}
	return nil
}

// mountPoints are the directories of the machine's root that something is mounted on inside. runsc finds them there, so that
// neither it nor the user-space kernel makes anything in an image's tree, or follows what stands there instead.
func mountPoints(id string) []string {
	return []string{
		"proc", "sys", "dev", "dev/pts", "dev/shm",
		strings.TrimPrefix(guestShown, "/"), strings.TrimPrefix(guestSockDir(id), "/"),
	}
}

// furnish writes the node's files into the machine's root and makes the mount points. /tmp becomes a real directory: runsc
// would mount memory over one that is empty, and fail at a link; the agent removes what keeps it from that.
func furnish(root int, cfg Config) error {
	tmp, err := beneath.OpenDir(root, "tmp", tmpPerm)
	if err != nil {
		return fmt.Errorf("make /tmp: %w", err)
	}
	_ = unix.Close(tmp)
	if err := beneath.WriteFiles(root, cfg.Files); err != nil {
		return fmt.Errorf("write files: %w", err)
	}
	for _, name := range mountPoints(cfg.ID) {
		fd, err := beneath.OpenDir(root, name, dirPerm)
		if err != nil {
			return fmt.Errorf("make /%s: %w", name, err)
		}
		_ = unix.Close(fd)
	}
	return nil
}

// setSwitch sets one of the kernel's switches of the cell's namespaces. Without IPv6 in the kernel some do not exist.
func setSwitch(name, value string) error {
	err := os.WriteFile("/proc/sys/"+name, []byte(value), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
