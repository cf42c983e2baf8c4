package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/clock"
	"dayfly.dev/dayfly/internal/control"
	"dayfly.dev/dayfly/internal/disk/plain"
	"dayfly.dev/dayfly/internal/driver/fake"
	"dayfly.dev/dayfly/internal/node"
	"dayfly.dev/dayfly/internal/reserve"
)

const (
	waitLong  = 20 * time.Second
	graceTest = 150 * time.Millisecond
	bootTest  = "11111111-2222-3333-4444-555555555555"
)

var errTest = errors.New("the test breaks this step")

// world is one host with everything that a manager stands on. All of it outlives a manager, as it would a restart.
type world struct {
	t       *testing.T
	dir     string
	driver  *spyDriver
	pool    *spyPool
	net     *fakeNetwork
	leases  *leaseFiles
	slots   *reserve.Slots
	clock   *stepClock
	manager *node.Manager

	notedMu sync.Mutex
	noted   map[string]control.Ending // by sandbox, what note was told
	noteErr error                     // of note, or nil
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"state", "leases", "run"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	real, err := fake.New(dayfly.NewInstallation(), agent(t))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := plain.Open(t.Context(), plain.Options{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, dir: dir, driver: &spyDriver{Driver: real, insts: map[string]*spyInstance{}}, pool: &spyPool{Pool: pool},
		net: &fakeNetwork{slots: map[int]string{}}, clock: &stepClock{boot: time.Hour, bootID: bootTest},
	}
	w.leases = &leaseFiles{dir: filepath.Join(dir, "leases"), ends: map[string]node.LeaseEnd{}, world: w}
	t.Cleanup(w.close)
	w.start()
	return w
}

// start makes a manager, as a start of the server does; the one before was closed.
func (w *world) start() {
	w.slots = reserve.NewSlots()
	w.manager = node.New(node.Options{
		NodeID: "no00000000000000000000", Installation: "aaaaaa", DataDir: w.dir, RunDir: filepath.Join(w.dir, "run"),
		Drivers: []dayfly.Driver{w.driver}, Pool: w.pool, Network: w.net, Leases: w.leases, Slots: w.slots, UIDBase: 1 << 20,
		ImageDir: func(id string) string { return filepath.Join(w.dir, id) }, Clock: w.clock,
		Log: slog.New(slog.NewTextHandler(w.t.Output(), nil)), DisconnectGrace: graceTest,
	})
}

// restart closes the manager, as a server that is killed would, and starts another.
func (w *world) restart(known ...dayfly.Sandbox) (control.Recovery, error) {
	w.manager.Close()
	w.start()
	return w.manager.Recover(w.t.Context(), known, w.note)
}

// note takes what the manager tells before it removes anything.
func (w *world) note(e control.Ending) error {
	w.notedMu.Lock()
	defer w.notedMu.Unlock()
	if w.noted == nil {
		w.noted = map[string]control.Ending{}
	}
	w.noted[e.ID] = e
	return w.noteErr
}

// sweep is one pass of the reconciler without records.
func (w *world) sweep() error {
	_, err := w.manager.Sweep(ctxFor(w.t), nil, false, w.note)
	return err
}

func (w *world) close() {
	w.pool.fail.Store(nil)
	w.net.fail.Store(nil)
	w.driver.refuse.Store(nil)
	ids, err := w.driver.List(context.Background())
	if err != nil {
		w.t.Error(err)
	}
	for _, id := range ids {
		if err := w.driver.Reclaim(context.Background(), id); err != nil {
			w.t.Error(err)
		}
	}
	w.manager.Close()
	if err := w.pool.Close(); err != nil {
		w.t.Error(err)
	}
}

// sandbox is the record of a sandbox that is to be made, with a lease of an hour.
func (w *world) sandbox() dayfly.Sandbox {
	now := w.clock.Now()
	return dayfly.Sandbox{
		ID: dayfly.NewID(dayfly.PrefixSandbox), Account: "ac1", Driver: dayfly.IsolationFake, Labels: map[string]string{"a": "b"},
		Spec: dayfly.SandboxSpec{
			Limits:  dayfly.Limits{VCPU: 1, MemoryBytes: 1 << 30, DiskBytes: 1 << 30},
			Network: dayfly.Network{Internet: true}, Env: map[string]string{"SECRET": "hush"},
		},
		Status: dayfly.StatusProvisioning, Wanted: dayfly.StatusRunning,
		Lease: dayfly.NewLease(now, time.Hour, 0), Times: dayfly.SandboxTimes{CreatedAt: now.Wall},
	}
}

func (w *world) create() dayfly.Sandbox {
	w.t.Helper()
	sb := w.sandbox()
	if err := w.manager.Create(ctxFor(w.t), sb, dayfly.Image{ID: "im1"}); err != nil {
		w.t.Fatalf("Create: %v", err)
	}
	sb.Status = dayfly.StatusRunning
	return sb
}

func (w *world) machine(id string) control.Machine {
	w.t.Helper()
	m, err := w.manager.Machine(w.t.Context(), id)
	if err != nil {
		w.t.Fatalf("Machine: %v", err)
	}
	return m
}

func (w *world) runs(id string) {
	w.t.Helper()
	res, err := w.machine(id).Run(ctxFor(w.t), command("echo hello"), nil)
	if err != nil || string(res.Stdout.Head) != "hello\n" {
		w.t.Fatalf("Run = %q, %v", res.Stdout.Head, err)
	}
}

func (w *world) destroy(id string) control.Ending {
	w.t.Helper()
	e, err := w.manager.Destroy(ctxFor(w.t), id)
	if err != nil {
		w.t.Fatalf("Destroy: %v", err)
	}
	return e
}

// nothingOf checks that nothing of id is left anywhere, its slot included.
func (w *world) nothingOf(id string) {
	w.t.Helper()
	ctx := context.Background()
	for what, list := range map[string]func() ([]string, error){
		"machine": func() ([]string, error) { return w.driver.List(ctx) },
		"disk":    func() ([]string, error) { return w.pool.List(ctx) },
		"network": func() ([]string, error) { return w.net.List(ctx) },
		"lease":   w.leases.List,
		"state":   func() ([]string, error) { return names(filepath.Join(w.dir, "state")) },
		"run":     func() ([]string, error) { return names(filepath.Join(w.dir, "run")) },
	} {
		found, err := list()
		if err != nil {
			w.t.Errorf("list %s: %v", what, err)
		}
		if slices.ContainsFunc(found, func(s string) bool { return strings.Contains(s, id) }) {
			w.t.Errorf("%s of %s is left", what, id)
		}
	}
}

// freeSlot tells whether a slot is free.
func (w *world) freeSlot(slot int) bool {
	if w.slots.Mark(slot) != nil {
		return false
	}
	w.slots.Free(slot)
	return true
}

func (w *world) stateFile(id string) string { return filepath.Join(w.dir, "state", id+".json") }

// editState changes the state file of a machine.
func (w *world) editState(id string, edit func(m map[string]any)) {
	w.t.Helper()
	b, err := os.ReadFile(w.stateFile(id))
	var m map[string]any
	if err == nil {
		err = json.Unmarshal(b[bytes.LastIndexByte(b, '\n')+1:], &m) // the last line counts
	}
	if err == nil {
		edit(m)
		b, err = json.Marshal(m)
	}
	if err == nil {
		err = os.WriteFile(w.stateFile(id), b, 0o600)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// agentPID finds the agent of a machine.
func (w *world) agentPID(id string) int {
	var st struct{ PID int }
	if err := json.Unmarshal(w.driver.instance(id).State(), &st); err != nil || st.PID == 0 {
		w.t.Fatalf("agent of %s: %v", id, err)
	}
	return st.PID
}

func (w *world) signal(id string, sig syscall.Signal) {
	w.t.Helper()
	if err := syscall.Kill(w.agentPID(id), sig); err != nil {
		w.t.Fatal(err)
	}
}

func ctxFor(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), waitLong)
	t.Cleanup(cancel)
	return ctx
}

func command(text string) dayfly.ProcessSpec {
	return dayfly.ProcessSpec{ID: dayfly.NewID(dayfly.PrefixProcess), Command: text}
}

func wantCode(t testing.TB, err error, code dayfly.Code) {
	t.Helper()
	if got := dayfly.ErrorCode(err); got != code {
		t.Errorf("error = %v (%s), want %q", err, got, code)
	}
}

// eventually waits for what the kernel tells nobody.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(waitLong); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Errorf("did not happen: %s", what)
}

