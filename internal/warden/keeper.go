package warden

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/failpoint"
	"dayfly.dev/dayfly/internal/reserve"
)

// keeper is a running warden. One goroutine, in loop, owns the entries; everybody else posts to the inbox.
type keeper struct {
	opt      Options
	dir      *Dir
	enforcer *Enforcer
	events   *cgroup.Events
	watcher  *watcher
	alarm    *alarm
	inbox    *inbox

	groupDirs sync.Map // inotify number → true, of the directories that groups are made in
	entries   map[string]*entry
	queue     queue
	leaving   bool

	work context.Context // of the goroutines that end machines
	stop context.CancelFunc
	wg   sync.WaitGroup
}

func newKeeper(o Options, dir *Dir) (k *keeper, err error) {
	k = &keeper{opt: o, dir: dir, enforcer: NewEnforcer(dir, EnforcerWarden, o.Clock), inbox: newInbox(), entries: map[string]*entry{}}
	var undo cleanup.Stack
	defer undo.Clean()
	if k.events, err = cgroup.NewEvents(); err != nil {
		return nil, err
	}
	undo.Add(func() { _ = k.events.Close() })
	if k.alarm, err = newAlarm(); err != nil {
		return nil, err
	}
	undo.Add(k.alarm.close)
	if k.watcher, err = newWatcher(k.noticed); err != nil {
		return nil, err
	}
	undo.Add(k.watcher.close)
	if _, err = k.watcher.add(dir.Path(), leasesMask); err != nil {
		return nil, err
	}
	if _, err = k.watcher.add(wardenDir(o.DataDir), unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_CLOSE_WRITE); err != nil {
		return nil, err
	}
	k.work, k.stop = context.WithCancel(context.Background())
	k.inbox.post(func(n *news) { n.rescan = true }) // what happened before the watches
	undo.Release()
	return k, nil
}

func (k *keeper) close() {
	k.stop()
	k.wg.Wait()
	k.watcher.close()
	k.alarm.close()
	_ = k.events.Close()
}

// noticed sorts inotify events into the inbox. It runs on the watcher's goroutine.
func (k *keeper) noticed(batch []notice) {
	k.inbox.post(func(n *news) {
		for _, ev := range batch {
			_, isGroup := k.groupDirs.Load(ev.wd)
			switch {
			case ev.mask&unix.IN_Q_OVERFLOW != 0:
				n.rescan = true
			case ev.mask&unix.IN_IGNORED != 0 && isGroup:
				k.groupDirs.Delete(ev.wd)
				n.rescan = true
			case isGroup && dayfly.ValidID(dayfly.PrefixSandbox, ev.name):
				n.group(ev.name)
			case ev.name == handoverName:
				n.handover = true
			case dayfly.ValidID(dayfly.PrefixSandbox, ev.name):
				n.lease(ev.name)
			}
		}
	})
}

// loop enforces until the warden may leave.
func (k *keeper) loop(ctx context.Context, beat *os.File) error {
	beats := make(chan struct{}, 1)
	k.wg.Go(func() { k.beat(beats, beat) }) // on its own goroutine: a slow disk must not delay a deadline
	// The work ends before the lock is released.
	defer func() {
		close(beats)
		k.stop()
		k.wg.Wait()
	}()
	beats <- struct{}{}
	tick := time.NewTicker(heartbeatEvery)
	defer tick.Stop()
	asked := ctx.Done()
	for {
		if err := k.arm(); err != nil {
			return err
		}
		beating := false
		select {
		case <-k.inbox.wake:
			k.handle(k.inbox.take())
		case <-k.alarm.fired:
		case <-asked:
			asked = nil
		case <-tick.C:
			beating = true
			k.rereadDamaged()
			select {
			case beats <- struct{}{}:
			default:
			}
		}
		k.endDue()
		if k.leaving || k.unneeded(ctx, beating) {
			return nil
		}
	}
}

// beat writes a heartbeat each time the loop shows that it runs.
func (k *keeper) beat(beats <-chan struct{}, f *os.File) {
	for range beats {
		if err := writeHeartbeat(f, k.opt.Clock.Now(), k.opt); err != nil {
			k.opt.Log.Error("heartbeat", "error", err)
		}
	}
}

// unneeded tells whether there is nothing left to enforce and nobody who might want it: every lease is gone or was
// enforced, and no server runs. When asked to leave it does not matter who runs.
func (k *keeper) unneeded(ctx context.Context, look bool) bool {
	if !look && ctx.Err() == nil {
		return false
	}
	for _, e := range k.entries {
		if !e.ended || e.lives || e.ending {
			return false
		}
	}
	ids, err := k.dir.List()
	if err != nil {
		return false
	}
	for _, id := range ids {
		if k.entries[id] == nil {
			return false
		}
	}
	if ctx.Err() != nil {
		return true
	}
	held, err := reserve.Held(serverPath(k.opt.DataDir))
	return err == nil && !held
}

// arm sets the alarm for the next deadline. With none it keeps the last setting, whose firing does no harm.
func (k *keeper) arm() error {
	if len(k.queue) == 0 {
		return nil
	}
	return k.alarm.set(k.queue[0].due - k.opt.Clock.Now().Boot)
}

// handle works through the news.
func (k *keeper) handle(n news) {
	if n.handover {
		if _, err := os.Lstat(handoverPath(k.opt.DataDir)); err == nil {
			k.leaving = true
			return
		}
	}
	if n.rescan {
		k.rescan()
	}
	for id := range n.leases {
		k.refresh(id)
	}
	for id := range n.groups {
		if e := k.entries[id]; e != nil {
			e.attached = false // to an earlier one of that name, if at all
			k.attach(e)
		}
	}
	for id, life := range n.life {
		if e := k.entries[id]; e != nil {
			k.noteLife(e, life)
		}
	}
	for _, r := range n.results {
		k.noteResult(r)
	}
}

