package linux

import (
	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
)

// SpawnAndHangUp clones a machine and closes the node's end of its boot channel, as the node's death does. The child is the
// caller's to wait for, and then to free.
func (d *Driver) SpawnAndHangUp(group *cgroup.Group, spec dayfly.InstanceSpec) (pid int, free func(), err error) {
	o := order(spec)
	o.Group = group
	c, err := d.Parent.Start(o)
	if err != nil {
		return 0, nil, err
	}
	c.Close()
	return c.PID, c.Free, nil
}

// Attach makes the driver make overlays as on a kernel before 6.15.
func (d *Driver) Attach() error { return d.Roots.Attach() }