func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, err
}

// stepClock stands still until a test moves it.
type stepClock struct {
	mu     sync.Mutex
	boot   time.Duration
	wall   time.Duration // what the wall clock was set forward by
	bootID string
}

var wallTest = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func (c *stepClock) Now() dayfly.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return dayfly.Instant{Wall: wallTest.Add(c.boot + c.wall), Boot: c.boot, BootID: c.bootID}
}

func (c *stepClock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boot += d
}

// setWall sets the wall clock forward.
func (c *stepClock) setWall(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += by
}

func (c *stepClock) reboot() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bootID = "another boot"
}

var _ clock.Clock = (*stepClock)(nil)

// spyDriver runs real machines and lets a test watch and break its steps.
type spyDriver struct {
	*fake.Driver
	atOnce  int                                  // starts for each CPU that it declares, or 0
	idle    int64                                // measured idle cost, or 0 for the real one
	before  func(spec dayfly.InstanceSpec) error // called when Start begins, or nil
	after   func(inst dayfly.Instance) error     // called when a machine runs, or nil
	refuse  atomic.Pointer[error]                // of Reclaim and Instance.Destroy
	wrapped func(inst *spyInstance)              // for each instance, or nil
	lacks   func(id string) (bool, error)        // what OutOfMemory tells; memory ends the whole machine then. Or nil
	mu      sync.Mutex
	insts   map[string]*spyInstance
}

