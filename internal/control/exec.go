package control

import (
	"context"
	"io"
	"slices"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
)

// Following is a started command and its output.
type Following struct {
	Process dayfly.Process
	Stream  dayfly.OutputStream // the caller closes it
}

// Exec runs a command to its end. With an idempotency key it runs once: a repeated request waits for the first one's
// process, or reads its record (CodeGone once that was dropped).
func (p *Plane) Exec(ctx context.Context, who Principal, id string, spec dayfly.ProcessSpec, stdin io.Reader, req Idempotency) (Outcome[dayfly.Result], error) {
	done := p.meteredExec()
	defer done(nil)
	out, err := execOnce(ctx, p, who, id, spec, req, execution[dayfly.Result]{
		run: func(m Machine, spec dayfly.ProcessSpec) (dayfly.Result, error) { return m.Run(ctx, spec, stdin) },
		join: func(m Machine, process dayfly.Process) (dayfly.Result, error) {
			return m.Result(ctx, process.ID)
		},
	})
	if err == nil && !out.Replayed {
		done(&out.Value.Exit)
	}
	return out, err
}

// ExecStream starts a command and follows its output. keepStdin leaves its standard input open after stdin ended. A
// repeated request attaches to the first one's process, from its first kept byte on.
func (p *Plane) ExecStream(ctx context.Context, who Principal, id string, spec dayfly.ProcessSpec, stdin io.Reader, keepStdin bool, req Idempotency) (Outcome[Following], error) {
	spec.Follow, spec.OpenStdin = true, keepStdin
	done := p.meteredExec()
	out, err := execOnce(ctx, p, who, id, spec, req, execution[Following]{
		run: func(m Machine, spec dayfly.ProcessSpec) (Following, error) {
			s, proc, err := m.Start(ctx, spec, stdin)
			return Following{proc, s}, err
		},
		join: func(m Machine, process dayfly.Process) (Following, error) {
			s, err := m.Output(ctx, process.ID, dayfly.Offsets{}, true /* follow */)
			return Following{process, s}, err
		},
	})
	if err != nil {
		done(nil)
		return out, err
	}
	out.Value.Stream = &meteredStream{out.Value.Stream, done, out.Replayed}
	return out, nil
}

// Launch starts a command in the background. It has no timeout unless one is given, and goes on when its clients leave unless told
// otherwise; a terminal's input stays open. A repeated request gets the first one's process as it is now. CodeConflict: a
// running process of the sandbox has the name.
func (p *Plane) Launch(ctx context.Context, who Principal, id string, spec dayfly.ProcessSpec, stdin io.Reader, req Idempotency) (Outcome[dayfly.Process], error) {
	if spec.Timeout == 0 {
		spec.Timeout = dayfly.NoTimeout
	}
	if spec.OnDisconnect == "" {
		spec.OnDisconnect = dayfly.DisconnectContinue
	}
	spec.Follow = true // whoever follows it gets all of its output
	spec.OpenStdin = spec.OpenStdin || spec.Terminal != nil
	return execOnce(ctx, p, who, id, spec, req, execution[dayfly.Process]{
		run:  func(m Machine, spec dayfly.ProcessSpec) (dayfly.Process, error) { return m.Launch(ctx, spec, stdin) },
		join: func(_ Machine, process dayfly.Process) (dayfly.Process, error) { return process, nil },
	})
}

// execution is how a command is run by the first request, and joined by a repeated one.
type execution[T any] struct {
	run  func(m Machine, spec dayfly.ProcessSpec) (T, error)
	join func(m Machine, process dayfly.Process) (T, error)
}

// execOnce runs a command, once for an idempotency key. The process's id is claimed together with the key before the command
// starts, so a repeated request finds it however the first one fared. A claimed process that the agent never heard of was
// never started (the server died in between): the repeated request starts it.
func execOnce[T any](ctx context.Context, p *Plane, who Principal, id string, spec dayfly.ProcessSpec, req Idempotency, e execution[T]) (Outcome[T], error) {
	var out Outcome[T]
	if err := p.refuses(); err != nil {
		return out, err
	}
	m, err := p.Machine(ctx, who, id)
	if err != nil {
		return out, err
	}
	spec.ID = dayfly.NewID(dayfly.PrefixProcess)
	failpoint.Hit("control.exec.begin")
	if req.Key == "" {
		out.Value, err = e.run(m, spec)
		return out, err
	}
	for {
		f, mine := p.takeOff(who, req)
		if !mine { // another request is just starting it
			process, known, err := p.awaitStart(ctx, m, f, req)
			if err != nil {
				return out, err
			}
			if !known {
				continue // that one is over
			}
			out.Replayed = true
			out.Value, err = e.join(m, process)
			return out, err
		}
		process, known, err := p.claimExec(ctx, who, m, f, &spec, req)
		if err != nil || known {
			p.land(f)
		}
		if err != nil {
			return out, err
		}
		if known {
			out.Replayed = true
			out.Value, err = e.join(m, process)
			return out, err
		}
		failpoint.Hit("control.exec.claimed")
		defer p.land(f)
		out.Value, err = e.run(m, spec)
		failpoint.Hit("control.exec.ran")
		if err != nil && (slices.Contains(refusals, dayfly.ErrorCode(err)) || nameTaken(ctx, m, spec.ID, err)) {
			p.abandonRequest(who, req) // certainly not started: the key is free again
		}
		failpoint.Hit("control.exec.finished")
		return out, err
	}
}

// claimExec claims the key for spec. known: an earlier request did, and this is its process; otherwise spec has the id to
// start under. The claim has all that a repeated request needs, so nothing is added to it when the command has run.
func (p *Plane) claimExec(ctx context.Context, who Principal, m Machine, f *flight, spec *dayfly.ProcessSpec, req Idempotency) (process dayfly.Process, known bool, err error) {
	claim := p.claim(who, req, p.Now().Wall)
	claim.Resource = spec.ID
	prior, err := p.store.BeginRequest(ctx, *claim)
	if err != nil {
		return process, false, err
	}
	if prior != nil {
		process, err = m.Process(ctx, prior.Resource)
		if dayfly.ErrorCode(err) != dayfly.CodeNotFound {
			return process, err == nil, err
		}
		spec.ID = prior.Resource
	}
	p.name(f, spec.ID)
	return process, false, nil
}

// refusals are the answers to a command that was certainly not started. After any other error it is not known.
var refusals = []dayfly.Code{
	dayfly.CodeInvalid, dayfly.CodeNotFound, dayfly.CodeNotRunning, dayfly.CodeTooLarge, dayfly.CodeFileNotFound,
	dayfly.CodeFilePermission, dayfly.CodeFileConflict, dayfly.CodeNoCapacity, dayfly.CodeDiskFull, dayfly.CodeGone,
}

// nameTaken tells that a command was not started because another one has its name, and not because it runs itself.
func nameTaken(ctx context.Context, m Machine, process string, err error) bool {
	if dayfly.ErrorCode(err) != dayfly.CodeConflict {
		return false
	}
	_, err = m.Process(ctx, process)
	return dayfly.ErrorCode(err) == dayfly.CodeNotFound
}
