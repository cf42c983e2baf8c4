package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/failpoint"
)

// undoTimeout is how long the undo of a failed create may take.
const undoTimeout = 30 * time.Second

// Create implements control.Node. Its order is the guarantee: the lease file is on the host before the first kernel
// object, and whatever fails after that undoes everything, on a context of its own.
func (m *Manager) Create(ctx context.Context, sb dayfly.Sandbox, im dayfly.Image) error {
	letGo, err := m.hold(ctx, sb.ID)
	if err != nil {
		return err
	}
	defer letGo()
	if m.box(sb.ID) != nil {
		return dayfly.Errorf(dayfly.CodeConflict, "there is a sandbox %s already", sb.ID)
	}
	driver, ok := m.drivers[sb.Driver]
	if !ok {
		return fmt.Errorf("start %s: no driver %q", sb.ID, sb.Driver)
	}
	if err := m.opt.Leases.Alive(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("start %s: %w", sb.ID, err)
	}
	end, err := m.takeTurn(ctx, sb.Driver)
	if err != nil {
		return fmt.Errorf("wait to start %s: %w", sb.ID, err)
	}
	defer end()
	failpoint.Hit("node.create.begin")
	slot, err := m.takeSlot()
	if err != nil {
		return err
	}
	failpoint.Hit("node.create.slot")
	st := state{Version: stateVersion, Sandbox: sb.Clone(), Slot: slot, Driver: sb.Driver, Attached: sb.Spec.Network.Internet}
	st.Sandbox.Spec.Env = nil
	var b *Box
	undo := cleanup.Make(func() { m.unmake(st, b) })
	defer undo.Clean()
	b, err = m.make(ctx, driver, st, sb.Spec.Env, im)
	if err != nil {
		return fullUp(err)
	}
	undo.Release()
	m.setBox(b)
	m.background(func() { b.watch(m.life) })
	return nil
}

// takeTurn waits until few enough machines of the driver are being started, and gives the end of the turn. CodeNoCapacity: too many
// wait already, or ctx's time was over before the turn came.
func (m *Manager) takeTurn(ctx context.Context, driver dayfly.Isolation) (end func(), err error) {
	starts := m.startsOf(driver)
	end = func() { <-starts }
	select {
	case starts <- struct{}{}:
		return end, nil
	default:
	}
	defer m.waiting.Add(-1)
	if m.waiting.Add(1) > waitingMax() {
		return nil, tooManyStarts()
	}
	select {
	case starts <- struct{}{}:
		return end, nil
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, tooManyStarts().WithCause(ctx.Err())
		}
		return nil, ctx.Err()
	}
}

// startsOf holds one element for each machine of the driver that is being started.
func (m *Manager) startsOf(driver dayfly.Isolation) chan struct{} {
	m.mu.Lock()
	starts := m.starts[driver]
	m.mu.Unlock()
	if starts != nil {
		return starts
	}
	each := m.probes[driver]().StartsPerCPU // not with mu: it may take seconds
	if each <= 0 {
		each = startsPerCPU
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.starts[driver] == nil {
		m.starts[driver] = make(chan struct{}, each*runtime.NumCPU())
	}
	return m.starts[driver]
}

// fullUp turns the lack of room that a start ran into, although it was admitted, into what the caller can act on.
func fullUp(err error) error {
	if dayfly.ErrorCode(err) != dayfly.CodeDiskFull && !errors.Is(err, unix.ENOSPC) {
		return err
	}
	return dayfly.Errorf(dayfly.CodeNoCapacity, "the host's disk became full while the sandbox was being made").
		WithHint("delete sandboxes, or wait until leases end").WithRetryAfter(admitRetry).WithDetail("missing", "disk").WithCause(err)
}

// make does the steps of a create. It undoes none of them: after an error the box is what came to life, or nil.
func (m *Manager) make(ctx context.Context, driver dayfly.Driver, st state, env map[string]string, im dayfly.Image) (*Box, error) {
	id := st.Sandbox.ID
	if err := m.opt.Leases.Write(id, st.Sandbox.Lease); err != nil {
		return nil, fmt.Errorf("write lease of %s: %w", id, err)
	}
	failpoint.Hit("node.create.lease")
	if err := m.writeState(st); err != nil {
		return nil, err
	}
	failpoint.Hit("node.create.state")
	spec, err := m.prepare(ctx, st, env, im)
	if err != nil {
		return nil, err
	}
	failpoint.Hit("node.create.prepared")
	inst, err := driver.Start(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", id, err)
	}
	failpoint.Hit("node.create.started")
	st.Instance = inst.State()
	b := newBox(m, st, inst)
	if err := m.appendState(st); err != nil {
		return b, err
	}
	failpoint.Hit("node.create.instance")
	if err := b.greet(ctx); err != nil {
		return b, fmt.Errorf("greet the agent of %s: %w", id, err)
	}
	failpoint.Hit("node.create.greeted")
	if st.Sandbox.Lease.Due(m.Now()) {
		return b, fmt.Errorf("start %s: its lease ended before it was ready", id)
	}
	return b, nil
}

func (m *Manager) takeSlot() (int, error) {
	slot, err := m.opt.Slots.Take()
	if err != nil {
		return 0, dayfly.Errorf(dayfly.CodeNoCapacity, "every one of this host's sandbox slots is in use").
			WithHint("delete sandboxes, or wait until leases end").WithRetryAfter(admitRetry).WithCause(err)
	}
	return slot, nil
}

// prepare makes the run directory and the disk and says what machine to make.
func (m *Manager) prepare(ctx context.Context, st state, env map[string]string, im dayfly.Image) (dayfly.InstanceSpec, error) {
	id, want := st.Sandbox.ID, st.Sandbox.Spec
	dir := m.runDir(id)
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{{dir, 0o711}, {filepath.Join(dir, "in"), 0o755}} {
		if err := errors.Join(os.MkdirAll(d.path, d.mode), os.Chmod(d.path, d.mode)); err != nil { // whatever the umask
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
	failpoint.Hit("node.create.disk")
	spec := dayfly.InstanceSpec{
		ID: id, Limits: want.Limits, UIDBase: m.opt.UIDBase + uint32(st.Slot)*dayfly.IDCount,
		Root:   dayfly.RootFS{Lower: []string{m.opt.ImageDir(im.ID)}, Upper: upper},
		RunDir: dir, User: im.User, Workdir: im.Workdir, Env: environment(want.Limits, im.Env, env),
		Files:   m.opt.Network.Files(id, st.Slot, want.Network.Internet),
		Granted: st.Sandbox.Lease.Granted(),
	}
	if want.Network.Internet {
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

// unmake undoes a create, however far it came; b is what came to life, or nil. What cannot be removed now keeps its lease file, state and slot: enforcers go
// on watching it, the next destroy or sweep tries again, and nobody else gets its addresses and uids meanwhile.
func (m *Manager) unmake(st state, b *Box) {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	id := st.Sandbox.ID
	var err error
	if b == nil {
		err = m.reclaimDrivers(ctx, id)
	} else {
		err = b.inst.Destroy(ctx)
		b.release()
	}
	if err == nil {
		err = m.clear(ctx, id, &st)
	}
	if err != nil {
		m.opt.Log.Error("undo of a create", "sandbox", id, "error", err)
	}
}
