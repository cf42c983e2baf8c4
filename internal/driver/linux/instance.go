package linux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/driver/birth"
	"dayfly.dev/dayfly/internal/driver/machine"
)

// instance implements dayfly.Instance.
type instance struct {
	*machine.Machine
	runDir string
	cpus   []int
	child  *birth.Child // nil for a recovered machine
}

func newInstance(d *Driver, id string, group *cgroup.Group, runDir string) *instance {
	i := &instance{runDir: runDir}
	i.Machine = machine.New(&d.watcher, id, group, func() {
		d.cpus.Give(i.cpus)
		if i.child != nil {
			i.child.Free()
		}
	})
	return i
}

// Dial implements dayfly.Instance.
func (i *instance) Dial(ctx context.Context) (net.Conn, error) {
	return i.DialWith(ctx, func(ctx context.Context) (conn net.Conn, err error) {
		err = shortPath(i.runDir, func(path string) error {
			conn, err = (&net.Dialer{}).DialContext(ctx, "unix", path)
			return err
		})
		return conn, err
	})
}

// Destroy implements dayfly.Instance.
func (i *instance) Destroy(ctx context.Context) error {
	err := i.Machine.Destroy(ctx)
	if rerr := os.Remove(filepath.Join(i.runDir, socketName)); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, fmt.Errorf("destroy %s: %w", i.ID(), rerr))
	}
	return err
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
	inst := newInstance(d, id, group, st.RunDir)
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
