package cell

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is a machine as its agent finds it, behind the user-space kernel.
type Machine struct {
	Guest
	Listener net.Listener // accepts connections from the node
	Grant    string       // path of the grant file
}

// Enter prepares the inside: it reads what the cell tells, writes the files and opens the agent's socket. It must be the first
// thing PID 1 does. On an error the caller tells Failed.
func Enter() (*Machine, error) {
	unix.Umask(0o022)
	b, err := io.ReadAll(io.LimitReader(os.Stdin, configMax))
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	m := &Machine{Grant: guestGrant}
	if err := json.Unmarshal(b, &m.Guest); err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	for _, f := range m.Files {
		if err := writeFile(f); err != nil {
			return nil, fmt.Errorf("write %s: %w", f.Path, err)
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: guestSock, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	m.Listener = l
	return m, nil
}

// writeFile puts a file into the image's root file system, in place of whatever the image has there.
func writeFile(f File) error {
	if err := os.MkdirAll(filepath.Dir(f.Path), dirPerm); err != nil {
		return err
	}
	if err := os.Remove(f.Path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return os.WriteFile(f.Path, f.Content, filePerm)
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
