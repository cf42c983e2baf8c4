package control

import (
	"context"

	"dayfly.dev/dayfly"
)

// Events reads what happened to the account's sandboxes, in order; an admin reads everything.
func (p *Plane) Events(ctx context.Context, who Principal, f dayfly.EventFilter) ([]dayfly.Event, error) {
	f.Account = who.Account.ID
	if who.Key.Admin && f.Sandbox == "" {
		f.Account = ""
	}
	return p.store.Events(ctx, f)
}

// SandboxEvents reads what happened to one of the account's sandboxes, in order.
func (p *Plane) SandboxEvents(ctx context.Context, who Principal, id string, f dayfly.EventFilter) ([]dayfly.Event, error) {
	if _, err := p.Sandbox(ctx, who, id); err != nil {
		return nil, err
	}
	f.Sandbox = id
	return p.Events(ctx, who, f)
}

// AwaitEvents blocks until there may be an event after seq, of whatever account, and tells the seq of the newest one: wait for
// later ones than that. Nobody waits for further ones at a server that shuts down: CodeUnavailable.
func (p *Plane) AwaitEvents(ctx context.Context, seq int64) (last int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.open, cancel)()
	last, err = p.store.AwaitEvents(ctx, seq)
	if err != nil && p.open.Err() != nil {
		return last, errDraining
	}
	return last, err
}

// tell stores an event of its own. It must not fail what it tells of, so a failure is logged only.
func (p *Plane) tell(ctx context.Context, e dayfly.Event) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	switch e.Type {
	case dayfly.EventReclaimed:
		p.meter.Found(e.Cause)
	case dayfly.EventNotSwept:
		p.meter.Found(foundStopped)
	}
	e.At = p.Now().Wall
	if _, err := p.store.AddEvent(ctx, e); err != nil {
		p.log.Error("store an event", "type", e.Type, "error", err)
	}
}

// purgeEvents forgets old events, one bounded batch.
func (p *Plane) purgeEvents(ctx context.Context, now dayfly.Instant) error {
	_, err := p.store.PurgeEvents(ctx, now.Wall.Add(-dayfly.EventsKept), purgeBatch)
	return err
}
