package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
	"dayfly.dev/dayfly/internal/failpoint"
)

// Brakes of the reconciler.
const (
	sweepMax    = 50               // sandboxes whose leftovers one pass removes; the rest waits for the next
	sweepOneMax = 30 * time.Second // for one of them: one that hangs keeps no other waiting longer
	goneGrace   = 30 * time.Second // in which a removed sandbox's interface and the like go
	brakeLeast  = 4                // living machines that would be removed; of fewer, half says nothing
)

// The kinds of objects that a sandbox has on the host, beside KindMachine.
const (
	kindLease   = "lease"
	kindState   = "state"
	kindRunDir  = "run_directory"
	kindDisk    = "disk"
	kindNetwork = "network"
)

// holdings tell what kinds of objects the host has, by sandbox id.
type holdings map[string][]string

// everything lists what on the host bears the mark of this installation, whoever made it. An error means "could not look",
// never "nothing there".
func (m *Manager) everything(ctx context.Context) (holdings, error) {
	type source struct {
		kind string
		list func() ([]string, error)
	}
	sources := []source{
		{kindLease, m.opt.Leases.List}, {kindState, m.listStates}, {kindRunDir, m.listRunDirs},
		{kindDisk, func() ([]string, error) { return m.opt.Pool.List(ctx) }},
		{kindNetwork, func() ([]string, error) { return m.opt.Network.List(ctx) }},
	}
	for _, d := range m.drivers {
		sources = append(sources, source{KindMachine, func() ([]string, error) { return d.List(ctx) }})
	}
	held := holdings{}
	var errs []error
	for _, s := range sources {
		found, err := s.list()
		if err != nil {
			errs = append(errs, fmt.Errorf("list every %s: %w", s.kind, err))
		}
		for _, id := range found {
			if dayfly.ValidID(dayfly.PrefixSandbox, id) && !slices.Contains(held[id], s.kind) {
				held[id] = append(held[id], s.kind)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("look at the host: %w", err)
	}
	return held, nil
}

// Sweep implements control.Node. The host is listed first and ownership asked after, so an object made in between is never
// taken for a leftover. What lives under a valid lease is taken hold of before anything is judged.
func (m *Manager) Sweep(ctx context.Context, known []dayfly.Sandbox, force bool, note func(control.Ending) error) (control.Swept, error) {
	held, err := m.everything(ctx)
	if err != nil {
		return control.Swept{Stopped: "the host cannot be read"}, err
	}
	failpoint.Hit("node.sweep.listed")
	records := byID(known)
	running, lookErr := m.regain(ctx, held, records)
	orphans, vanished := m.unowned(held, known)
	why, err := m.brakeOn(held, orphans, force)
	if err != nil {
		return control.Swept{Running: running, Stopped: "it cannot be told what lives"}, errors.Join(lookErr, err)
	}
	if why != "" {
		return control.Swept{Running: running, Stopped: why}, errors.Join(lookErr, errors.New(why))
	}
	swept := control.Swept{Running: running}
	for _, sb := range vanished {
		swept.Ended = append(swept.Ended, m.lost(sb, verdict{}))
	}
	chosen := m.turnOf(orphans)
	swept.Left = len(orphans) - len(chosen)
	errs := []error{lookErr}
	for _, id := range chosen {
		rec, recorded := records[id]
		if !m.owned(id) {
			errs = append(errs, m.sweepOne(ctx, orphan{id, rec, recorded, held[id]}, note, &swept))
		}
	}
	return swept, errors.Join(errs...)
}

// unowned gives the ids of which the host holds something and nobody owns it, and the records of machines that run by them and
// are nowhere.
func (m *Manager) unowned(held holdings, known []dayfly.Sandbox) (orphans []string, vanished []dayfly.Sandbox) {
	for _, id := range slices.Sorted(maps.Keys(held)) {
		if !m.owned(id) {
			orphans = append(orphans, id)
		}
	}
	for _, sb := range known {
		if sb.Status.Up() && !slices.Contains(held[sb.ID], KindMachine) && !m.owned(sb.ID) {
			vanished = append(vanished, sb)
		}
	}
	fresh := m.freshlyCleared() // asked last: whatever was let go of is in it
	return slices.DeleteFunc(orphans, func(id string) bool { return fresh[id] }),
		slices.DeleteFunc(vanished, func(sb dayfly.Sandbox) bool { return fresh[sb.ID] })
}

// brakeOn is brake for a pass over the host.
func (m *Manager) brakeOn(held holdings, orphans []string, force bool) (string, error) {
	living, doomed := 0, 0
	for id := range held {
		valid, err := m.livesUnderLease(held, id)
		if err != nil {
			return "", err
		}
		if !valid {
			continue
		}
		living++
		if _, orphan := slices.BinarySearch(orphans, id); orphan {
			doomed++
		}
	}
	return m.brake(doomed, living, force), nil
}

// orphan is a sandbox of which the host holds something that nobody owns.
type orphan struct {
	id       string
	rec      dayfly.Sandbox // or the zero value
	recorded bool
	kinds    []string // of what the host holds
}

// sweepOne removes what is left of one sandbox and tells it. That of one whose end is under way is no finding.
func (m *Manager) sweepOne(ctx context.Context, o orphan, note func(control.Ending) error, swept *control.Swept) error {
	id, rec, recorded, kinds := o.id, o.rec, o.recorded, o.kinds
	why := m.whyOrphan(id)
	var ended control.Ending
	if recorded {
		ended = m.lost(rec, verdict{why: dayfly.EndReconciled, lives: m.hasProcess(ctx, id)})
		if rec.Status.Up() {
			if err := note(ended); err != nil {
				return fmt.Errorf("record the end of %s: %w", id, err)
			}
		}
	}
	m.opt.Log.Warn("removing what no sandbox owns", "sandbox", id, "kinds", kinds, "why", why)
	ctx, cancel := context.WithTimeout(ctx, sweepOneMax)
	defer cancel()
	err := m.clearDead(ctx, id)
	if m.box(id) != nil {
		return err // it was owned after all
	}
	if !recorded || rec.Status.Up() {
		swept.Findings = append(swept.Findings, m.findings(id, kinds, why, err)...)
	}
	if recorded && rec.Status.Up() && err == nil && !slices.ContainsFunc(swept.Ended, func(e control.Ending) bool { return e.ID == id }) {
		swept.Ended = append(swept.Ended, ended)
	}
	return err
}

// findings are what a pass tells of one sandbox: each object once when it went, and once when it first could not be removed.
func (m *Manager) findings(id string, kinds []string, why string, err error) []control.Finding {
	m.mu.Lock()
	told := m.stuck[id]
	if err != nil {
		m.stuck[id] = true
	} else {
		delete(m.stuck, id)
	}
	m.mu.Unlock()
	if err != nil && told {
		return nil
	}
	var found []control.Finding
	for _, kind := range kinds {
		f := control.Finding{Kind: kind, Name: m.nameOf(kind, id), Sandbox: id, Why: why, Done: "removed"}
		if err != nil {
			f.Done, f.Failed = "not all could be removed, it is tried again", true
		}
		found = append(found, f)
		if err != nil {
			break // one is enough to say that something is stuck
		}
	}
	return found
}

func (m *Manager) nameOf(kind, id string) string {
	switch kind {
	case kindState:
		return m.statePath(id)
	case kindRunDir:
		return m.runDir(id)
	}
	return id
}

// whyOrphan says why nothing owns the objects of a sandbox.
func (m *Manager) whyOrphan(id string) string {
	lease, err := m.opt.Leases.Read(id)
	switch {
	case dayfly.ErrorCode(err) == dayfly.CodeNotFound:
		return "it has no lease"
	case err != nil:
		return "it has a lease that cannot be read, and nothing to reach it by"
	case lease.Due(m.Now()):
		return "its lease is over"
	}
	return "it has a lease, and nothing to reach it by"
}

// aliver is a driver that tells which of the machines it lists have a process. Of others, every one counts as alive.
type aliver interface {
	Alive(id string) (bool, error)
}

// livesUnderLease tells whether a machine has a process and a lease that is not over. A lease that is there and cannot be
// read counts: unreadable is not absent. A machine whose start was cut off does not: it never was more.
func (m *Manager) livesUnderLease(held holdings, id string) (bool, error) {
	if !slices.Contains(held[id], KindMachine) || !slices.Contains(held[id], kindLease) {
		return false, nil
	}
	lease, err := m.opt.Leases.Read(id)
	if dayfly.ErrorCode(err) == dayfly.CodeNotFound || err == nil && lease.Due(m.Now()) {
		return false, nil
	}
	if st, err := m.readState(id); err == nil && st.Instance == nil {
		return false, nil
	}
	for _, d := range m.drivers {
		a, tells := d.(aliver)
		if !tells {
			return true, nil
		}
		if alive, err := a.Alive(id); alive || err != nil {
			return alive, err
		}
	}
	return false, nil
}

// hasProcess tells whether a machine, under a valid lease or not, has a process. One that no driver can look at counts as alive; a
// driver that does not work here is no such.
func (m *Manager) hasProcess(ctx context.Context, id string) bool {
	looked := false
	for _, d := range m.drivers {
		var alive bool
		var err error
		if a, tells := d.(aliver); tells {
			alive, err = a.Alive(id)
		} else {
			var ids []string
			ids, err = d.List(ctx)
			alive = slices.Contains(ids, id)
		}
		if err == nil && alive {
			return true
		}
		looked = looked || err == nil
	}
	return !looked
}

// brake tells why nothing may be removed, or nothing: it is more likely that this program cannot see what owns the machines
// than that most of them lost their owner. It stays a problem until a pass finds otherwise, or an operator forces one.
func (m *Manager) brake(doomed, living int, force bool) string {
	why := ""
	if !force && doomed >= brakeLeast && 2*doomed > living {
		why = fmt.Sprintf("%d of %d machines that live under a valid lease would be removed; nothing is", doomed, living)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.braked = why
	return why
}

// stopped tells why the reconciler removes nothing, or nothing.
func (m *Manager) stopped() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.braked
}

// turnOf picks sweepMax of the orphans, going on after those of the pass before, so that some that cannot be removed hold
// up no others.
func (m *Manager) turnOf(orphans []string) []string {
	if len(orphans) <= sweepMax {
		return orphans
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	from, _ := slices.BinarySearch(orphans, m.sweptTo+"\x00")
	chosen := append(slices.Clone(orphans[from:]), orphans[:from]...)[:sweepMax]
	m.sweptTo = chosen[sweepMax-1]
	return chosen
}

// cleared remembers that all of a sandbox was just removed: its interface may take a moment to go.
func (m *Manager) cleared(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.going[id] = m.Now().Boot
}

// freshlyCleared gives the ids that were cleared within goneGrace, and forgets the others.
func (m *Manager) freshlyCleared() map[string]bool {
	now := m.Now().Boot
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.going, func(_ string, at time.Duration) bool { return now-at > goneGrace })
	fresh := make(map[string]bool, len(m.going))
	for id := range m.going {
		fresh[id] = true
	}
	return fresh
}

func byID(list []dayfly.Sandbox) map[string]dayfly.Sandbox {
	out := make(map[string]dayfly.Sandbox, len(list))
	for _, sb := range list {
		out[sb.ID] = sb
	}
	return out
}
