package agent

import (
	"context"
	"slices"
	"sync"
)

// untidied are the commands that have ended and whose remains are still to be taken away. To make and remove cgroups takes the
// kernel long enough for a short command's client to notice, so the answer goes first. What remains is taken away when
// the request is over, or when the next command begins.
type untidied struct {
	mu   sync.Mutex
	left []*process // as many as requests are being answered
}

func (u *untidied) add(p *process) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.left = append(u.left, p)
}

// take gives p up to the caller, who tidies it; false when another one has taken it.
func (u *untidied) take(p *process) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	i := slices.Index(u.left, p)
	if i < 0 {
		return false
	}
	u.left = slices.Delete(u.left, i, i+1)
	return true
}

// all tidies everything that is left.
func (u *untidied) all() {
	u.mu.Lock()
	left := u.left
	u.left = nil
	u.mu.Unlock()
	for _, p := range left {
		p.tidy()
	}
}

// tidyAfter has p tidied not before ctx ends, which is the context of the request that waits for p.
func (p *process) tidyAfter(ctx context.Context) {
	p.answering = true
	context.AfterFunc(ctx, func() {
		p.mu.Lock()
		p.answering = false
		p.mu.Unlock()
		if p.agent.untidied.take(p) {
			p.tidy()
		}
	})
}

// endedLocked has p tidied, now or after the answer.
func (p *process) endedLocked() {
	if p.answering {
		p.agent.untidied.add(p)
		return
	}
	go p.tidy()
}

// tidy takes away what tells p's descendants apart, which has no use without p. It is called once.
func (p *process) tidy() {
	if p.kin.leaf != nil {
		p.retireLeaf(p.kin.leaf, p.ended.Sub(p.started) >= cpuExact)
	} else {
		p.agent.children.retire(p)
	}
}
