package cell

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const guestMax = 32 << 20 // bytes of an encoded Guest

// guestDevices are what /dev has inside; gVisor makes some more.
var guestDevices = []string{
	"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr", "core",
}

// guestCapabilities are those of root inside, as bits.
const guestCapabilities uint64 = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FSETID | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_MKNOD | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETFCAP |
	1<<unix.CAP_SETPCAP | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_KILL | 1<<unix.CAP_AUDIT_WRITE

// Machine is a machine as its agent finds it, behind the user-space kernel.
type Machine struct {
	Guest
	Listener net.Listener // accepts connections from the node
	Shown    *os.File     // the node's read-only directory for this machine, with the file "grant" in it. A path could be moved away.
}

// Enter prepares the inside: it reads what the cell tells, opens the agent's socket and gives up what only that needed. It
// must be the first thing PID 1 does. On an error the caller tells Failed.
func Enter() (*Machine, error) {
	unix.Umask(0o022)
	if err := setName(); err != nil {
		return nil, fmt.Errorf("set name: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(os.Stdin, guestMax))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	m := &Machine{}
	if err := json.Unmarshal(b, &m.Guest); err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if m.Shown, err = os.Open(guestShown); err != nil {
		return nil, err
	}
	if m.Listener, err = listen(guestSockDir(m.ID)); err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	if err := pruneDevices("/dev"); err != nil {
		return nil, fmt.Errorf("remove devices: %w", err)
	}
	if err := renounce(); err != nil {
		return nil, fmt.Errorf("drop capabilities: %w", err)
	}
	return m, nil
}

// listen makes the agent's socket and unmounts the directory that it is in: from here on nothing inside can reach, replace or
// remove it. The node dials it on the other side.
func listen(dir string) (net.Listener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/" + sockName, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := holdMount(dir); err != nil {
		return nil, fmt.Errorf("hold its directory: %w", err)
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return nil, fmt.Errorf("unmount its directory: %w", err)
	}
	if err := os.Remove(dir); err != nil {
		return nil, fmt.Errorf("remove its directory: %w", err)
	}
	return l, nil
}

// holdMount keeps the file system of a directory in use for as long as this process lives: its file server accepts for the
// agent. It is held by memory and not by a descriptor, because a descriptor can be found in /proc.
func holdMount(dir string) error {
	name := dir + "/hold"
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(int64(os.Getpagesize())); err != nil {
		return err
	}
	if _, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return err
	}
	return os.Remove(name)
}

// pruneDevices removes what a machine of another driver does not have either, such as fuse.
func pruneDevices(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !slices.Contains(guestDevices, e.Name()) {
			err = errors.Join(err, os.RemoveAll(dir+"/"+e.Name()))
		}
	}
	return err
}

// renounce gives up what the agent needed to unmount, for every thread and everything that it will start.
func renounce() error {
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0); errno != 0 {
		return errno
	}
	if err := setCapabilities(guestCapabilities); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// setName gives PID 1 a name in process lists: it was executed through a descriptor, which has none.
func setName() error {
	name, err := unix.BytePtrFromString("dayfly-agent")
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0)
}

// Duration is the time granted at birth.
func (g Guest) Duration() time.Duration { return time.Duration(g.Granted) }

// Ready tells the cell that the agent accepts connections, and lets go of the cell's descriptors.
func Ready() error {
	if _, err := os.Stdout.WriteString(readyText); err != nil {
		return err
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for fd := range 3 {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return err
		}
	}
	return nil
}

// Failed tells the cell why the agent could not start.
func Failed(err error) { _, _ = os.Stdout.WriteString(failText + err.Error() + "\n") }