func (d *spyDriver) Probe(ctx context.Context) dayfly.Capability {
	c := d.Driver.Probe(ctx)
	if d.idle != 0 {
		c.IdleBytes = d.idle
	}
	if d.atOnce != 0 {
		c.StartsPerCPU = d.atOnce
	}
	if d.lacks != nil {
		c.OOM = dayfly.OOMEndsSandbox
	}
	return c
}

func (d *spyDriver) OutOfMemory(id string) (bool, error) { return d.lacks(id) }

func (d *spyDriver) Start(ctx context.Context, spec dayfly.InstanceSpec) (dayfly.Instance, error) {
	if d.before != nil {
		if err := d.before(spec); err != nil {
			return nil, err
		}
	}
	if spec.AttachNetwork != nil {
		if err := spec.AttachNetwork(ctx, nil); err != nil {
			return nil, err
		}
	}
	inst, err := d.Driver.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	if d.after != nil {
		if err := d.after(inst); err != nil {
			return nil, errors.Join(err, inst.Destroy(context.WithoutCancel(ctx)))
		}
	}
	return d.wrap(inst), nil
}

func (d *spyDriver) Recover(ctx context.Context, id string, raw json.RawMessage) (dayfly.Instance, error) {
	inst, err := d.Driver.Recover(ctx, id, raw)
	if err != nil {
		return nil, err
	}
	return d.wrap(inst), nil
}

