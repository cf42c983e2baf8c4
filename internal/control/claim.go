package control

import (
	"context"
	"encoding/json"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
)

// claim is the store's record of a request's idempotency key, or nil when it carries none.
func (p *Plane) claim(who Principal, req Idempotency, at time.Time) *dayfly.Request {
	if req.Key == "" {
		return nil
	}
	return &dayfly.Request{Account: who.Account.ID, Key: req.Key, Operation: req.Operation, Hash: req.Hash, CreatedAt: at.UTC()}
}

// keepRequest stores an outcome; a failure is logged too.
func (p *Plane) keepRequest(req dayfly.Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), claimTimeout)
	defer cancel()
	err := p.store.FinishRequest(ctx, req)
	if err != nil {
		p.log.Error("keep the outcome of a request", "operation", req.Operation, "error", err)
	}
	return err
}

// abandonRequest frees a key after a failure.
func (p *Plane) abandonRequest(who Principal, req Idempotency) {
	ctx, cancel := context.WithTimeout(context.Background(), claimTimeout)
	defer cancel()
	if err := p.store.AbandonRequest(ctx, who.Account.ID, req.Key); err != nil {
		p.log.Error("give an idempotency key back", "operation", req.Operation, "error", err)
	}
}

// claimTimeout bounds the end of a claim, which does not depend on the client any more.
const claimTimeout = 10 * time.Second

// flightKey is an idempotency key of an account.
type flightKey struct{ account, key string }

// flight is a request with an idempotency key that this server is carrying out. A claim in the store without a flight is of
// an earlier life of the server: nobody will finish it.
type flight struct {
	key     flightKey
	req     Idempotency
	done    chan struct{} // closed when it is over
	process string        // what it starts, once claimed; guarded by Plane.mu
}

// takeOff begins to carry out a request; mine is false when another one with the same key is under way, which it returns.
func (p *Plane) takeOff(who Principal, req Idempotency) (f *flight, mine bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := flightKey{who.Account.ID, req.Key}
	if f := p.flights[key]; f != nil {
		return f, false
	}
	f = &flight{key: key, req: req, done: make(chan struct{})}
	p.flights[key] = f
	return f, true
}

// sameAs tells by CodeKeyReused that the key is used for two different requests.
func (f *flight) sameAs(req Idempotency) error {
	if f.req.Operation == req.Operation && f.req.Hash == req.Hash {
		return nil
	}
	return dayfly.Errorf(dayfly.CodeKeyReused, "the idempotency key was used for another request").
		WithDetail("key", req.Key).WithHint("use a new key for a new request; a retry repeats the body unchanged")
}

func (p *Plane) land(f *flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.flights, f.key)
	close(f.done)
}

func (p *Plane) name(f *flight, process string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.process = process
}

// flightLook is how often a repeated request looks whether the command of the first one runs: the agent tells nobody but the
// one who starts it.
const flightLook = 10 * time.Millisecond

// awaitStart waits until the command that another request starts is known to the agent. known is false when that request is
// over before.
func (p *Plane) awaitStart(ctx context.Context, m Machine, f *flight, req Idempotency) (process dayfly.Process, known bool, err error) {
	if err := f.sameAs(req); err != nil {
		return process, false, err
	}
	tick := time.NewTicker(flightLook)
	defer tick.Stop()
	for {
		p.mu.Lock()
		id := f.process
		p.mu.Unlock()
		if id != "" {
			process, err = m.Process(ctx, id)
			if dayfly.ErrorCode(err) != dayfly.CodeNotFound {
				return process, err == nil, err
			}
		}
		select {
		case <-f.done:
			return process, false, nil
		case <-tick.C:
		case <-ctx.Done():
			return process, false, ctx.Err()
		}
	}
}

// Answer is a stored answer to a request with an idempotency key.
type Answer struct {
	Status int
	Body   []byte // JSON, to the first client
	Kept   []byte // JSON without secrets, to a replay
}

// Once runs do once for an idempotency key and keeps its answer; a repeated request gets the kept one. Without a key it
// just runs do. While the first request is still running a repeated one gets CodeConflict with advice to try again. A request
// that died with an earlier life of the server is made anew.
func (p *Plane) Once(ctx context.Context, who Principal, req Idempotency, do func(context.Context) (Answer, error)) (Answer, bool, error) {
	if req.Key == "" {
		a, err := do(ctx)
		return a, false, err
	}
	f, mine := p.takeOff(who, req)
	if !mine {
		if err := f.sameAs(req); err != nil {
			return Answer{}, false, err
		}
		return Answer{}, false, dayfly.Errorf(dayfly.CodeConflict, "the first request with this idempotency key is still running").
			WithHint("try again in a moment").WithRetryAfter(retryTeardown)
	}
	settled := true // else the key stays taken: better no answer than a second run
	defer func() {
		if settled {
			p.land(f)
		}
	}()
	prior, err := p.store.BeginRequest(ctx, *p.claim(who, req, p.Now().Wall))
	if err != nil {
		return Answer{}, false, err
	}
	if prior != nil && prior.Done {
		return Answer{Status: prior.Status, Body: prior.Response, Kept: prior.Response}, true, nil
	}
	failpoint.Hit("control.once.claimed")
	a, err := p.carry(ctx, who, req, do)
	if err != nil {
		return a, false, err
	}
	failpoint.Hit("control.once.carried")
	done := p.claim(who, req, p.Now().Wall)
	done.Done, done.Status, done.Response = true, a.Status, a.Kept
	if !json.Valid(done.Response) {
		done.Response = []byte("{}")
	}
	settled = p.keepRequest(*done) == nil
	failpoint.Hit("control.once.kept")
	return a, false, nil
}

// carry runs do and gives the key back when it fails, by a panic too.
func (p *Plane) carry(ctx context.Context, who Principal, req Idempotency, do func(context.Context) (Answer, error)) (a Answer, err error) {
	failed := true
	defer func() {
		if failed {
			p.abandonRequest(who, req)
		}
	}()
	a, err = do(ctx)
	failed = err != nil
	return a, err
}
