package node

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/failpoint"
)

// undoTimeout is how long one undo step of a failed create may take.
const undoTimeout = 30 * time.Second

// Create implements control.Node. Its order is the guarantee: the lease file is on the host before the first kernel
// object, and each step pushes its undo, which runs on a context of its own.
func (m *Manager) Create(ctx context.Context, sb dayfly.Sandbox, im dayfly.Image) error {
	letGo := m.hold(sb.ID)
	defer letGo()
	if err := m.opt.Leases.Alive(); err != nil {
		return err
	}
	undo := cleanup.Stack{}
	defer undo.Clean()

	failpoint.Hit("node.create.begin")
	slot, err := m.takeSlot(&undo)
	if err != nil {
		return err
	}
	failpoint.Hit("node.create.slot")
	st := state{Version: stateVersion, Sandbox: sb.Clone(), Slot: slot, Driver: sb.Driver, Attached: sb.Spec.Network.Internet}
	st.Sandbox.Spec.Env = nil
	if err := m.record(st, &undo); err != nil {
		return err
	}
	spec, err := m.prepare(ctx, st, sb.Spec.Env, im, &undo)
	if err != nil {
		return err
	}
	failpoint.Hit("node.create.prepared")
	driver, ok := m.drivers[sb.Driver]
	if !ok {
		return fmt.Errorf("start %s: no driver %q", sb.ID, sb.Driver)
	}
	inst, err := driver.Start(ctx, spec)
	if err != nil {
		return fmt.Errorf("start %s: %w", sb.ID, err)
	}
	undo.Add(func() { m.undone(sb.ID, "destroy", inst.Destroy) })
	failpoint.Hit("node.create.started")
	st.Instance = inst.State()
	if err := m.writeState(st); err != nil {
		return err
	}
	failpoint.Hit("node.create.instance")
	b := newBox(m, st, inst)
	if err := b.connect(ctx); err != nil {
		return fmt.Errorf("greet the agent of %s: %w", sb.ID, err)
	}
	failpoint.Hit("node.create.greeted")
	if inst := m.Now(); sb.Lease.Due(inst) {
		return fmt.Errorf("start %s: its lease ended before it was ready", sb.ID)
	}
	undo.Release()
	m.setBox(b)
	m.work.Go(func() { b.watch(m.life) })
	return nil
}

func (m *Manager) takeSlot(undo *cleanup.Stack) (int, error) {
	slot, err := m.opt.Slots.Take()
	if err != nil {
		return 0, dayfly.Errorf(dayfly.CodeNoCapacity, "every one of this host's sandbox slots is in use").
			WithHint("delete sandboxes, or wait until leases end").WithRetryAfter(admitRetry).WithCause(err)
	}
	undo.Add(func() { m.opt.Slots.Free(slot) })
	return slot, nil
}

// record puts the lease file and the state file on the host.
func (m *Manager) record(st state, undo *cleanup.Stack) error {
	id := st.Sandbox.ID
	if err := m.opt.Leases.Write(id, st.Sandbox.Lease); err != nil {
		return fmt.Errorf("write lease of %s: %w", id, err)
	}
	undo.Add(func() { m.undone(id, "remove lease", func(context.Context) error { return m.opt.Leases.Remove(id) }) })
	failpoint.Hit("node.create.lease")
	if err := m.writeState(st); err != nil {
		return err
	}
	undo.Add(func() { m.undone(id, "remove state", func(context.Context) error { return m.removeState(id) }) })
	return nil
}

// prepare makes the run directory and the disk and says what machine to make.
func (m *Manager) prepare(ctx context.Context, st state, env map[string]string, im dayfly.Image, undo *cleanup.Stack) (dayfly.InstanceSpec, error) {
	id, want := st.Sandbox.ID, st.Sandbox.Spec
	failpoint.Hit("node.create.state")
	dir := m.runDir(id)
	undo.Add(func() { m.undone(id, "remove run directory", func(context.Context) error { return os.RemoveAll(dir) }) })
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{{dir, 0o711}, {filepath.Join(dir, "in"), 0o755}} {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return dayfly.InstanceSpec{}, fmt.Errorf("make run directory of %s: %w", id, err)
		}
	}
	if err := m.writeGrant(st.Sandbox.Lease, id); err != nil {
		return dayfly.InstanceSpec{}, err
	}
	failpoint.Hit("node.create.grant")
	upper, err := m.opt.Pool.Create(ctx, id, want.Limits.DiskBytes)
	if err != nil {
		return dayfly.InstanceSpec{}, fmt.Errorf("make disk of %s: %w", id, err)
	}
	undo.Add(func() {
		m.undone(id, "remove disk", func(ctx context.Context) error { return m.opt.Pool.Remove(ctx, id) })
	})
	failpoint.Hit("node.create.disk")
	spec := dayfly.InstanceSpec{
		ID: id, Limits: want.Limits, UIDBase: m.opt.UIDBase + uint32(st.Slot)*dayfly.IDCount,
		Root:   dayfly.RootFS{Lower: []string{m.opt.ImageDir(im.ID)}, Upper: upper},
		RunDir: dir, User: im.User, Workdir: im.Workdir, Env: environment(want.Limits, im.Env, env),
		Files:   m.opt.Network.Files(id, st.Slot, want.Network.Internet),
		Granted: st.Sandbox.Lease.Granted(),
	}
	if want.Network.Internet {
		undo.Add(func() {
			m.undone(id, "detach network", func(ctx context.Context) error { return m.opt.Network.Detach(ctx, st.Slot, id) })
		})
		spec.AttachNetwork = func(ctx context.Context, netns *os.File) error {
			return m.opt.Network.Attach(ctx, st.Slot, id, netns)
		}
	}
	return spec, nil
}

// environment joins what tells programs their limits with the image's and the sandbox's variables; the latter win.
func environment(l dayfly.Limits, image, sandbox map[string]string) map[string]string {
	env := map[string]string{
		"DAYFLY_VCPU":      strconv.Itoa(l.VCPU),
		"DAYFLY_MEMORY_MB": strconv.FormatInt(l.MemoryBytes>>20, 10),
		"DAYFLY_DISK_MB":   strconv.FormatInt(l.DiskBytes>>20, 10),
	}
	maps.Copy(env, image)
	maps.Copy(env, sandbox)
	return env
}

// undone runs one undo step on a context of its own. A step that fails is logged; the sweep finds what is left.
func (m *Manager) undone(id, step string, undo func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	if err := undo(ctx); err != nil {
		m.opt.Log.Error("undo of a create", "sandbox", id, "step", step, "error", err)
	}
}
