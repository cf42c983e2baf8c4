package gvisor

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/ground"
	"dayfly.dev/dayfly/internal/driver/gvisor/cell"
)

// instance implements dayfly.Instance. Its first process is the cell.
type instance struct {
	*ground.Instance
}

// Dial implements dayfly.Instance. The socket lies in a directory that the user-space kernel and its file server may write to,
// so it is held by a descriptor and looked at before it is used: nothing here ever follows what is in that directory.
func (i *instance) Dial(ctx context.Context) (net.Conn, error) { return i.DialWith(ctx, i.dial) }

func (i *instance) dial(ctx context.Context) (net.Conn, error) {
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", i.PID), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	sock, err := unix.Openat2(root, cell.SocketPath, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(sock), "socket")
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(sock, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("the agent's socket is a file of type %#o", st.Mode&unix.S_IFMT)
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", sock))
}

// Recover implements dayfly.Driver.
func (d *Driver) Recover(ctx context.Context, id string, raw json.RawMessage) (dayfly.Instance, error) {
	i, _, err := d.Retake(ctx, id, raw)
	if err != nil {
		return nil, err
	}
	return &instance{i}, nil
}