func (d *spyDriver) wrap(inst dayfly.Instance) *spyInstance {
	s := &spyInstance{Instance: inst, driver: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.insts[inst.ID()] = s
	if d.wrapped != nil {
		d.wrapped(s)
	}
	return s
}

func (d *spyDriver) instance(id string) *spyInstance {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.insts[id]
}

func (d *spyDriver) Reclaim(ctx context.Context, id string) error {
	if err := d.refuse.Load(); err != nil {
		return *err
	}
	return d.Driver.Reclaim(ctx, id)
}

// spyInstance is a real machine whose counters and connections a test holds.
type spyInstance struct {
	dayfly.Instance
	driver   *spyDriver
	ooms     atomic.Int64
	broken   atomic.Pointer[error]                // of Dial
	freezing atomic.Pointer[func()]               // called before it is paused or resumed
	unfrozen atomic.Pointer[error]                // of Pause, once it has done its work
	other    atomic.Pointer[func(agent net.Conn)] // who answers instead of the agent, until its connection is closed

	mu    sync.Mutex
	conns []net.Conn
}

func (i *spyInstance) OOMKills() (int64, error) { return i.ooms.Load(), nil }

func (i *spyInstance) OutOfMemory() bool { return i.ooms.Load() > 0 }

func (i *spyInstance) Dial(ctx context.Context) (net.Conn, error) {
	if err := i.broken.Load(); err != nil {
		return nil, *err
	}
	conn, err := i.Instance.Dial(ctx)
	if serve := i.other.Load(); serve != nil && err == nil {
		_ = conn.Close()
		var agent net.Conn
		conn, agent = net.Pipe()
		go (*serve)(agent)
	}
	if err == nil {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.conns = append(i.conns, conn)
	}
	return conn, err
}

func (i *spyInstance) Pause(ctx context.Context) error {
	if hang := i.freezing.Load(); hang != nil {
		(*hang)()
	}
	err := i.Instance.(dayfly.Pauser).Pause(ctx)
	if fail := i.unfrozen.Load(); fail != nil {
		return *fail
	}
	return err
}

func (i *spyInstance) Resume(ctx context.Context) error {
	if hang := i.freezing.Load(); hang != nil {
		(*hang)()
	}
	return i.Instance.(dayfly.Pauser).Resume(ctx)
}

func (i *spyInstance) Paused() (bool, error) { return i.Instance.(dayfly.Pauser).Paused() }

// dialled gives every connection that was made.
func (i *spyInstance) dialled() []net.Conn {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.conns)
}

// cut breaks every connection and tells how many there were.
func (i *spyInstance) cut() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, c := range i.conns {
		_ = c.Close()
	}
	return len(i.conns)
}

func (i *spyInstance) Destroy(ctx context.Context) error {
	if err := i.driver.refuse.Load(); err != nil {
		return *err
	}
	return i.Instance.Destroy(ctx)
}

// spyPool is a real pool whose steps a test breaks.
type spyPool struct {
	dayfly.Pool
	fail  atomic.Pointer[string] // name of the method that fails
	usage func() (total, free int64)
}

func (p *spyPool) broken(method string) error {
	if f := p.fail.Load(); f != nil && *f == method {
		return errTest
	}
	return nil
}

func (p *spyPool) Create(ctx context.Context, id string, limit int64) (string, error) {
	if err := p.broken("Create"); err != nil {
		return "", err
	}
	return p.Pool.Create(ctx, id, limit)
}

func (p *spyPool) Remove(ctx context.Context, id string) error {
	return errors.Join(p.broken("Remove"), p.Pool.Remove(ctx, id))
}

func (p *spyPool) List(ctx context.Context) ([]string, error) {
	ids, err := p.Pool.List(ctx)
	return ids, errors.Join(p.broken("List"), err)
}

func (p *spyPool) Usage(ctx context.Context) (total, free int64, err error) {
	if err := p.broken("Usage"); err != nil {
		return 0, 0, err
	}
	if p.usage != nil {
		total, free = p.usage()
		return total, free, nil
	}
	return 1 << 40, 1 << 40, nil
}

// fakeNetwork is who has which slot. Two at once on one slot is what must never happen.
type fakeNetwork struct {
	mu     sync.Mutex
	slots  map[int]string
	shared []string
	fail   atomic.Pointer[string]
}

func (n *fakeNetwork) broken(method string) error {
	if f := n.fail.Load(); f != nil && *f == method {
		return errTest
	}
	return nil
}

func (n *fakeNetwork) Attach(_ context.Context, slot int, id string, _ *os.File) error {
	if err := n.broken("Attach"); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if other, taken := n.slots[slot]; taken {
		n.shared = append(n.shared, fmt.Sprintf("slot %d of %s given to %s", slot, other, id))
	}
	n.slots[slot] = id
	return nil
}

