package cell

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// The cell's root directory: a small file system in memory that nothing outside the cell can see by a path of its own.
const (
	rootDir   = "/root"   // the machine's root file system
	inDir     = "/in"     // shown inside, read-only, at guestDir
	sockDir   = "/sock"   // shown inside at guestSock; the agent's socket is made there
	stateDir  = "/state"  // runsc's own
	bundleDir = "/bundle" // config.json
	runscPath = "/runsc"
	agentName = "agent"
	sockName  = "sock" // a directory below inDir, and the agent's socket below sockDir

	treeBytes = "1m" // of the cell's root directory: runsc's state and the bundle's specification need a few KiB, see also specMax
	treeNodes = "256"
	sockBytes = "64k"
	sockNodes = "8"

	dirPerm  = 0o755
	filePerm = 0o644
)

// SocketPath is the agent's socket in the cell's root directory.
const SocketPath = sockDir + "/" + sockName

// makeTree builds the root directory on top of the run directory, which belongs to this machine alone, and enters it.
func makeTree(cfg Config) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cut mounts off from the host's: %w", err)
	}
	// Before anything covers the run directory, whatever is taken from the host is opened by its path.
	in, err := openTree(filepath.Join(cfg.RunDir, "in"))
	if err != nil {
		return err
	}
	defer unix.Close(in)
	agent, err := openTree(cfg.Agent)
	if err != nil {
		return err
	}
	defer unix.Close(agent)
	runsc, err := openTree(cfg.Runsc)
	if err != nil {
		return err
	}
	defer unix.Close(runsc)
	base := cfg.RunDir
	if err := unix.Mount("tmpfs", base, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700,size="+treeBytes+",nr_inodes="+treeNodes); err != nil {
		return fmt.Errorf("make the cell's root: %w", err)
	}
	for _, dir := range []string{rootDir, inDir, sockDir, stateDir, bundleDir, "/proc", "/tmp", "/dev", "/sys", "/etc"} {
		if err := os.Mkdir(base+dir, dirPerm); err != nil {
			return err
		}
	}
	if err := mountRoot(base+rootDir, cfg); err != nil {
		return err
	}
	if err := os.WriteFile(base+runscPath, nil, dirPerm); err != nil {
		return err
	}
	for _, m := range []struct {
		fd   int
		path string
	}{{in, inDir}, {runsc, runscPath}, {agent, inDir + "/" + agentName}} {
		if err := unix.MoveMount(m.fd, "", unix.AT_FDCWD, base+m.path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount %s: %w", m.path, err)
		}
	}
	if err := unix.Mount("tmpfs", base+sockDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size="+sockBytes+",nr_inodes="+sockNodes); err != nil {
		return fmt.Errorf("make the socket's directory: %w", err)
	}
	if err := unix.Mount("proc", base+"/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount proc: %w", err)
	}
	if err := makeDevices(base + "/dev"); err != nil {
		return err
	}
	return enterTree(base)
}

// openTree gives a detached mount of a path.
func openTree(path string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	return fd, nil
}

// mountRoot mounts the machine's root file system: an overlay, as under the linux driver, but with no ids mapped: the gofer, which
// serves it, is root on the host, so ids on disk are native by themselves.
func mountRoot(at string, cfg Config) error {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open overlay: %w", err)
	}
	defer unix.Close(fs)
	if joined := strings.Join(cfg.Root.Lower, ":"); len(joined) <= fsconfigMax && !strings.ContainsAny(joined, `\,`) {
		err = unix.FsconfigSetString(fs, "lowerdir", joined)
	} else {
		for _, dir := range cfg.Root.Lower {
			if err = unix.FsconfigSetString(fs, "lowerdir+", dir); err != nil {
				break
			}
		}
	}
	if err != nil {
		return fmt.Errorf("set lower directories: %w", err)
	}
	for _, o := range [][2]string{{"upperdir", cfg.Root.Upper + "/u"}, {"workdir", cfg.Root.Upper + "/w"}} {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return fmt.Errorf("set %s: %w", o[0], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("create overlay: %w", err)
	}
	m, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return fmt.Errorf("mount overlay: %w", err)
	}
	defer unix.Close(m)
	if err := unix.MoveMount(m, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount overlay: %w", err)
	}
	return nil
}

const fsconfigMax = 255 // bytes of one option's value

// makeDevices makes the few device nodes that runsc itself opens. The machine's are the user-space kernel's own.
func makeDevices(dir string) error {
	for _, name := range []string{"null", "zero", "random", "urandom"} {
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, nil, filePerm); err != nil {
			return err
		}
		if err := unix.Mount("/dev/"+name, at, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("show device %s: %w", name, err)
		}
	}
	return nil
}

// enterTree makes base the root directory and lets go of the host's.
func enterTree(base string) error {
	if err := unix.Chdir(base); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("drop the host's root: %w", err)
	}
	return unix.Chdir("/")
}
