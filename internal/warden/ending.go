package warden

import (
	"context"

	"dayfly.dev/dayfly"
)

// endDue starts ending every machine whose time has come.
func (k *keeper) endDue() {
	now := k.opt.Clock.Now()
	for len(k.queue) > 0 && k.queue[0].due <= now.Boot {
		k.end(k.queue[0])
	}
}

// end starts one attempt on a goroutine of its own, so that a machine that dies slowly delays no other.
func (k *keeper) end(e *entry) {
	k.queue.drop(e)
	if e.ending {
		return
	}
	e.ending = true
	id, known := e.id, e.lease
	k.wg.Go(func() {
		ctx, cancel := context.WithTimeout(k.work, killMax)
		defer cancel()
		outcome, err := k.enforcer.End(ctx, id, k.opt.Clock.Now(), &known)
		k.inbox.post(func(n *news) { n.results = append(n.results, result{id, outcome, err}) })
	})
}

// noteResult takes in how an attempt went.
func (k *keeper) noteResult(r result) {
	e := k.entries[r.id]
	if e == nil {
		return
	}
	e.ending = false
	now := k.opt.Clock.Now()
	switch r.outcome {
	case OutcomeEnded:
		k.opt.Log.Info("ended at its deadline", "sandbox", r.id, "late", now.Boot-e.lease.Lease.Deadline)
		if r.err != nil {
			k.opt.Log.Error("record end", "sandbox", r.id, "error", r.err)
		}
		e.ended = true
		if e.lives = e.lives && k.mayLive(e); e.lives { // born meanwhile; news of a death may be late, so the kernel is asked
			k.queue.schedule(e, now.Boot)
		}
	case OutcomeFailed:
		k.opt.Log.Error("end machine, trying again", "sandbox", r.id, "error", r.err)
		k.queue.schedule(e, now.Boot+retryWait)
		return
	}
	k.refresh(r.id)
}

// noteLife takes in what the kernel said of a machine: born, or emptied.
func (k *keeper) noteLife(e *entry, life lifeNews) {
	e.lived = e.lived || life.lived
	e.lives = life.lives
	if life.lives {
		if e.ended { // something was born in a machine whose time is over
			k.queue.schedule(e, 0)
		}
		return
	}
	if e.ending || !e.lived {
		return
	}
	k.recordEmptied(e)
	if e.orphan {
		k.forget(e)
	}
}

// recordEmptied writes down that a machine has no process any more, with the time.
func (k *keeper) recordEmptied(e *entry) {
	now := k.opt.Clock.Now()
	end := End{BootID: now.BootID, Boot: now.Boot, Cause: CauseEmptied}
	if !e.assumed && e.lease.Lease.Due(now) {
		end.Cause = CauseLeaseExpired
	}
	id := e.id
	k.wg.Go(func() {
		if begun, alive := k.dir.decided(id, "" /* by any */); begun {
			end.Cause = CauseLeaseExpired // another enforcer is killing it and perhaps cannot write it down
			if alive > 0 {
				end.Boot = endAt(end.Boot, alive) // this process may have been stopped since
			}
		}
		if _, err := k.dir.RecordEnd(id, end); err != nil && dayfly.ErrorCode(err) != dayfly.CodeGone {
			k.opt.Log.Error("record end", "sandbox", id, "error", err)
		}
	})
}