func (n *fakeNetwork) Detach(_ context.Context, slot int, id string) error {
	if err := n.broken("Detach"); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if other := n.slots[slot]; other == id {
		delete(n.slots, slot)
	} else if other != "" {
		n.shared = append(n.shared, fmt.Sprintf("slot %d of %s detached for %s", slot, other, id))
	}
	return nil
}

func (n *fakeNetwork) Files(string, int, bool) map[string][]byte { return nil }

func (n *fakeNetwork) List(context.Context) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var ids []string
	for _, id := range n.slots {
		ids = append(ids, id)
	}
	return ids, n.broken("List")
}

func (n *fakeNetwork) Reclaim(_ context.Context, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for slot, owner := range n.slots {
		if owner == id {
			delete(n.slots, slot)
		}
	}
	return n.broken("Reclaim")
}

func (n *fakeNetwork) slotOf(id string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	for slot, owner := range n.slots {
		if owner == id {
			return slot
		}
	}
	return -1
}

// leaseFiles is a small lease directory: the warden's semantics without its control groups.
type leaseFiles struct {
	dir   string
	world *world
	dead  atomic.Bool     // no warden
	wrote func(id string) // called after each write, or nil
	fail  atomic.Pointer[string]

	mu   sync.Mutex
	ends map[string]node.LeaseEnd
	seen time.Time
}

func (l *leaseFiles) broken(method string) error {
	if f := l.fail.Load(); f != nil && *f == method {
		return errTest
	}
	return nil
}

func (l *leaseFiles) path(id string) string { return filepath.Join(l.dir, id) }

func (l *leaseFiles) Write(id string, lease dayfly.Lease) error {
	if err := l.broken("Write"); err != nil {
		return err
	}
	b, err := json.Marshal(lease)
	if err != nil {
		return err
	}
	tmp := l.path(".tmp" + id)
	if l.wrote != nil {
		defer l.wrote(id)
	}
	return errors.Join(os.WriteFile(tmp, b, 0o600), os.Rename(tmp, l.path(id)))
}

func (l *leaseFiles) Renew(_ context.Context, id string, lease dayfly.Lease) error {
	if _, err := l.Read(id); dayfly.ErrorCode(err) == dayfly.CodeNotFound {
		return dayfly.Errorf(dayfly.CodeGone, "ended")
	}
	return l.Write(id, lease)
}

func (l *leaseFiles) End(ctx context.Context, id string) (dayfly.Lease, bool, error) {
	lease, err := l.Read(id)
	now := l.world.clock.Now()
	if err != nil || !lease.Due(now) {
		return lease, false, err
	}
	l.record(id, node.LeaseEnd{BootID: now.BootID, Boot: now.Boot, Expired: true}) // as a mark, which Ended waits for, tells
	return lease, true, l.world.driver.Driver.Reclaim(ctx, id)
}

func (l *leaseFiles) record(id string, e node.LeaseEnd) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ends[id] = e
}

func (l *leaseFiles) Read(id string) (lease dayfly.Lease, err error) {
	b, err := os.ReadFile(l.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return lease, dayfly.Errorf(dayfly.CodeNotFound, "no lease")
	}
	if err == nil {
		err = json.Unmarshal(b, &lease)
	}
	return lease, err
}

func (l *leaseFiles) Ended(id string) (node.LeaseEnd, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.ends[id]
	return e, ok, nil
}

func (l *leaseFiles) Remove(id string) error {
	if err := l.broken("Remove"); err != nil {
		return err
	}
	l.mu.Lock()
	delete(l.ends, id)
	l.mu.Unlock()
	if err := os.Remove(l.path(id)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (l *leaseFiles) List() ([]string, error) {
	ids, err := names(l.dir)
	return ids, errors.Join(l.broken("List"), err)
}

func (l *leaseFiles) Alive() error {
	if l.dead.Load() {
		return dayfly.Errorf(dayfly.CodeUnavailable, "no warden")
	}
	return nil
}

func (l *leaseFiles) LastSeen() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen, !l.seen.IsZero()
}

func (l *leaseFiles) Unwatched() (time.Time, bool) { return l.LastSeen() }

func set(p *atomic.Pointer[string], method string) { p.Store(&method) }
