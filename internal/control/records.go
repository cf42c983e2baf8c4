package control

import (
	"context"
	"time"

	"dayfly.dev/dayfly"
)

var errDraining = dayfly.Errorf(dayfly.CodeUnavailable, "the server is shutting down").
	WithHint("try again in a few seconds").WithRetryAfter(5 * time.Second)

var errStarting = dayfly.Errorf(dayfly.CodeUnavailable, "the server is starting").
	WithHint("try again in a few seconds; /readyz says what it waits for").WithRetryAfter(time.Second)

// Sandbox reads one of the account's sandboxes, ended ones too.
func (p *Plane) Sandbox(ctx context.Context, who Principal, id string) (dayfly.Sandbox, error) {
	if !dayfly.ValidID(dayfly.PrefixSandbox, id) {
		return dayfly.Sandbox{}, errNoSandbox(id)
	}
	sb, err := p.store.Sandbox(ctx, who.Account.ID, id)
	if dayfly.ErrorCode(err) == dayfly.CodeNotFound {
		return sb, errNoSandbox(id)
	}
	return sb, err
}

func errNoSandbox(id string) error {
	return dayfly.Errorf(dayfly.CodeNotFound, "there is no sandbox %.40q", id).
		WithHint("`dayfly ls --all` lists yours, ended ones too")
}

// Sandboxes reads one page of the account's sandboxes, newest first.
func (p *Plane) Sandboxes(ctx context.Context, who Principal, f dayfly.SandboxFilter) ([]dayfly.Sandbox, string, error) {
	f.Account = who.Account.ID
	return p.store.Sandboxes(ctx, f)
}

// LabelSandbox replaces labels (nil keeps them) and name (nil keeps it).
func (p *Plane) LabelSandbox(ctx context.Context, who Principal, id string, labels map[string]string, name *string) (dayfly.Sandbox, error) {
	for range casAttempts {
		sb, err := p.Sandbox(ctx, who, id)
		if err != nil {
			return sb, err
		}
		if sb.Status.Ended() {
			return sb, goneError(sb)
		}
		changed, err := p.store.LabelSandbox(ctx, id, sb.Rev, labels, name)
		if !lostRace(err) {
			return changed, err
		}
	}
	return dayfly.Sandbox{}, errBusy
}

// move changes a record by compare-and-swap, in the name of an actor, until it succeeds or change refuses. change sees the
// current record and the node's clock; it returns false to leave the record as it is, which is no error.
func (p *Plane) move(by dayfly.Actor, id string, change func(now dayfly.Instant, sb *dayfly.Sandbox) bool) (dayfly.Sandbox, error) {
	ctx, cancel := context.WithTimeout(dayfly.WithActor(context.Background(), by), teardownTimeout)
	defer cancel()
	for range casAttempts {
		sb, err := p.store.Sandbox(ctx, "", id)
		if err != nil {
			return sb, err
		}
		if !change(p.node.Now(), &sb) {
			return sb, nil
		}
		moved, err := p.store.MoveSandbox(ctx, sb)
		p.running.forget(id)
		if !lostRace(err) {
			return moved, err
		}
	}
	return dayfly.Sandbox{}, errBusy
}

var errBusy = dayfly.Errorf(dayfly.CodeConflict, "the sandbox is being changed by too many requests at once").
	WithHint("try again").WithRetryAfter(time.Second)

// lostRace tells a lost compare-and-swap from a conflict that trying again cannot solve (a taken name).
func lostRace(err error) bool {
	e := dayfly.AsError(err)
	return e != nil && e.Code == dayfly.CodeConflict && e.Details["sandbox"] == nil
}

// goneError tells how a sandbox ended.
func goneError(sb dayfly.Sandbox) *dayfly.Error {
	e := dayfly.Errorf(dayfly.CodeGone, "sandbox %s has ended (%s)", sb.ID, sb.End).
		WithHint("create a new one").WithDetail("end_reason", string(sb.End)).WithDetail("status", string(sb.Status))
	if sb.Status.Ended() && !sb.Times.EndedAt.IsZero() {
		e = e.WithDetail("ended_at", sb.Times.EndedAt.UTC().Format("2006-01-02T15:04:05.000Z"))
	}
	return e
}