// rescan looks at every lease file, and at every machine whose file may have gone.
func (k *keeper) rescan() {
	ids, err := k.dir.List()
	if err != nil {
		k.opt.Log.Error("list leases; those known stay in force", "error", err)
		return
	}
	for _, id := range ids {
		k.refresh(id)
	}
	for id := range k.entries {
		k.refresh(id)
	}
}

// resolve finishes what a dead warden had begun.
func (k *keeper) resolve() {
	if err := k.dir.sweep(); err != nil {
		k.opt.Log.Warn("sweep leases", "error", err)
	}
	failpoint.Hit("warden.resolve.begin")
	ids, err := k.enforcer.Marked()
	if err != nil {
		k.opt.Log.Error("look for marks of a dead warden", "error", err)
	}
	for _, id := range ids {
		k.refresh(id)
		if e := k.entries[id]; e != nil {
			k.end(e)
		}
	}
}

// refresh reads a lease file again.
func (k *keeper) refresh(id string) {
	e, now := k.entries[id], k.opt.Clock.Now()
	l, err := k.dir.ReadLease(id)
	if dayfly.ErrorCode(err) == dayfly.CodeNotFound {
		if e != nil {
			k.fileGone(e)
		}
		return
	}
	if e == nil {
		e = &entry{id: id, slot: -1, assumed: true}
		k.entries[id] = e
	}
	e.orphan = false
	if err != nil {
		k.keepKnown(e, err, now)
		return
	}
	e.lease, e.assumed, e.damaged = l, false, false
	k.attach(e)
	if !e.ending && !e.ended {
		k.queue.schedule(e, dueAt(l.Lease, now))
	}
}

// keepKnown goes on with the last lease that could be read. If there is none, the machine gets leaseLost from now on: long
// enough for a repair, and a bound all the same. What has run for longer than any lease ends at once.
func (k *keeper) keepKnown(e *entry, err error, now dayfly.Instant) {
	if e.damaged {
		return // said already
	}
	e.damaged = true
	k.opt.Log.Error("lease cannot be read", "sandbox", e.id, "known", !e.assumed, "error", err)
	if !e.assumed {
		return
	}
	deadline := now.Boot + leaseLost
	if born, ok := firstBorn(Lease{ID: e.id}); ok && now.Boot-born > dayfly.LeaseCeiling {
		deadline = now.Boot
	}
	e.lease = Lease{ID: e.id, Lease: dayfly.Lease{BootID: now.BootID, Born: now.Boot, Deadline: deadline, Ceiling: deadline}}
	k.queue.schedule(e, e.lease.Lease.Deadline)
}

func (k *keeper) rereadDamaged() {
	for id, e := range k.entries {
		if e.damaged {
			k.refresh(id)
		}
	}
}

// fileGone forgets a machine that is dead. One that lives keeps its last lease: a lost file frees nobody.
func (k *keeper) fileGone(e *entry) {
	if e.ending || k.mayLive(e) {
		if !e.orphan {
			k.opt.Log.Warn("the lease of a living machine was removed; it stays in force", "sandbox", e.id)
		}
		e.orphan = true
		return
	}
	k.forget(e)
}

// mayLive asks the kernel. Unknown counts as alive.
func (k *keeper) mayLive(e *entry) bool {
	groups, err := e.lease.groups()
	if err != nil {
		return true
	}
	for _, g := range groups {
		if populated, err := g.Populated(); populated || err != nil {
			return true
		}
	}
	return false
}

func (k *keeper) forget(e *entry) {
	k.queue.drop(e)
	if e.unwatch != nil {
		e.unwatch()
	}
	delete(k.entries, e.id)
}

// attach watches the machine's control group, or waits until there is one.
func (k *keeper) attach(e *entry) {
	if e.lease.Cgroup.V2 == "" {
		return
	}
	g, err := e.lease.group()
	if err != nil {
		return // ReadLease has checked it
	}
	if e.unwatch != nil {
		if _, err := os.Lstat(g.EventsPath()); err == nil && e.attached {
			return
		}
		e.unwatch()
		e.unwatch, e.attached = nil, false
	}
	k.watchParent(filepath.Dir(e.lease.Cgroup.V2)) // before looking, so that no birth is missed
	id := e.id
	cancel, err := k.events.Notify(g.EventsPath(), func(populated bool) {
		k.inbox.post(func(n *news) { n.alive(id, populated) })
	})
	if err == nil {
		e.unwatch, e.attached = cancel, true
	} else if !errors.Is(err, os.ErrNotExist) {
		k.opt.Log.Error("watch machine", "sandbox", e.id, "error", err)
	}
}

// watchParent makes the kernel tell when a group is made in dir. The node makes that directory with the first group, so it
// may have to be made here; on anything but a v2 hierarchy nothing is made.
func (k *keeper) watchParent(dir string) {
	wd, err := k.watcher.add(dir, unix.IN_CREATE)
	if errors.Is(err, os.ErrNotExist) {
		var st unix.Statfs_t
		if unix.Statfs(filepath.Dir(dir), &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
			return
		}
		_ = os.Mkdir(dir, 0o755)
		wd, err = k.watcher.add(dir, unix.IN_CREATE)
	}
	if err != nil {
		k.opt.Log.Error("watch for machines", "error", err)
		return
	}
	k.groupDirs.Store(wd, true)
}
