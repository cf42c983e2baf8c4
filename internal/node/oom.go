package node

import (
	"context"
	"time"

	"dayfly.dev/dayfly"
)

const (
	killedCode  = 128 + 9     // exit code of a shell whose command died of SIGKILL
	oomKept     = 1000        // processes remembered as killed for lack of memory; the agent keeps as many records
	oomLookTime = time.Second // for reading the counters once a command has ended
)

// oomMemory is which processes were seen to be killed for lack of memory, so that their records tell it whenever they are
// read. The zero value is empty.
type oomMemory struct {
	killed map[string]bool
	order  []string
}

func (o *oomMemory) note(id string) {
	if o.killed[id] {
		return
	}
	if o.killed == nil {
		o.killed = map[string]bool{}
	}
	if len(o.order) == oomKept {
		delete(o.killed, o.order[0])
		o.order = o.order[1:]
	}
	o.killed[id] = true
	o.order = append(o.order, id)
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

// markOOM notes that a command that died of SIGKILL did so while the kernel was killing for lack of memory: before is how many
// it had killed when the command was joined.
func (b *Box) markOOM(id string, e *dayfly.Exit, before int64) {
	if e.TimedOut || e.Signal != "KILL" && e.Code != killedCode {
		return
	}
	if b.recallOOM(id, e); e.OOMKilled || before < 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), oomLookTime)
	defer cancel()
	if b.oomKills(ctx) <= before {
		return
	}
	e.OOMKilled = true
	b.mu.Lock()
	defer b.mu.Unlock()
	b.oom.note(id)
}

// recallOOM marks the exit (or nil) of a process that was seen to be killed for lack of memory.
func (b *Box) recallOOM(id string, e *dayfly.Exit) {
	if e == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e.OOMKilled = e.OOMKilled || b.oom.killed[id]
}
