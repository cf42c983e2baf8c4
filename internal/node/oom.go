package node

import (
	"context"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

const (
	killedCode  = 128 + 9     // exit code of a shell whose command died of SIGKILL
	oomKept     = 1000        // processes remembered of each kind; the agent keeps as many records
	oomLookTime = time.Second // for reading the counters once a command has ended
)

// oomMemory is what is known of how processes died. The zero value is empty.
type oomMemory struct {
	outlived int64   // kills for lack of memory after which the machine still answered
	killed   lastIDs // were seen to be killed for lack of memory, so that their records tell it whenever they are read
	asked    lastIDs // were sent a KILL from here, so that their death says nothing about memory
}

// lastIDs are the last oomKept ids that were noted. The zero value is empty.
type lastIDs struct {
	has   map[string]bool
	order []string
}

func (l *lastIDs) note(id string) {
	if l.has[id] {
		return
	}
	if l.has == nil {
		l.has = map[string]bool{}
	}
	if len(l.order) == oomKept {
		delete(l.has, l.order[0])
		l.order = l.order[1:]
	}
	l.has[id] = true
	l.order = append(l.order, id)
}

// askedToDie notes a signal that is sent to a process.
func (b *Box) askedToDie(id, signal string) {
	switch signal {
	case "KILL", "SIGKILL", "9":
		b.mu.Lock()
		defer b.mu.Unlock()
		b.oom.asked.note(id)
	}
}

// oomKills reads how many processes of the machine were killed for lack of memory so far; -1 when it cannot be read.
func (b *Box) oomKills(ctx context.Context) int64 {
	if fast, ok := b.inst.(interface{ OOMKills() (int64, error) }); ok {
		if n, err := fast.OOMKills(); err == nil {
			return n
		}
		return -1
	}
	u, err := b.inst.Usage(ctx)
	if err != nil {
		return -1
	}
	return u.OOMKills
}

// outlived notes that the machine answered when so many of its processes had been killed: none of them was its end. Only more
// make a later end one for lack of memory.
func (b *Box) outlived(kills int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.oom.outlived = max(b.oom.outlived, kills)
}

// askAfterKills asks the agent for a process, to see whether the machine goes on after so many kills.
func (b *Box) askAfterKills(id string, kills int64) {
	ctx, cancel := context.WithTimeout(b.m.life, oomLookTime)
	defer cancel()
	agent, err := b.session(ctx)
	if err != nil {
		return
	}
	if _, err := agent.Process(ctx, id); err == nil {
		b.outlived(kills)
	}
}

// markOOM notes that a command that died of SIGKILL did so while the kernel was killing for lack of memory: before is how many
// it had killed when the command was joined. An agent that sees the counter itself knows more, and has said so already.
func (b *Box) markOOM(id string, e *dayfly.Exit, before int64) {
	if e.TimedOut || e.Signal != "KILL" && e.Code != killedCode {
		return
	}
	if b.recallOOM(id, e); e.OOMKilled || before < 0 || b.wasAsked(id) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), oomLookTime)
	defer cancel()
	kills := b.oomKills(ctx)
	if kills <= before {
		return
	}
	b.m.background(func() { b.askAfterKills(id, kills) })
	e.OOMKilled = true
	b.mu.Lock()
	defer b.mu.Unlock()
	b.oom.killed.note(id)
}

func (b *Box) wasAsked(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.oom.asked.has[id]
}

// recallOOM marks the exit (or nil) of a process that was seen to be killed for lack of memory.
func (b *Box) recallOOM(id string, e *dayfly.Exit) {
	if e == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e.OOMKilled = e.OOMKilled || b.oom.killed.has[id]
}

// blameMemory makes oom of the crash of a machine that nobody here watched, if its driver tells so. It must be asked before
// anything of the machine is removed: the counter goes with its control group.
func (m *Manager) blameMemory(e *control.Ending, driver dayfly.Isolation) {
	if e.Reason != dayfly.EndCrashed || m.oomEnds(driver) != dayfly.OOMEndsSandbox {
		return
	}
	d, can := m.drivers[driver].(interface {
		OutOfMemory(id string) (bool, error)
	})
	if !can {
		return
	}
	switch lack, err := d.OutOfMemory(e.ID); {
	case err != nil && dayfly.ErrorCode(err) != dayfly.CodeGone:
		m.opt.Log.Warn("look whether a sandbox ran out of memory", "sandbox", e.ID, "error", err)
	case lack:
		e.Reason = dayfly.EndOOM
	}
}

// oomEnds tells what a lack of memory ends under a driver; empty for one that is not known.
func (m *Manager) oomEnds(driver dayfly.Isolation) dayfly.OOMEnds {
	probe := m.probes[driver]
	if probe == nil {
		return ""
	}
	return probe().OOM
}
