package control

import (
	"context"
	"time"

	"dayfly.dev/dayfly"
)

// claim is the store's record of a request's idempotency key, or nil when it carries none.
func (p *Plane) claim(who Principal, req Idempotency, at time.Time) *dayfly.Request {
	if req.Key == "" {
		return nil
	}
	return &dayfly.Request{Account: who.Account.ID, Key: req.Key, Operation: req.Operation, Hash: req.Hash, CreatedAt: at.UTC()}
}

// keepRequest stores an outcome. When it cannot, the key stays claimed without an answer: a retry is told to wait rather
// than run twice.
func (p *Plane) keepRequest(req dayfly.Request) {
	ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
	defer cancel()
	if err := p.store.FinishRequest(ctx, req); err != nil {
		p.log.Error("keep the outcome of a request", "operation", req.Operation, "error", err)
	}
}

// abandonRequest frees a key after a failure.
func (p *Plane) abandonRequest(who Principal, req Idempotency) {
	ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
	defer cancel()
	if err := p.store.AbandonRequest(ctx, who.Account.ID, req.Key); err != nil {
		p.log.Error("give an idempotency key back", "operation", req.Operation, "error", err)
	}
}
