package control

import (
	"context"
	"encoding/json"
	"io"

	"dayfly.dev/dayfly"
)

// Following is a started command and its output.
type Following struct {
	Process dayfly.Process
	Stream  dayfly.OutputStream // the caller closes it
}

// Exec runs a command to its end. With an idempotency key it runs once: a repeated request waits for the first one's
// process, or reads its record (CodeGone once that was dropped).
func (p *Plane) Exec(ctx context.Context, who Principal, id string, spec dayfly.ProcessSpec, stdin io.Reader, req Idempotency) (Outcome[dayfly.Result], error) {
	m, spec, prior, err := p.beginExec(ctx, who, id, spec, req)
	if err != nil {
		return Outcome[dayfly.Result]{}, err
	}
	if prior != "" {
		res, err := m.Result(ctx, prior)
		return Outcome[dayfly.Result]{Value: res, Replayed: true}, err
	}
	res, err := m.Run(ctx, spec, stdin)
	p.finishExec(who, req, spec.ID, err)
	return Outcome[dayfly.Result]{Value: res}, err
}

// ExecStream starts a command and follows its output. keepStdin leaves its standard input open after stdin ended. A
// repeated request attaches to the first one's process, from its first kept byte on.
func (p *Plane) ExecStream(ctx context.Context, who Principal, id string, spec dayfly.ProcessSpec, stdin io.Reader, keepStdin bool, req Idempotency) (Outcome[Following], error) {
	spec.Follow, spec.OpenStdin = true, keepStdin
	m, spec, prior, err := p.beginExec(ctx, who, id, spec, req)
	if err != nil {
		return Outcome[Following]{}, err
	}
	if prior != "" {
		proc, err := m.Process(ctx, prior)
		if err != nil {
			return Outcome[Following]{}, err
		}
		s, err := m.Output(ctx, prior, dayfly.Offsets{}, true)
		return Outcome[Following]{Value: Following{proc, s}, Replayed: true}, err
	}
	s, proc, err := m.Start(ctx, spec, stdin)
	p.finishExec(who, req, spec.ID, err)
	return Outcome[Following]{Value: Following{proc, s}}, err
}

// beginExec finds the machine, gives the command its id, and claims the idempotency key. prior is the process of an
// earlier request with the same key, or empty.
func (p *Plane) beginExec(ctx context.Context, who Principal, id string, spec dayfly.ProcessSpec, req Idempotency) (Machine, dayfly.ProcessSpec, string, error) {
	if p.in(phaseDraining) {
		return nil, spec, "", errDraining
	}
	m, err := p.Machine(ctx, who, id)
	if err != nil {
		return nil, spec, "", err
	}
	spec.ID = dayfly.NewID(dayfly.PrefixProcess)
	if req.Key == "" {
		return m, spec, "", nil
	}
	claim := p.claim(who, req, p.Now().Wall)
	claim.Resource = spec.ID
	prior, err := p.store.BeginRequest(ctx, *claim)
	if err != nil || prior == nil {
		return m, spec, "", err
	}
	return m, spec, prior.Resource, nil
}

// finishExec keeps the claim of a command that was started, and gives the key of one that was not back.
func (p *Plane) finishExec(who Principal, req Idempotency, process string, err error) {
	if req.Key == "" {
		return
	}
	if err != nil && dayfly.ErrorCode(err) != dayfly.CodeInternal {
		p.abandonRequest(who, req)
		return
	}
	done := p.claim(who, req, p.Now().Wall)
	done.Resource, done.Done = process, true
	p.keepRequest(*done)
}

// Answer is a stored answer to a request with an idempotency key.
type Answer struct {
	Status int
	Body   []byte // JSON, to the first client
	Kept   []byte // JSON without secrets, to a replay
}

// Once runs do once for an idempotency key and keeps its answer; a repeated request gets the kept one. Without a key it
// just runs do. While the first request is still running a repeated one gets CodeConflict with advice to try again.
func (p *Plane) Once(ctx context.Context, who Principal, req Idempotency, do func(context.Context) (Answer, error)) (Answer, bool, error) {
	if req.Key == "" {
		a, err := do(ctx)
		return a, false, err
	}
	prior, err := p.store.BeginRequest(ctx, *p.claim(who, req, p.Now().Wall))
	if err != nil {
		return Answer{}, false, err
	}
	if prior != nil {
		if !prior.Done {
			return Answer{}, false, dayfly.Errorf(dayfly.CodeConflict, "the first request with this idempotency key is still running").
				WithHint("try again in a moment").WithRetryAfter(retryTeardown)
		}
		return Answer{Status: prior.Status, Body: prior.Response, Kept: prior.Response}, true, nil
	}
	a, err := do(ctx)
	if err != nil {
		p.abandonRequest(who, req)
		return a, false, err
	}
	done := p.claim(who, req, p.Now().Wall)
	done.Done, done.Status, done.Response = true, a.Status, a.Kept
	if !json.Valid(done.Response) {
		done.Response = []byte("{}")
	}
	p.keepRequest(*done)
	return a, false, nil
}
