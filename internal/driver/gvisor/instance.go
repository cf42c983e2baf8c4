package gvisor

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/driver/birth"
	"dayfly.dev/dayfly/internal/driver/gvisor/cell"
	"dayfly.dev/dayfly/internal/driver/machine"
)

// instance implements dayfly.Instance. Its first process is the cell.
type instance struct {
	*machine.Machine
	cpus  []int
	child *birth.Child // nil for a recovered machine
}

func newInstance(d *Driver, id string, group *cgroup.Group) *instance {
	i := &instance{}
	i.Machine = machine.New(&d.watcher, id, group, func() {
		d.cpus.Give(i.cpus)
		if i.child != nil {
			i.child.Free()
		}
	})
	return i
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
	if d.unfit != nil {
		return nil, d.unfit
	}
	st, err := machine.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("recover %s: %w", id, err)
	}
	group, err := d.host.Group(d.installation, id)
	if err != nil {
		return nil, err
	}
	inst := newInstance(d, id, group)
	inst.cpus = st.CPUs
	d.cpus.Hold(inst.cpus)
	if err := inst.Recover(ctx, raw, st); err != nil {
		if !inst.Ended() { // its end gives them back
			d.cpus.Give(inst.cpus)
		}
		return nil, fmt.Errorf("recover %s: %w", id, err)
	}
	return inst, nil
}
